// Gated GEMMs that leave as 8-bit floats, on the host target by the bodies without tensor maps:
// exact on ragged sizes with both kinds of scales, what their checks let pass, and refusals.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fp8_gated_test.hpp"
#include "kiln/kernels/gemm_fp8.hpp"
#include "kiln/kernels/gemm_gated_fp8.hpp"
#include "kiln/kernels/quantize.hpp"
#include "kiln/kiln.hpp"

using namespace kiln::templates;
using kiln::bfloat16, kiln::float16, kiln::float8_e4m3;
using kiln::epilogue::Gelu, kiln::epilogue::GeluTanh, kiln::epilogue::Relu, kiln::epilogue::Silu;
using template_test::Array;
using template_test::HostInstance, template_test::different, template_test::different_blocks;

namespace {

/// Integers, so that with ReLU all products are exact. Weights that nobody has are `others`.
template <class T, GatedWeights weights>
struct ExactProducts {
  static constexpr bool kStacked = weights == GatedWeights::stacked;

  ExactProducts(const GatedProblem& problem, std::size_t offset, float others)
      : p(problem),
        a(size(p.m) * size(p.k), offset),
        w((kStacked ? 2 * size(p.n) : size(gated_rows(p.n))) * size(p.k), offset),
        v(size(p.m) * size(p.n)) {
    const std::size_t m = size(p.m), n = size(p.n), k = size(p.k);
    a.integers(2, 1);
    w.integers(2, 2);
    if (m > 2)  // a row of zeros has the least scale
      for (std::size_t l = 0; l < k; ++l) a[2 * k + l] = T(0.0f);
    std::vector<bool> used(k == 0 ? 0 : w.size() / k);
    for (std::size_t j = 0; j < n && k > 0; ++j) {
      const std::size_t gate = kStacked ? j : j / 8 * 16 + j % 8, up = gate + (kStacked ? n : 8);
      used[gate] = used[up] = true;
      for (std::size_t i = 0; i < m; ++i) {
        float sums[2] = {};
        for (std::size_t l = 0; l < k; ++l) {
          sums[0] += static_cast<float>(a[i * k + l]) * static_cast<float>(w[gate * k + l]);
          sums[1] += static_cast<float>(a[i * k + l]) * static_cast<float>(w[up * k + l]);
        }
        v[i * n + j] = std::max(sums[0], 0.0f) * sums[1];
      }
    }
    for (std::size_t row = 0; row < used.size(); ++row)
      for (std::size_t l = 0; l < k && !used[row]; ++l) w[row * k + l] = T(others);
  }
  static std::size_t size(GemmStride count) { return static_cast<std::size_t>(count); }
  const T* a_data() { return a.data(); }
  const T* w_data() { return w.data(); }

  GatedProblem p;
  Array<T> a, w;
  std::vector<float> v;
};

template <class T, GatedWeights weights>
void check_tensor(const Gemm& config, const std::vector<GatedProblem>& problems,
                  const std::vector<std::string>& options = {}) {
  const HostInstance<GemmGatedFp8TensorKernel<T>> gated(
      gemm_gated_fp8_tensor_kernel<T, Relu, weights>(), config, options);
  for (const GatedProblem& p : problems)
    for (const std::size_t offset : {0, 1}) {
      CAPTURE(config.block_m, p.m, p.n, p.k, offset);
      ExactProducts<T, weights> exact(p, offset, NAN);
      Array<float8_e4m3> q(exact.v.size(), offset);
      for (const float scale : {3.0f, 1.0f / 32}) {  // with the latter some are beyond 448
        std::vector<float8_e4m3> want;
        for (const float v : exact.v) want.emplace_back(v * (1 / scale));
        gated(p, q.data(), exact.a_data(), exact.w_data(), p.m, p.n, p.k, &scale);
        CHECK(different(q, want) == 0);
      }
    }
}

template <class T, GatedWeights weights>
void check_blocks(const Gemm& config, const std::vector<GatedProblem>& problems,
                  const std::vector<std::string>& options = {}) {
  const HostInstance<GemmGatedFp8BlocksKernel<T>> gated(
      gemm_gated_fp8_blocks_kernel<T, Relu, weights>(), config, options);
  for (const GatedProblem& p : problems)
    for (const std::size_t offset : {0, 1}) {
      CAPTURE(config.block_m, p.m, p.n, p.k, offset);
      ExactProducts<T, weights> exact(p, offset, 10000);  // a largest magnitude leaves out NaNs
      const auto leading = static_cast<std::size_t>(kiln::scale_leading(p.m));
      const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n);
      Array<float8_e4m3> q(exact.v.size(), offset);
      Array<float> scales((n + 127) / 128 * leading, offset);
      gated(p, q.data(), exact.a_data(), exact.w_data(), p.m, p.n, p.k, scales.data());
      CHECK(different_blocks(q, scales, exact.v, m, n) == 0);
    }
}

const std::vector<GatedProblem> kFp8Shapes{{37, 45, 40}, {1, 1, 1},  {3, 200, 33}, {70, 144, 64},
                                           {9, 8, 0},    {33, 0, 8}, {0, 8, 8},    {5, 390, 129}};
