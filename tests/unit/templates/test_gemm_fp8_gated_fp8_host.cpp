// Gated GEMMs of 8-bit floats that leave as 8-bit floats, on the host target by the body without
// tensor maps: exact on ragged sizes with each kind of scales on both sides, what zeros, NaNs and
// infinities become, what their checks let pass, a whole MLP in 8 bits, and refusals.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fp8_gated_test.hpp"
#include "kiln/kernels/gemm_fp8.hpp"
#include "kiln/kernels/gemm_fp8_gated_fp8.hpp"
#include "kiln/kernels/quantize.hpp"
#include "kiln/kiln.hpp"

using namespace kiln::templates;
using kiln::bfloat16, kiln::float8_e4m3;
using kiln::epilogue::BlockScales, kiln::epilogue::Gelu, kiln::epilogue::GeluTanh,
    kiln::epilogue::Relu, kiln::epilogue::RowScales, kiln::epilogue::Silu,
    kiln::epilogue::TensorScales;
using template_test::Array, template_test::Fp8GatedOperands, template_test::HostInstance;
using template_test::different, template_test::different_blocks;

namespace {

template <class Scales, GatedWeights weights, Fp8Sums sums, bool blocks>
void check_to_fp8(const Gemm& config, const std::vector<GatedProblem>& problems) {
  const auto kernel = [] {
    if constexpr (blocks)
      return gemm_fp8_gated_fp8_blocks_kernel<Relu, Scales, weights, sums>();
    else
      return gemm_fp8_gated_fp8_tensor_kernel<Relu, Scales, weights, sums>();
  }();
  const HostInstance gated(kernel, config);
  for (const GatedProblem& p : problems)
    for (const std::size_t offset : {0, 1}) {
      CAPTURE(config.block_m, p.m, p.n, p.k, offset);
      // A largest magnitude leaves out NaNs.
      Fp8GatedOperands x(p, gemm_detail::gated_scales<Scales>(), weights == GatedWeights::stacked,
                         offset, blocks ? 448.0f : NAN);
      const std::size_t m = x.size(p.m), n = x.size(p.n), k = x.size(p.k);
      if (m > 2)  // a row of zeros has the least scale
        for (std::size_t l = 0; l < k; ++l) x.a[2 * k + l] = float8_e4m3(0.0f);
      std::vector<float> v;
      for (std::size_t i = 0; i < m * n; ++i) v.push_back(x.product(i / n, i % n));
      Array<float8_e4m3> q(v.size(), offset);
      const auto run = [&](auto* scale) {
        gated(p, q.data(), x.const_a(), x.const_w(), p.m, p.n, p.k, x.of_a(), x.of_w(), scale);
      };
      if constexpr (blocks) {
        Array<float> scales(x.of_n() * x.leading(), offset);
        run(scales.data());
        CHECK(different_blocks(q, scales, v, m, n) == 0);
      } else {
        for (const float scale : {3.0f, 1.0f / 32}) {  // with the latter some are beyond 448
          std::vector<float8_e4m3> want;
          for (const float value : v) want.emplace_back(value * (1 / scale));
          run(&scale);
          CHECK(different(q, want) == 0);
        }
      }
    }
}

const std::vector<GatedProblem> kOfFp8ToFp8{{37, 45, 40}, {1, 1, 1},  {3, 200, 33}, {70, 144, 64},
                                            {9, 8, 0},    {33, 0, 8}, {0, 8, 8},    {5, 390, 129}},
    kOfBlocksToFp8{{37, 45, 256}, {1, 1, 128},  {5, 390, 384}, {70, 256, 128},
                   {9, 8, 0},     {33, 0, 128}, {0, 8, 128}};

template <class Kernel>
Gemm host_default(const Kernel& kernel) {
  return kernel.space.default_config(kiln::Target::Kind::host);
}

constexpr auto kScaledSums = Fp8Sums::scaled;

}  // namespace

TEST_CASE("gated gemm of and to 8-bit floats: each body rounds scaled sums once",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using enum GatedWeights;
  using enum Fp8Sums;
  const Gemm tensor = host_default(gemm_fp8_gated_fp8_tensor_kernel<Relu>()),
             blocks = host_default(gemm_fp8_gated_fp8_blocks_kernel<Relu>());
  constexpr GemmBody kSimt = GemmBody::simt;
  check_to_fp8<RowScales, stacked, exact, false>(tensor, kOfFp8ToFp8);
  check_to_fp8<TensorScales, interleaved, fast, false>({kSimt, 24, 40, 32, 4, 3, 2, 4, 3},
                                                       kOfFp8ToFp8);
  check_to_fp8<RowScales, interleaved, exact, true>(blocks, kOfFp8ToFp8);
  check_to_fp8<TensorScales, stacked, fast, true>({kSimt, 24, 256, 32, 2, 3, 4, 4, 3}, kOfFp8ToFp8);
}

