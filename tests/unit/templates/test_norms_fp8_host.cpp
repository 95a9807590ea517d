// RMSNorms as 8-bit floats on the host target: with scales of rows and of blocks, of a sum and of
// one array; and what all norms make of zeros, NaNs, infinities and squares beyond the largest
// float.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kiln/registry.hpp"
#include "row_test.hpp"

using namespace kiln::templates;
using kiln::float8_e4m3;
using template_test::Array;
using template_test::HostInstance;
using template_test::kInfinity;
using template_test::kNan;
using template_test::kShapes;
using template_test::RowShape;

namespace {

template <class T, class Kernel>
std::vector<RowConfig> norm_configs(const Kernel& kernel) {
  constexpr int kWidest = 16 / sizeof(T);
  return {kernel.space.default_config(kiln::Target::Kind::cuda),
          kernel.space.default_config(kiln::Target::Kind::host),
          {.block = 32,
           .rows_per_block = 1,
           .vector = 4,
           .kept = 1,
           .online = false,
           .persistent = false},
          {.block = 128,
           .rows_per_block = 4,
           .vector = kWidest,
           .kept = 2,
           .online = false,
           .persistent = false}};
}

/// What lies behind the rows of scales of blocks keeps its bits, which are those of a NaN.
template <class T>
std::size_t written_padding(Array<T>& scales, const RowShape& s) {
  const auto leading = static_cast<std::size_t>(kiln::scale_leading(s.rows));
  std::size_t written = 0;
  for (std::size_t i = 0; i < scales.size(); ++i)
    if (i % leading >= static_cast<std::size_t>(s.rows)) {
      std::uint32_t bits;
      std::memcpy(&bits, &scales[i], sizeof bits);
      written += bits != 0xffffffff;
    }
  return written;
}

/// `blocks`: scales of 128 elements, else of rows.
template <class T, bool added, class Kernel>
void check_norm(const Kernel& kernel, const RowConfig& config, bool blocks) {
  const HostInstance<Kernel> norm(kernel, config);
  for (const RowShape& s : kShapes) {
    INFO(kernel.name << " " << s.describe() << " " << template_test::describe(config));
    Array<T> x(s.elements(), s.x_offset), w(static_cast<std::size_t>(s.width), s.x_offset),
        residual(s.elements(), s.x_offset), sum(s.elements());
    x.reals(13);
    w.reals(14);
    residual.reals(15);
    sum.reals(15);
    const std::size_t count = blocks ? s.scales() : static_cast<std::size_t>(s.rows);
    Array<float8_e4m3> q(s.elements(), s.y_offset), want(s.elements());
    Array<float> scales(count), want_scales(count);
    const T *from = x.data(), *weights = w.data();
    const auto check = [&] {
      if constexpr (added)
        return kernel.check(
            {s.rows, s.width},
            {q.data(), scales.data(), residual.data(), from, weights, s.rows, s.width, 1e-5f},
            {want.data(), want_scales.data(), sum.data(), from, weights, s.rows, s.width, 1e-5f});
      else
        return kernel.check(
            {s.rows, s.width}, {q.data(), scales.data(), from, weights, s.rows, s.width, 1e-5f},
            {want.data(), want_scales.data(), from, weights, s.rows, s.width, 1e-5f});
    };
    if constexpr (added) {
      norm({s.rows, s.width}, q.data(), scales.data(), residual.data(), from, weights, s.rows,
           s.width, 1e-5f);
      kernel.reference(want.data(), want_scales.data(), sum.data(), from, weights, s.rows, s.width,
                       1e-5f);
    } else {
      norm({s.rows, s.width}, q.data(), scales.data(), from, weights, s.rows, s.width, 1e-5f);
      kernel.reference(want.data(), want_scales.data(), from, weights, s.rows, s.width, 1e-5f);
    }
    CHECK(check() == "");
    CHECK((q.margins_intact() && scales.margins_intact() && residual.margins_intact()));
    CHECK((!blocks || written_padding(scales, s) == 0));
    // What is judged is every scale, every element and every sum.
    float& last = scales[blocks ? count - static_cast<std::size_t>(kiln::scale_leading(s.rows)) +
                                      static_cast<std::size_t>(s.rows) - 1
                                : count - 1];
    const float scale = last;
    last = 1.001f * scale;
    CHECK(check().find("scales[") == 0);
    last = scale;
    q[q.size() - 1].bits ^= 0x08;
    CHECK(check().find("q[") == 0);
    if constexpr (added) {
      residual[residual.size() - 1] = T(5.0f);
      CHECK(check().find("residual[") == 0);
    }
  }
}

constexpr int kNormWidth = 300;
constexpr float kLeast = std::numeric_limits<float>::min();

/// Rows of zeros, of elements whose squares are 0 in float, with a NaN, with an infinity, of
/// squares beyond the largest float, and of ones.
struct OddRows {
  static constexpr int kRows = 6;
  std::vector<float> x = std::vector<float>(kRows * kNormWidth, 1.0f);

