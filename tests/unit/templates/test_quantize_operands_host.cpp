// What the GEMMs of 8-bit floats read, on the host target: weights by blocks, rows of masked
// groups, a tensor with a scale of its own. Kiln's kernels alone make a product of them that is
// close to the one in double.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kiln/kernels/gemm_grouped_fp8.hpp"
#include "kiln/registry.hpp"
#include "row_test.hpp"

using namespace kiln::templates;
using kiln::bfloat16, kiln::float8_e4m3;
using template_test::Array;
using template_test::HostInstance;
using template_test::kInfinity;
using template_test::kNan;
using template_test::kShapes;
using template_test::RowShape;

namespace {

constexpr float kSmallestScale = std::numeric_limits<float>::min();

std::size_t size(long long count) { return static_cast<std::size_t>(count); }

template <class T>
bool same_bytes(Array<T>& got, Array<T>& want) {
  return got.margins_intact() && std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0;
}

/// The expected scales are computed here, from elements alone.
template <class T>
void check_weights(const RowConfig& config) {
  const auto kernel = quantize_weights_kernel<T>();
  const HostInstance<QuantizeWeightsKernel<T>> quantize(kernel, config);
  for (const WeightGroups& p : std::vector<WeightGroups>{
           {1, 1, 1}, {128, 128, 2}, {129, 257, 1}, {200, 384, 3}, {40, 1000, 1}, {5, 37, 4}})
    for (const std::size_t offset : {0, 1}) {
      CAPTURE(template_test::describe(config), p.n, p.k, p.groups, offset);
      const std::size_t elements = size(p.n) * size(p.k) * size(p.groups);
      const int down = kiln::scale_blocks(p.n), across = kiln::scale_blocks(p.k);
      Array<T> w(elements, offset);
      w.reals(3);
      Array<float8_e4m3> q(elements, offset), want(elements);
      Array<float> scales(size(p.groups) * size(down) * size(across)), want_scales(scales.size());
      for (std::size_t i = 0; i < scales.size(); ++i) want_scales[i] = 0;
      const auto scale_of = [&](std::size_t i) -> float& {
        const std::size_t row = i / size(p.k), g = row / size(p.n), j = row % size(p.n);
        return want_scales[(g * size(down) + j / 128) * size(across) + i % size(p.k) / 128];
      };
      for (std::size_t i = 0; i < elements; ++i)
        scale_of(i) = std::fmax(scale_of(i), std::fabs(static_cast<float>(w[i])) / 448);
      for (std::size_t i = 0; i < elements; ++i)
        want[i] = float8_e4m3(static_cast<float>(w[i]) * (1 / scale_of(i)));
      quantize(p, q.data(), scales.data(), static_cast<const T*>(w.data()), p.n, p.k, p.groups);
      CHECK((same_bytes(q, want) && same_bytes(scales, want_scales)));
      Array<float8_e4m3> by_reference(elements);
      Array<float> of_reference(scales.size());
      kernel.reference(by_reference.data(), of_reference.data(), w.data(), p.n, p.k, p.groups);
      CHECK((same_bytes(by_reference, want) && same_bytes(of_reference, want_scales)));
    }
}

/// Each group against quantize_blocks of its rows alone; nothing else is written, and what lies
/// behind the counts is NaN.
template <class T>
void check_masked(const RowConfig& config, const std::vector<int>& counts, int m, int hidden,
                  std::size_t offset) {
  CAPTURE(template_test::describe(config), m, hidden, counts.size(), offset);
  const auto kernel = quantize_blocks_masked_kernel<T>();
  const auto groups = static_cast<int>(counts.size());
  const HostInstance<QuantizeBlocksMaskedKernel<T>> quantize(kernel, config);
  const std::size_t of_group = size(m) * size(hidden), blocks = size(kiln::scale_blocks(hidden)),
                    leading = size(kiln::scale_leading(m));
  Array<T> x(counts.size() * of_group, offset), values(x.size());
  values.reals(4);
  Array<float8_e4m3> q(x.size(), offset), want(x.size()), by_reference(x.size());
  Array<float> scales(counts.size() * blocks * leading), want_scales(scales.size()),
      of_reference(scales.size());
  for (std::size_t g = 0; g < counts.size(); ++g) {
    const int rows = std::clamp(counts[g], 0, m);
    std::copy_n(values.data() + g * of_group, size(rows) * size(hidden), x.data() + g * of_group);
    std::vector<float> own(blocks * size(kiln::scale_leading(rows)));
    quantize_blocks_kernel<T>().reference(want.data() + g * of_group, own.data(),
                                          x.data() + g * of_group, rows, hidden);
    for (std::size_t b = 0; b < blocks; ++b)
      for (std::size_t r = 0; r < size(rows); ++r)
        want_scales[(g * blocks + b) * leading + r] = own[b * size(kiln::scale_leading(rows)) + r];
  }
  quantize({m, hidden, groups}, q.data(), scales.data(), static_cast<const T*>(x.data()),
           counts.data(), m, hidden, groups);
  CHECK((same_bytes(q, want) && same_bytes(scales, want_scales)));
  kernel.reference(by_reference.data(), of_reference.data(), x.data(), counts.data(), m, hidden,
                   groups);
  CHECK((same_bytes(by_reference, want) && same_bytes(of_reference, want_scales)));
}

template <class T>
std::vector<RowConfig> tile_configs(const RowConfig& usual) {
  return {usual, {32, 1, 16 / sizeof(T), 8, false, false}, {64, 1, 4, 1, false, false}};
}

/// ||got - want|| / ||want||
class Error {
 public:
  void add(double got, double want) {
    difference_ += (got - want) * (got - want);
    square_ += want * want;
  }
  double relative() const { return std::sqrt(difference_ / square_); }