TEST_CASE("gated gemm of and to 8-bit floats: scales of blocks on both sides",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using enum GatedWeights;
  const Gemm blocks = host_default(gemm_fp8_block_gated_fp8_blocks_kernel<Relu>());
  check_to_fp8<BlockScales, stacked, kScaledSums, true>(blocks, kOfBlocksToFp8);
  // Slices that are a part of a block of k, and what a GPU without tensor cores for them has.
  check_to_fp8<BlockScales, interleaved, kScaledSums, true>(
      gemm_fp8_block_gated_fp8_blocks_kernel<Relu>().space.default_config(kiln::Target::Kind::cuda),
      kOfBlocksToFp8);
  check_to_fp8<BlockScales, interleaved, kScaledSums, false>(
      host_default(gemm_fp8_block_gated_fp8_tensor_kernel<Relu>()), kOfBlocksToFp8);
  // Tiles that begin inside of a block of n.
  check_to_fp8<BlockScales, stacked, kScaledSums, false>(
      {GemmBody::simt, 24, 80, 32, 2, 3, 8, 4, 3}, kOfBlocksToFp8);
}

TEST_CASE("gated gemm of and to 8-bit floats: zeros, NaNs and infinities", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity(),
                  kLeast = std::numeric_limits<float>::min();
  constexpr int kRows = 6, kColumns = 300;
  const GatedProblem p{kRows, kColumns, 1};
  Fp8GatedOperands x(p, GatedScales::rows, true);
  for (std::size_t i = 0; i < kRows; ++i) x.a[i] = float8_e4m3(1), x.scales_a[i] = 1;
  for (std::size_t j = 0; j < kColumns; ++j) {  // gates are 1, and v is what stands in up
    x.w[j] = float8_e4m3(1);
    x.scales_w[j] = x.scales_w[kColumns + j] = 1;
    x.w[kColumns + j] = float8_e4m3(j < 128 ? 0.0f : static_cast<float>(j % 7) - 3);
  }
  x.w[kColumns + 133] = float8_e4m3(kNan);
  x.scales_w[134] = kNan;
  x.scales_w[kColumns + 291] = -kInfinity;  // of 1
  x.a[3] = float8_e4m3(0);
  x.a[4] = float8_e4m3(kNan);
  x.scales_a[5] = 0;
  Array<float8_e4m3> q(kRows * kColumns);
  Array<float> scales(3 * 8);
  const auto at = [&](std::size_t i, std::size_t j) {
    return static_cast<float>(q[i * kColumns + j]);
  };
  const auto blocks = gemm_fp8_gated_fp8_blocks_kernel<Relu, RowScales>();
  const auto launch = [&](const auto& kernel, auto* scale) {
    HostInstance(kernel, host_default(kernel))(p, q.data(), x.const_a(), x.const_w(), kRows,
                                               kColumns, 1, x.of_a(), x.of_w(), scale);
  };
  launch(blocks, scales.data());
  CHECK((scales[0] == kLeast && at(0, 0) == 0 && at(0, 127) == 0));
  CHECK((scales[8] == 3.0f / 448 && std::isnan(at(0, 133)) && std::isnan(at(0, 134))));
  CHECK((at(0, 140) == -448 && at(0, 139) == 448));
  CHECK((scales[16] == kInfinity && std::isnan(at(0, 291)) && at(0, 292) == 0));
  CHECK((scales[3] == kLeast && scales[8 + 3] == kLeast && at(3, 140) == 0));
  CHECK((std::isnan(at(3, 133)) && std::isnan(at(3, 291)) && at(3, 292) == 0));
  CHECK((scales[4] == kLeast && scales[8 + 4] == kLeast && std::isnan(at(4, 0))));
  CHECK((scales[5] == kLeast && at(5, 140) == 0 && std::isnan(at(5, 291))));
  std::vector<float8_e4m3> want(q.size());
  std::vector<float> right(scales.size());
  blocks.reference(want.data(), x.const_a(), x.const_w(), kRows, kColumns, 1, x.of_a(), x.of_w(),
                   right.data());
  CHECK(blocks.check(p,
                     {q.data(), x.const_a(), x.const_w(), kRows, kColumns, 1, x.of_a(), x.of_w(),
                      scales.data()},
                     {want.data(), x.const_a(), x.const_w(), kRows, kColumns, 1, x.of_a(), x.of_w(),
                      right.data()}) == "");

  const float scale = 0.5f;
  launch(gemm_fp8_gated_fp8_tensor_kernel<Relu, RowScales>(), &scale);
  CHECK((at(0, 0) == 0 && at(0, 140) == -6 && at(0, 139) == 6));
  CHECK((std::abs(at(0, 291)) == 448 && std::isnan(at(0, 133)) && std::isnan(at(4, 7))));
}