constexpr GemmBody kSimt = GemmBody::simt, kMma = GemmBody::mma;

}  // namespace

TEST_CASE("gated gemm with a given scale: each body rounds what gate and up make to 8 bits",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using enum GatedWeights;
  const auto standard =
      gemm_gated_fp8_tensor_kernel<float, Relu>().space.default_config(kiln::Target::Kind::host);
  check_tensor<float, stacked>(standard, kFp8Shapes);
  check_tensor<float16, interleaved>({kSimt, 24, 40, 32, 4, 3, 2, 4, 3}, kFp8Shapes);
  // A warp's tile of 16, 32, 64 columns of gate and up: each way to exchange what is stored.
  const std::vector<GatedProblem> few{{37, 45, 40}, {3, 24, 128}, {20, 96, 8}};
  check_tensor<bfloat16, stacked>({kMma, 32, 64, 32, 2, 16, 16, 8, 1}, few, {"-DKILN_EMULATE_MMA"});
  check_tensor<bfloat16, interleaved>({kMma, 32, 64, 32, 2, 16, 64, 8, 1}, few,
                                      {"-DKILN_EMULATE_MMA"});
  const std::vector<GatedProblem> narrow{{8, 45, 136}, {1, 8, 64}, {5, 20, 8}};
  check_tensor<bfloat16, stacked>({GemmBody::stream, 8, 32, 64, 1, 8, 64, 8, 8}, narrow);
}

TEST_CASE("gated gemm with scales of blocks: each body scales 128 elements of a row",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using enum GatedWeights;
  const auto standard =
      gemm_gated_fp8_blocks_kernel<float, Relu>().space.default_config(kiln::Target::Kind::host);
  check_blocks<float, stacked>(standard, kFp8Shapes);
  check_blocks<float16, interleaved>({kSimt, 24, 256, 32, 2, 3, 4, 4, 3}, kFp8Shapes);
  const std::vector<GatedProblem> few{{37, 45, 40}, {3, 264, 32}};
  check_blocks<bfloat16, stacked>({kMma, 32, 256, 32, 2, 16, 64, 8, 1}, few,
                                  {"-DKILN_EMULATE_MMA"});
  check_blocks<bfloat16, interleaved>({kMma, 32, 256, 32, 2, 32, 32, 8, 1}, few,
                                      {"-DKILN_EMULATE_MMA"});
}

TEST_CASE("gated gemm to 8-bit floats: zeros, NaNs and infinities", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  // Row r of A chooses the r-th of k, gates are 1, so v is what stands in up.
  constexpr int kRows = 3, kColumns = 300;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> a(kRows, 1.0f), w(2 * kColumns, 1.0f), scales(3 * 4);
  float* const up = w.data() + kColumns;
  std::vector<float8_e4m3> q(kRows * kColumns);
  const auto at = [&](int j) { return static_cast<float>(q[static_cast<std::size_t>(j)]); };
  for (int j = 0; j < kColumns; ++j) up[j] = j < 128 ? 0.0f : static_cast<float>(j % 7) - 3;
  up[133] = kNan;
  up[290] = -kInfinity;
  const float *const from = a.data(), *const weights = w.data();
  const GatedProblem p{kRows, kColumns, 1};

  const auto blocks = gemm_gated_fp8_blocks_kernel<float, Relu>();
  const HostInstance<GemmGatedFp8BlocksKernel<float>> by_blocks(
      blocks, blocks.space.default_config(kiln::Target::Kind::host));
  by_blocks(p, q.data(), from, weights, kRows, kColumns, 1, scales.data());
  CHECK((scales[0] == std::numeric_limits<float>::min() && at(0) == 0 && at(127) == 0));
  CHECK((scales[4 + 1] == 3.0f / 448 && std::isnan(at(133)) && at(140) == -448 && at(139) == 448));
  CHECK((scales[8 + 2] == kInfinity && std::isnan(at(290)) && at(291) == 0));
  std::vector<float8_e4m3> want(q.size());
  std::vector<float> right(scales.size());
  blocks.reference(want.data(), from, weights, kRows, kColumns, 1, right.data());
  CHECK(blocks.check(p, {q.data(), from, weights, kRows, kColumns, 1, scales.data()},
                     {want.data(), from, weights, kRows, kColumns, 1, right.data()}) == "");

  const auto tensor = gemm_gated_fp8_tensor_kernel<float, Relu>();
  const HostInstance<GemmGatedFp8TensorKernel<float>> by_one(
      tensor, tensor.space.default_config(kiln::Target::Kind::host));
  const float scale = 0.5f, *const given = &scale;
  by_one(p, q.data(), from, weights, kRows, kColumns, 1, given);
  CHECK((at(0) == 0 && at(140) == -6 && at(139) == 6 && at(290) == -448 && std::isnan(at(133))));
}