 private:
  double difference_ = 0, square_ = 0;
};

/// Blocks of different orders, so that a scale of another block is seen.
std::vector<float> blocks_of_orders(std::size_t rows, std::size_t columns, unsigned seed,
                                    std::size_t rows_of_block) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(rows * columns);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t order = i / columns / rows_of_block + 2 * (i % columns / 128);
    x[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(order % 5) - 2);
  }
  return x;
}

template <class T>
const T* read(const std::vector<T>& of) {
  return of.data();
}

constexpr double kTwoFractionsOfThreeBits = 0.05;

}  // namespace

TEMPLATE_TEST_CASE("quantize_weights: blocks of 128 x 128, whole or not, of all groups",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  constexpr int kWidest = 16 / sizeof(TestType);
  check_weights<TestType>(quantize_weights_kernel<TestType>().space.default_config());
  check_weights<TestType>({128, 1, kWidest, 128 / kWidest, false, false});
  check_weights<TestType>({1024, 1, 4, 4, false, false});
}

TEMPLATE_TEST_CASE("quantize_blocks_masked: the rows of counts, and no others", "[templates][host]",
                   float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const RowConfig& config :
       tile_configs<TestType>(quantize_blocks_masked_kernel<TestType>().space.default_config())) {
    check_masked<TestType>(config, {0, 17, 1, 16, 5}, 18, 384, 0);
    check_masked<TestType>(config, {-3, 40, 7, 0}, 7, 333, 1);  // senseless counts
    check_masked<TestType>(config, {2}, 3, 1, 0);
  }
}

TEMPLATE_TEST_CASE("quantize_tensor_dynamic: one scale of all elements, wherever the largest is",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using T = TestType;
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto kernel = quantize_tensor_dynamic_kernel<T>();
  for (const RowConfig& config :
       tile_configs<T>(kernel.space.default_config(kiln::Target::Kind::host))) {
    const auto quantize = runtime.tuned(kernel).with_config(config);
    for (const RowShape& s : kShapes)
      for (const std::size_t largest : {std::size_t{0}, s.elements() / 2, s.elements() - 1}) {
        INFO(s.describe() << " " << template_test::describe(config) << " " << largest);
        Array<T> x(s.elements(), s.x_offset);
        x.reals(12);
        x[largest] = T(-7.0f);
        Array<float8_e4m3> q(s.elements(), s.y_offset), want(s.elements());
        Array<float> scale(1), right(1);
        right[0] = 7.0f / 448;
        for (std::size_t i = 0; i < s.elements(); ++i)
          want[i] = float8_e4m3(static_cast<float>(x[i]) * (1 / right[0]));
        quantize({}, q.data(), scale.data(), static_cast<const T*>(x.data()), s.rows, s.width);
        runtime.synchronize({});
        CHECK((same_bytes(q, want) && same_bytes(scale, right)));
        scale[0] = 0;
        kernel.reference(q.data(), scale.data(), x.data(), s.rows, s.width);
        CHECK((same_bytes(q, want) && same_bytes(scale, right)));
      }
  }
}