  OddRows() {
    for (std::size_t h = 0; h < kNormWidth; ++h)
      x[h] = 0, x[kNormWidth + h] = 1e-30f, x[4 * kNormWidth + h] = 3e19f;
    x[2 * kNormWidth + 5] = kNan;
    x[3 * kNormWidth + 290] = -kInfinity;
  }
};

/// What the rows of OddRows have become, of weights that are 1 and an eps of 0.
template <class At>
void check_odd_rows(const At& at) {
  for (int h = 0; h < kNormWidth; h += 7) {
    CAPTURE(h);
    CHECK(at(0, h) == 0);
    CHECK(at(1, h) == Approx(1e-30f / std::sqrt(kLeast)));
    CHECK(std::isnan(at(2, h)));
    CHECK(at(3, h) == 0);
    CHECK(at(4, h) == 0);
    CHECK(at(5, h) == Approx(1).epsilon(1e-5));
  }
  CHECK(std::isnan(at(3, 290)));
}

const std::vector<RowConfig> kOddConfigs{
    {128, 1, 4, 1, false, false}, {128, 4, 4, 4, false, false}, {64, 1, 4, 8, false, false}};

}  // namespace

TEMPLATE_TEST_CASE("RMSNorms as 8-bit floats, of sums and with scales of blocks: all lengths",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using T = TestType;
  for (const RowConfig& config : norm_configs<T>(rmsnorm_fp8_blocks_kernel<T>())) {
    check_norm<T, false>(rmsnorm_fp8_blocks_kernel<T>(), config, true);
    check_norm<T, true>(rmsnorm_residual_fp8_kernel<T>(), config, false);
    check_norm<T, true>(rmsnorm_residual_fp8_blocks_kernel<T>(), config, true);
  }
}

TEST_CASE("norms: zeros without an eps, NaNs, infinities, and squares that no float holds",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  OddRows odd;
  constexpr int kRows = OddRows::kRows;
  const std::vector<float> w(kNormWidth, 1.0f), b(kNormWidth, 0.5f);
  const float *const x = odd.x.data(), *const weights = w.data();
  std::vector<float> y(odd.x.size()), sum;
  const auto value = [&](int r, int h) { return y[static_cast<std::size_t>(r * kNormWidth + h)]; };
  for (const RowConfig& config : kOddConfigs) {
    INFO(template_test::describe(config));
    HostInstance<RmsNormKernel<float>>(rmsnorm_kernel<float>(), config)(
        {kRows, kNormWidth}, y.data(), x, weights, kRows, kNormWidth, 0.0f);
    check_odd_rows(value);
    sum.assign(odd.x.size(), 0);
    HostInstance<RmsNormResidualKernel<float>>(rmsnorm_residual_kernel<float>(), config)(
        {kRows, kNormWidth}, y.data(), sum.data(), x, weights, kRows, kNormWidth, 0.0f);
    check_odd_rows(value);
    HostInstance<LayerNormKernel<float>>(layernorm_kernel<float>(), config)(
        {kRows, kNormWidth}, y.data(), x, weights, b.data(), kRows, kNormWidth, 0.0f);
    for (const int r : {0, 1, 4, 5})
      CHECK((value(r, 0) == 0.5f && value(r, kNormWidth - 1) == 0.5f));
    CHECK((std::isnan(value(2, 0)) && std::isnan(value(3, 0))));
  }
  rmsnorm_kernel<float>().reference(y.data(), x, weights, kRows, kNormWidth, 0.0f);
  check_odd_rows(value);
}