TEST_CASE("gated gemm of and to 8-bit floats: data, activations and verdicts",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto right = [&](const auto& kernel, const auto& problem) {
    const kiln::Verification v = runtime.tuned(kernel).verify(problem);
    INFO(kernel.name << ": " << v.why);
    CHECK(v.right);
  };
  using enum GatedWeights;
  for (const GatedProblem& p : {GatedProblem{100, 275, 130}, {1, 8, 8}, {6, 4, 0}, {0, 8, 8}}) {
    right(gemm_fp8_gated_fp8_blocks_kernel<Silu, RowScales>(), p);
    right(gemm_fp8_gated_fp8_tensor_kernel<GeluTanh, TensorScales, interleaved>(), p);
  }
  right(gemm_fp8_gated_fp8_blocks_kernel<Gelu, TensorScales, interleaved, Fp8Sums::fast>(),
        GatedProblem{33, 140, 50});
  for (const GatedProblem& p : {GatedProblem{100, 275, 384}, {1, 8, 128}, {6, 4, 0}, {0, 8, 128}}) {
    right(gemm_fp8_block_gated_fp8_blocks_kernel<Silu>(), p);
    right(gemm_fp8_block_gated_fp8_blocks_kernel<GeluTanh, interleaved>(), p);
    right(gemm_fp8_block_gated_fp8_tensor_kernel<Gelu>(), p);
  }

  // Tensor cores' sums are a thousandth off, and may be. A hundredth is wrong, of all or of small
  // elements, and so are scales of A or of q that belong to another block.
  const GatedProblem p{60, 300, 256};
  const auto kernel = gemm_fp8_block_gated_fp8_blocks_kernel<Silu>();
  const auto verdict = [&](auto change, std::size_t by = 0) {
    auto wrong = kernel;
    wrong.reference = [change, by](float8_e4m3* q, const float8_e4m3* a, const float8_e4m3* w,
                                   int m, int n, int k, const float* scales_a,
                                   const float* scales_w, float* scales) {
      // Sums of 128 k each, by the product with bf16 results, which has its own test.
      std::vector<float> sums[2], v;
      for (int up = 0; up < 2; ++up)
        for (int i = 0; i < m; ++i)
          for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int l = 0; l < k; ++l)
              sum += static_cast<float>(a[i * k + l]) *
                     static_cast<float>(w[(up * n + j) * k + l]) *
                     scales_a[l / 128 * kiln::scale_leading(m) + (i + static_cast<int>(by)) % m] *
                     scales_w[(j / 128 + up * kiln::scale_blocks(n)) * (k / 128) + l / 128];
            sums[up].push_back(sum);
          }
      for (std::size_t i = 0; i < sums[0].size(); ++i)
        v.push_back(change(sums[0][i] / (1 + std::exp(-sums[0][i])) * sums[1][i]));
      quantize_blocks_kernel<float>().reference(q, scales, v.data(), m, n);
    };
    return runtime.tuned(wrong).verify(p).right;
  };
  CHECK(verdict([](float v) { return v; }));
  CHECK(verdict([](float v) { return v * 1.0005f; }));
  CHECK_FALSE(verdict([](float v) { return v * 0.99f; }));
  CHECK_FALSE(verdict([](float v) { return std::fabs(v) < 0.5f ? v * 0.97f : v; }));
  CHECK_FALSE(verdict([](float v) { return v; }, 1));
}