TEST_CASE("gated gemm to 8-bit floats: data, activations and verdicts", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto right = [&](const auto& kernel, const auto& problem) {
    const kiln::Verification v = runtime.tuned(kernel).verify(problem);
    INFO(kernel.name << ": " << v.why);
    CHECK(v.right);
  };
  for (const GatedProblem& p :
       {GatedProblem{100, 275, 130}, {60, 129, 300}, {1, 8, 8}, {6, 4, 0}, {0, 8, 8}}) {
    right(gemm_gated_fp8_blocks_kernel<bfloat16, Silu>(), p);
    right(gemm_gated_fp8_blocks_kernel<float, GeluTanh, GatedWeights::interleaved>(), p);
    right(gemm_gated_fp8_tensor_kernel<bfloat16, Silu, GatedWeights::interleaved>(), p);
  }
  right(gemm_gated_fp8_tensor_kernel<float16, Gelu>(), GatedProblem{33, 140, 50});

  // What rounds to bf16 first, or is a thousandth off, is wrong.
  const GatedProblem p{100, 300, 200};
  const auto verdict = [&](auto change) {
    auto wrong = gemm_gated_fp8_blocks_kernel<float, Silu>();
    wrong.reference = [change](float8_e4m3* q, const float* a, const float* w, int m, int n, int k,
                               float* scales) {
      std::vector<float> v(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
      gemm_gated_kernel<float, Silu>().reference(v.data(), a, w, m, n, k);
      for (float& value : v) value = change(value);
      quantize_blocks_kernel<float>().reference(q, scales, v.data(), m, n);
    };
    return runtime.tuned(wrong).verify(p).right;
  };
  CHECK(verdict([](float v) { return v; }));
  CHECK(verdict([](float v) { return v * 1.000001f; }));
  CHECK_FALSE(verdict([](float v) { return static_cast<float>(bfloat16(v)); }));
  CHECK_FALSE(verdict([](float v) { return v * 0.999f; }));
  // So are elements whose block has the right scale.
  CHECK_FALSE(verdict([](float v) { return std::fabs(v) < 1 ? v * 0.97f : v; }));
}

TEST_CASE("gated gemm to 8-bit floats: the block-scaled GEMM reads what it writes",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const int m = 21, inner = 256, hidden = 40, k = 48;
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto gated = runtime.tuned(gemm_gated_fp8_blocks_kernel<bfloat16, Relu>());
  const auto down = runtime.tuned(gemm_fp8_block_kernel<>());
  ExactProducts<bfloat16, GatedWeights::stacked> exact({m, inner, k}, 0, NAN);
  Array<float8_e4m3> q(exact.v.size()), weights(std::size_t(hidden) * inner);
  weights.integers(3, 9);
  Array<float> scales(std::size_t(2 * kiln::scale_leading(m)));
  std::vector<float> ones(2, 1.0f);
  Array<bfloat16> y(std::size_t(m) * hidden);
  gated({}, q.data(), exact.a_data(), exact.w_data(), m, inner, k, scales.data());
  down({}, y.data(), q.data(), weights.data(), m, hidden, inner, scales.data(), ones.data());
  runtime.synchronize();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < std::size_t(m); ++i)
    for (std::size_t j = 0; j < std::size_t(hidden); ++j) {
      float want = 0, sum_of_magnitudes = 0;
      for (std::size_t l = 0; l < std::size_t(inner); ++l) {
        const float term =
            exact.v[i * inner + l] * static_cast<float>(weights[j * std::size_t(inner) + l]);
        want += term;
        sum_of_magnitudes += std::abs(term);
      }
      // Each factor is off by 1/16 at most.
      wrong += !(std::abs(static_cast<float>(y[i * std::size_t(hidden) + j]) - want) <=
                 sum_of_magnitudes / 16 + std::abs(want) / 128);
    }
  CHECK(wrong == 0);
}

TEST_CASE("gated gemm to 8-bit floats: what makes no sense is refused", "[templates]") {
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto tensor = runtime.tuned(gemm_gated_fp8_tensor_kernel<float, Silu>());
  const auto blocks = runtime.tuned(gemm_gated_fp8_blocks_kernel<float, Silu>());
  std::vector<float> a(64), w(256), scales(64);
  std::vector<float8_e4m3> q(64);
  const auto says = [&](const std::string& words, const auto& call) {
    CHECK(template_test::refusal(call).find(words) != std::string::npos);
  };
  const auto within = [](std::vector<float>& array, std::size_t at) {
    return reinterpret_cast<float8_e4m3*>(array.data()) + at;
  };
  says("negative", [&] { tensor({}, q.data(), a.data(), w.data(), -1, 8, 8, scales.data()); });
  says("negative", [&] { blocks({}, q.data(), a.data(), w.data(), 8, -8, 8, scales.data()); });
  says("q overlaps A",
       [&] { tensor({}, within(a, 255), a.data(), w.data(), 8, 8, 8, scales.data()); });
  says("q overlaps A",
       [&] { blocks({}, within(w, 511), a.data(), w.data(), 8, 8, 8, scales.data()); });
  says("q overlaps the scales",
       [&] { tensor({}, within(scales, 0), a.data(), w.data(), 8, 8, 8, scales.data() + 15); });
  says("the scales overlap A",
       [&] { blocks({}, q.data(), a.data(), w.data(), 8, 8, 8, a.data() + 60); });
}