TEST_CASE("quantizing operands: zeros, NaNs and infinities", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  constexpr int kN = 200, kK = 300;
  std::vector<float> w(kN * kK, 1.5f);
  for (std::size_t i = 0; i < w.size(); ++i)
    if (i / kK >= 128 && i % kK < 128) w[i] = 0;  // block [1][0]
  w[5 * kK + 7] = kNan;
  w[130 * kK + 290] = -kInfinity;  // block [1][2]
  std::vector<float8_e4m3> q(w.size());
  std::vector<float> scales(6);
  runtime.tuned(quantize_weights_kernel<float>())({}, q.data(), scales.data(), read(w), kN, kK, 1);
  runtime.synchronize({});
  const auto at = [&](int r, int h) {
    return static_cast<float>(q[static_cast<std::size_t>(r * kK + h)]);
  };
  CHECK((scales[0] == 1.5f / 448 && scales[3] == kSmallestScale && scales[5] == kInfinity));
  CHECK((std::isnan(at(5, 7)) && at(5, 8) == 448 && at(199, 127) == 0));
  CHECK((std::isnan(at(130, 290)) && at(130, 291) == 0 && at(130, 255) == 448));

  const auto dynamic = runtime.tuned(quantize_tensor_dynamic_kernel<float>());
  float scale = -1;
  const auto of = [&](float a, float b) {
    const std::vector<float> x{a, 3, b, -1};
    dynamic({}, q.data(), &scale, read(x), 2, 2);
    runtime.synchronize({});
  };
  of(kNan, 2);
  CHECK((scale == 3.0f / 448 && std::isnan(at(0, 0)) && at(0, 1) == 448));
  of(kInfinity, 2);
  CHECK((scale == kInfinity && std::isnan(at(0, 0)) && at(0, 1) == 0 && at(0, 2) == 0));
  const std::vector<float> zeros(4);
  dynamic({}, q.data(), &scale, read(zeros), 2, 2);
  runtime.synchronize({});
  CHECK((scale == kSmallestScale && at(0, 0) == 0 && at(0, 3) == 0));
  scale = -1;
  dynamic({}, q.data(), &scale, read(zeros), 0, 4);
  runtime.synchronize({});
  CHECK(scale == -1);

  // A masked group's rows behind its count may hold anything.
  std::vector<float> x(2 * 3 * 128, kNan), of_rows(2 * 4, -1);
  std::vector<int> counts{1, 0};
  std::fill_n(x.begin(), 128, 0.0f);
  runtime.tuned(quantize_blocks_masked_kernel<float>())({}, q.data(), of_rows.data(), read(x),
                                                        read(counts), 3, 128, 2);
  runtime.synchronize({});
  CHECK((of_rows[0] == kSmallestScale && of_rows[1] == -1 && of_rows[4] == -1 && at(0, 0) == 0));
}

TEST_CASE("a given scale that is small, 0, negative, infinite or NaN", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const std::vector<float> x{0, 1, -2, kInfinity, kNan, 1e-37f, -0.0f, 3};
  const auto kernel = quantize_tensor_kernel<float>();
  const HostInstance<QuantizeTensorKernel<float>> quantize(kernel, {32, 1, 4, 1, false, false});
  for (const float scale : {1e-45f, 1e-39f, kSmallestScale, 0.0f, -0.0f, -3.0f, -kInfinity}) {
    CAPTURE(scale);
    std::vector<float8_e4m3> q(8), want(8);
    quantize({1, 8}, q.data(), read(x), &scale, 1, 8);
    kernel.reference(want.data(), x.data(), &scale, 1, 8);
    CHECK(std::memcmp(q.data(), want.data(), 8) == 0);
    CHECK((static_cast<float>(q[0]) == 0 && static_cast<float>(q[1]) == 448));
    CHECK((static_cast<float>(q[2]) == -448 && static_cast<float>(q[3]) == 448));
    CHECK((std::isnan(q[4]) &&
           static_cast<float>(q[5]) == Approx(1e-37f / kSmallestScale).epsilon(0.07)));
  }
  for (const float scale : {kInfinity, kNan}) {
    std::vector<float8_e4m3> q(8);
    quantize({1, 8}, q.data(), read(x), &scale, 1, 8);
    for (const std::size_t i : {0, 1, 2, 7})
      CHECK((std::isnan(scale) ? std::isnan(q[i]) : static_cast<float>(q[i]) == 0));
    CHECK((std::isnan(q[3]) && std::isnan(q[4])));
  }
}

TEST_CASE("quantizing operands: data, verdicts and refusals", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto verify = [&](const char* name, const kiln::Values& problem) {
    for (const char* type : {"f32", "bf16"}) {
      const kiln::Verification v =
          runtime.tuned(kiln::shipped_kernels().make(name, type)).verify(problem);
      INFO(name << " " << type << ": " << v.why);
      CHECK(v.right);
    }
  };
  for (const kiln::Values& problem : {kiln::Values{200, 384, 3}, {0, 8, 1}, {8, 0, 1}, {8, 8, 0}})
    verify("quantize_weights", problem);
  for (const kiln::Values& problem : {kiln::Values{33, 300, 7}, {0, 8, 1}, {8, 0, 1}, {8, 8, 0}})
    verify("quantize_blocks_masked", problem);
  for (const kiln::Values& problem : {kiln::Values{33, 1001}, {0, 8}, {8, 0}})
    verify("quantize_tensor_dynamic", problem);
  auto wrong = quantize_weights_kernel<float>();
  wrong.reference = [](float8_e4m3* q, float* scales, const float* w, int n, int k, int groups) {
    quantize_weights_kernel<float>().reference(q, scales, w, n, k, groups);
    scales[1] *= 2;
  };
  CHECK_FALSE(runtime.tuned(wrong).verify({200, 384, 1}).right);

  float8_e4m3* const q = nullptr;
  float* const scales = nullptr;
  const float* const x = nullptr;
  const int* const counts = nullptr;
  for (const auto& [a, b, c] : {std::array{-1, 8, 8}, {8, -1, 8}, {8, 8, -1}}) {
    CHECK_THAT(template_test::refusal([&, a = a, b = b, c = c] {
                 runtime.tuned(quantize_weights_kernel<float>())({}, q, scales, x, a, b, c);
               }),
               Catch::Contains("is negative"));
    CHECK_THAT(template_test::refusal([&, a = a, b = b, c = c] {
                 runtime.tuned(quantize_blocks_masked_kernel<float>())({}, q, scales, x, counts, a,
                                                                       b, c);
               }),
               Catch::Contains("is negative"));
  }
}