TEST_CASE("gated gemm of and to 8-bit floats: an MLP whose two GEMMs pass 8 bits",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const int m = 21, inner = 256, hidden = 40, k = 128;
  const kiln::Runtime runtime = template_test::host_runtime();
  Fp8GatedOperands x({m, inner, k}, GatedScales::blocks, true);
  Array<float8_e4m3> q(x.size(m) * inner), weights(x.size(hidden) * inner);
  weights.integers(3, 9);
  Array<float> scales(x.of_n() * x.leading());
  std::vector<float> ones(2, 1.0f);
  Array<bfloat16> y(x.size(m) * hidden);
  runtime.tuned(gemm_fp8_block_gated_fp8_blocks_kernel<Relu>())(
      {}, q.data(), x.const_a(), x.const_w(), m, inner, k, x.of_a(), x.of_w(), scales.data());
  runtime.tuned(gemm_fp8_block_kernel<>())({}, y.data(), q.data(), weights.data(), m, hidden, inner,
                                           scales.data(), ones.data());
  runtime.synchronize();
  std::size_t wrong = 0;
  double squares = 0;
  for (std::size_t i = 0; i < x.size(m); ++i)
    for (std::size_t j = 0; j < x.size(hidden); ++j) {
      float want = 0, sum_of_magnitudes = 0;
      for (std::size_t l = 0; l < x.size(inner); ++l) {
        const float term = x.product(i, l) * static_cast<float>(weights[j * x.size(inner) + l]);
        want += term;
        sum_of_magnitudes += std::abs(term);
      }
      // Each factor is off by 1/16 at most.
      wrong += !(std::abs(static_cast<float>(y[i * x.size(hidden) + j]) - want) <=
                 sum_of_magnitudes / 16 + std::abs(want) / 128);
      squares += static_cast<double>(want) * static_cast<double>(want);
    }
  CHECK(wrong == 0);
  CHECK(squares > 0);
}

TEST_CASE("gated gemm of and to 8-bit floats: what makes no sense is refused", "[templates]") {
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto tensor = runtime.tuned(gemm_fp8_gated_fp8_tensor_kernel<Silu, RowScales>());
  const auto blocks = runtime.tuned(gemm_fp8_block_gated_fp8_blocks_kernel<Silu>());
  std::vector<float8_e4m3> q(1024), a(1024), w(2048);
  std::vector<float> of_a(64), of_w(64), scales(64);
  const auto says = [&](const std::string& words, const auto& call) {
    const std::string refusal = template_test::refusal(call);
    CAPTURE(words, refusal);
    CHECK(refusal.find(words) != std::string::npos);
  };
  const auto in = [](std::vector<float>& array, std::size_t byte) {
    return reinterpret_cast<float8_e4m3*>(array.data()) + byte;
  };
  const auto by_rows = [&](float8_e4m3* to, int m, int n, int k) {
    tensor({}, to, a.data(), w.data(), m, n, k, of_a.data(), of_w.data(), scales.data());
  };
  const auto by_blocks = [&](float8_e4m3* to, int m, int n, int k, float* of_q) {
    blocks({}, to, a.data(), w.data(), m, n, k, of_a.data(), of_w.data(), of_q);
  };
  says("negative", [&] { by_rows(q.data(), -1, 8, 8); });
  says("negative", [&] { by_blocks(q.data(), 8, -8, 128, scales.data()); });
  says("multiple of 128", [&] { by_blocks(q.data(), 8, 8, 64, scales.data()); });
  says("q overlaps A", [&] { by_rows(a.data() + 63, 8, 8, 8); });
  says("q overlaps A", [&] { by_blocks(w.data() + 2047, 8, 8, 128, scales.data()); });
  says("q overlaps the scales", [&] { by_rows(in(of_a, 28), 8, 8, 8); });
  says("q overlaps the scales", [&] { by_rows(in(of_w, 60), 8, 8, 8); });
  says("q overlaps the scales", [&] { by_rows(in(scales, 3), 8, 8, 8); });
  says("q overlaps the scales", [&] { by_blocks(in(scales, 28), 8, 8, 128, scales.data()); });
  says("the scales overlap A",
       [&] { by_blocks(q.data(), 8, 8, 128, reinterpret_cast<float*>(a.data()) + 250); });
  says("the scales overlap those of A or W",
       [&] { by_blocks(q.data(), 8, 8, 128, of_a.data() + 7); });
  says("the scales overlap those of A or W",
       [&] { by_blocks(q.data(), 8, 8, 128, of_w.data() + 1); });
}