TEST_CASE("RMSNorms as 8-bit floats: zeros without an eps, NaNs, infinities and large squares",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  OddRows odd;
  constexpr int kRows = OddRows::kRows, kLeading = 8;
  const std::vector<float> w(kNormWidth, 1.0f);
  const float *const x = odd.x.data(), *const weights = w.data();
  std::vector<float8_e4m3> q(odd.x.size());
  std::vector<float> scales(3 * kLeading), sum;
  bool blocks = false;
  const auto value = [&](int r, int h) {
    return static_cast<float>(q[static_cast<std::size_t>(r * kNormWidth + h)]) *
           scales[static_cast<std::size_t>(blocks ? h / 128 * kLeading + r : r)];
  };
  const auto check = [&] {
    check_odd_rows(value);
    for (int block = 0; block < (blocks ? 3 : 1); ++block)
      for (const int r : {0, 2, 3, 4})
        if (blocks || r != 2)
          CHECK(scales[static_cast<std::size_t>(block * kLeading + r)] == kLeast);
  };
  for (const RowConfig& config : kOddConfigs) {
    INFO(template_test::describe(config));
    blocks = false;
    HostInstance<RmsNormFp8Kernel<float>>(rmsnorm_fp8_kernel<float>(), config)(
        {kRows, kNormWidth}, q.data(), scales.data(), x, weights, kRows, kNormWidth, 0.0f);
    check();
    sum.assign(odd.x.size(), 0);
    HostInstance<RmsNormResidualFp8Kernel<float>>(rmsnorm_residual_fp8_kernel<float>(), config)(
        {kRows, kNormWidth}, q.data(), scales.data(), sum.data(), x, weights, kRows, kNormWidth,
        0.0f);
    check();
    blocks = true;
    HostInstance<RmsNormFp8Kernel<float>>(rmsnorm_fp8_blocks_kernel<float>(), config)(
        {kRows, kNormWidth}, q.data(), scales.data(), x, weights, kRows, kNormWidth, 0.0f);
    check();
    sum.assign(odd.x.size(), 0);
    HostInstance<RmsNormResidualFp8Kernel<float>>(rmsnorm_residual_fp8_blocks_kernel<float>(),
                                                  config)({kRows, kNormWidth}, q.data(),
                                                          scales.data(), sum.data(), x, weights,
                                                          kRows, kNormWidth, 0.0f);
    check();
  }
  rmsnorm_fp8_blocks_kernel<float>().reference(q.data(), scales.data(), x, weights, kRows,
                                               kNormWidth, 0.0f);
  check();
}

TEST_CASE("RMSNorms as 8-bit floats: their data is right, and nothing is where no elements are",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  for (const char* name :
       {"rmsnorm_fp8_blocks", "rmsnorm_residual_fp8", "rmsnorm_residual_fp8_blocks"})
    for (const char* type : {"f32", "f16", "bf16"})
      for (const kiln::Values& problem : {kiln::Values{7, 1001}, {3, 4096}, {1, 128}}) {
        const kiln::Verification v =
            runtime.tuned(kiln::shipped_kernels().make(name, type)).verify(problem);
        INFO(name << " " << type << ": " << v.why);
        CHECK(v.right);
      }
  float* const none = nullptr;
  const float* const in = nullptr;
  float8_e4m3* const q = nullptr;
  for (const auto& [rows, width] : {std::pair{0, 64}, {5, 0}}) {
    CHECK_NOTHROW(
        runtime.tuned(rmsnorm_fp8_blocks_kernel<float>())({}, q, none, in, in, rows, width, 0.0f));
    CHECK_NOTHROW(runtime.tuned(rmsnorm_residual_fp8_kernel<float>())({}, q, none, none, in, in,
                                                                      rows, width, 0.0f));
    CHECK_NOTHROW(runtime.tuned(rmsnorm_residual_fp8_blocks_kernel<float>())(
        {}, q, none, none, in, in, rows, width, 0.0f));
  }
}