TEST_CASE("a product in 8 bits by Kiln's kernels alone is close to the one in double",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  constexpr int kM = 21, kN = 200, kK = 384;
  const std::vector<float> x = blocks_of_orders(kM, kK, 5, 1), w = blocks_of_orders(kN, kK, 6, 128);
  std::vector<float8_e4m3> a(x.size()), b(w.size());
  std::vector<float> scales_a(size(3 * kiln::scale_leading(kM))), scales_b(2 * 3);
  std::vector<bfloat16> c(kM * kN);
  runtime.tuned(quantize_blocks_kernel<float>())({}, a.data(), scales_a.data(), read(x), kM, kK);
  runtime.tuned(quantize_weights_kernel<float>())({}, b.data(), scales_b.data(), read(w), kN, kK,
                                                  1);
  runtime.tuned(gemm_fp8_block_kernel<>())({}, c.data(), read(a), read(b), kM, kN, kK,
                                           read(scales_a), read(scales_b));
  runtime.synchronize({});
  Error error;
  for (std::size_t i = 0; i < kM; ++i)
    for (std::size_t j = 0; j < kN; ++j) {
      double want = 0;
      for (std::size_t l = 0; l < kK; ++l)
        want += static_cast<double>(x[i * kK + l]) * static_cast<double>(w[j * kK + l]);
      error.add(static_cast<double>(static_cast<float>(c[i * kN + j])), want);
    }
  CHECK(error.relative() < kTwoFractionsOfThreeBits);
  CHECK(error.relative() > 0.01);
}

TEST_CASE("a masked product in 8 bits by Kiln's kernels alone is close to the one in double",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  constexpr int kM = 9, kN = 140, kK = 256, kGroups = 3;
  const std::vector<int> counts{4, 0, 9};
  std::vector<float> x = blocks_of_orders(kGroups * kM, kK, 5, 1);
  const std::vector<float> w = blocks_of_orders(kGroups * kN, kK, 6, 70);
  std::fill(x.begin() + 4 * kK, x.begin() + 2 * kM * kK, kNan);  // behind the counts
  std::vector<float8_e4m3> a(x.size()), b(w.size());
  std::vector<float> scales_a(size(kGroups * 2 * kiln::scale_leading(kM)), kNan),
      scales_b(kGroups * 2 * 2);
  std::vector<bfloat16> c(kGroups * kM * kN, bfloat16(-77.0f));
  runtime.tuned(quantize_blocks_masked_kernel<float>())({}, a.data(), scales_a.data(), read(x),
                                                        read(counts), kM, kK, kGroups);
  runtime.tuned(quantize_weights_kernel<float>())({}, b.data(), scales_b.data(), read(w), kN, kK,
                                                  kGroups);
  runtime.tuned(gemm_masked_fp8_block_kernel<>())({}, c.data(), read(a), read(b), read(counts), kM,
                                                  kN, kK, kGroups, 4, read(scales_a),
                                                  read(scales_b));
  runtime.synchronize({});
  Error error;
  int touched = 0;
  for (std::size_t g = 0; g < kGroups; ++g)
    for (std::size_t i = 0; i < kM; ++i)
      for (std::size_t j = 0; j < kN; ++j) {
        const float got = static_cast<float>(c[(g * kM + i) * kN + j]);
        if (i >= size(counts[g])) {
          touched += got != -77.0f;
          continue;
        }
        double want = 0;
        for (std::size_t l = 0; l < kK; ++l)
          want += static_cast<double>(x[(g * kM + i) * kK + l]) *
                  static_cast<double>(w[(g * kN + j) * kK + l]);
        error.add(static_cast<double>(got), want);
      }
  CHECK(touched == 0);
  CHECK(error.relative() < kTwoFractionsOfThreeBits);
}
