// Gated GEMMs of 8-bit floats on the host target: exact on ragged sizes in both layouts of the
// weights with each kind of scales, what zeros, NaNs and infinities become, the unfused way,
// verdicts and refusals.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fp8_gated_test.hpp"
#include "kiln/kernels/gated_activation.hpp"
#include "kiln/kernels/gemm_fp8_gated.hpp"
#include "kiln/kernels/interleave_gate_up.hpp"
#include "kiln/kiln.hpp"

using namespace kiln::templates;
using kiln::bfloat16, kiln::float8_e4m3;
using kiln::epilogue::Gelu, kiln::epilogue::GeluTanh, kiln::epilogue::Relu, kiln::epilogue::Silu,
    kiln::epilogue::RowScales, kiln::epilogue::TensorScales;
using template_test::Array;
using template_test::HostInstance;

namespace {

std::size_t size(GemmStride count) { return static_cast<std::size_t>(count); }

struct Fp8Product : template_test::Fp8GatedOperands {
  Fp8Product(const GatedProblem& problem, GatedScales of, bool stacked, std::size_t offset = 0)
      : Fp8GatedOperands(problem, of, stacked, offset),
        out(size(problem.m) * size(problem.n), offset) {}
  void run(const HostInstance<GemmFp8GatedKernel>& gated) {
    gated(p, out.data(), const_a(), const_w(), p.m, p.n, p.k, of_a(), of_w());
  }

  Array<bfloat16> out;
};

const std::vector<GatedProblem> kRagged{{37, 45, 40}, {1, 1, 1},  {1, 200, 33}, {70, 16, 64},
                                        {9, 8, 0},    {33, 0, 8}, {0, 8, 8},    {3, 23, 144}};

template <class Scales, GatedWeights weights, Fp8Sums sums = Fp8Sums::exact>
void check_exact(const Gemm& config, const std::vector<GatedProblem>& problems = kRagged) {
  const HostInstance<GemmFp8GatedKernel> gated(gemm_fp8_gated_kernel<Relu, Scales, weights, sums>(),
                                               config);
  for (const GatedProblem& p : problems)
    for (std::size_t offset : {0, 1}) {
      CAPTURE(config.block_m, p.m, p.n, p.k, offset);
      Fp8Product x(p, gemm_detail::gated_scales<Scales>(), weights == GatedWeights::stacked,
                   offset);
      x.run(gated);
      std::size_t wrong = x.out.margins_intact() ? 0 : 1;
      for (std::size_t i = 0; i < size(p.m); ++i)
        for (std::size_t j = 0; j < size(p.n); ++j) {
          const bfloat16 want(x.product(i, j));
          wrong += !(static_cast<float>(x.out[i * size(p.n) + j]) == static_cast<float>(want));
        }
      CHECK(wrong == 0);
    }
}

Gemm standard() {
  return gemm_fp8_gated_kernel<Relu>().space.default_config(kiln::Target::Kind::host);
}

}  // namespace

TEST_CASE("gated gemm of 8-bit floats: exact on ragged problems", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using enum GatedWeights;
  check_exact<RowScales, stacked>(standard());
  check_exact<RowScales, interleaved>({GemmBody::simt, 24, 40, 32, 4, 3, 2, 4, 3});
  check_exact<TensorScales, interleaved>(standard());
  check_exact<TensorScales, stacked, Fp8Sums::fast>({GemmBody::simt, 64, 64, 64, 2, 4, 4, 8, 8});
}

TEST_CASE("gated gemm of 8-bit floats with scales of blocks: exact on ragged problems",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using enum GatedWeights;
  using kiln::epilogue::BlockScales;
  const std::vector<GatedProblem> problems{{37, 45, 256},  {1, 1, 128}, {5, 390, 384},
                                           {70, 256, 128}, {9, 8, 0},   {33, 0, 128},
                                           {0, 8, 128}};
  const Gemm by_default =
      gemm_fp8_block_gated_kernel<Relu>().space.default_config(kiln::Target::Kind::host);
  check_exact<BlockScales, stacked, Fp8Sums::scaled>(by_default, problems);
  check_exact<BlockScales, interleaved, Fp8Sums::scaled>(by_default, problems);
  // Tiles that begin inside of a block of n, and slices that are a part of one of k.
  check_exact<BlockScales, stacked, Fp8Sums::scaled>({GemmBody::simt, 24, 80, 32, 2, 3, 8, 4, 3},
                                                     problems);
  check_exact<BlockScales, interleaved, Fp8Sums::scaled>(
      {GemmBody::simt, 64, 64, 64, 2, 4, 4, 8, 8}, problems);
}

TEST_CASE("gated gemm of 8-bit floats: zeros, NaNs and infinities", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const HostInstance<GemmFp8GatedKernel> gated(gemm_fp8_gated_kernel<Relu, RowScales>(),
                                               standard());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity();
  const GatedProblem p{20, 40, 100};
  Fp8Product x(p, GatedScales::rows, true);
  for (std::size_t i = 0; i < x.a.size(); ++i) x.a[i] = float8_e4m3(1);
  for (std::size_t i = 0; i < x.w.size(); ++i) x.w[i] = float8_e4m3(i % 2 == 0 ? 1 : 0.5f);
  for (std::size_t i = 0; i < 20; ++i) x.scales_a[i] = 1;
  for (std::size_t j = 0; j < 80; ++j) x.scales_w[j] = 1;
  for (std::size_t l = 0; l < 100; ++l) x.a[3 * 100 + l] = float8_e4m3(0);
  x.a[7 * 100 + 99].bits = 0x7f;         // a NaN in a row of A,
  x.w[11 * 100].bits = 0xff;             // of gate,
  x.w[(40 + 12) * 100 + 5].bits = 0x7f;  // and of up
  x.scales_w[5] = kNan;
  x.scales_w[40 + 6] = kNan;
  x.scales_w[40 + 8] = kInfinity;
  x.scales_w[9] = -kInfinity;  // ReLU makes 0 of it
  x.scales_a[4] = 0;
  x.scales_w[10] = -1;
  x.run(gated);
  for (std::size_t i = 0; i < 20; ++i)
    for (std::size_t j = 0; j < 40; ++j) {
      CAPTURE(i, j);
      const float c = static_cast<float>(x.out[i * 40 + j]);
      const bool zero = i == 3 || i == 4;  // of sums, or by the scale
      const bool nan = i == 7 || j == 11 || j == 12 || j == 5 || j == 6 ||
                       (zero && (j == 8 || j == 9));  // 0 * infinity
      CHECK(std::isnan(c) == nan);
      if (nan) continue;
      if (j == 8)
        CHECK(c == kInfinity);
      else
        CHECK(c == (zero || j == 9 || j == 10 ? 0.0f : 5632.0f));  // 75 * 75, as bf16
    }
}

TEST_CASE("gated gemm of 8-bit floats: data, activations and verdicts", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto right = [&](const auto& kernel, const auto& problem) {
    const kiln::Verification v = runtime.tuned(kernel).verify(problem);
    INFO(kernel.name << ": " << v.why);
    CHECK(v.right);
  };
  using enum GatedWeights;
  for (const GatedProblem& p : {GatedProblem{100, 75, 130}, {1, 8, 8}, {6, 4, 0}, {0, 8, 8}}) {
    right(gemm_fp8_gated_kernel<Silu, RowScales>(), p);
    right(gemm_fp8_gated_kernel<GeluTanh, TensorScales, interleaved>(), p);
  }
  right(gemm_fp8_gated_kernel<Gelu, RowScales, interleaved, Fp8Sums::fast>(),
        GatedProblem{33, 40, 50});
  for (const GatedProblem& p : {GatedProblem{100, 175, 384}, {1, 8, 128}, {6, 4, 0}, {0, 8, 128}}) {
    right(gemm_fp8_block_gated_kernel<Silu>(), p);
    right(gemm_fp8_block_gated_kernel<GeluTanh, interleaved>(), p);
  }

  // Each scale belongs to its sum, in front of the activation, and nothing is left out.
  const auto passes = [&](auto of) {
    auto other = gemm_fp8_gated_kernel<Silu, RowScales>();
    other.reference = [of](bfloat16* out, const float8_e4m3* a, const float8_e4m3* w, int m, int n,
                           int k, const float* scales_a, const float* scales_w) {
      for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
          float sums[2] = {};
          for (int up = 0; up < 2; ++up)
            for (int l = 0; l < k; ++l)
              sums[up] +=
                  static_cast<float>(a[i * k + l]) * static_cast<float>(w[(up * n + j) * k + l]);
          out[i * n + j] =
              bfloat16(of(sums[0], sums[1], scales_a[i], scales_w[j], scales_w[n + j]));
        }
    };
    return runtime.tuned(other).verify({30, 9, 200}).right;
  };
  const auto silu = [](float x) { return x / (1 + std::exp(-x)); };
  CHECK(passes([&](float gate, float up, float s, float of_gate, float of_up) {
    return silu(gate * s * of_gate) * up * s * of_up;
  }));
  CHECK_FALSE(passes([&](float gate, float up, float s, float of_gate, float of_up) {
    return silu(gate * s * of_up) * up * s * of_gate;
  }));
  CHECK_FALSE(passes([&](float gate, float up, float s, float of_gate, float of_up) {
    return silu(gate) * up * s * s * of_gate * of_up;
  }));
  CHECK_FALSE(passes([&](float gate, float up, float s, float of_gate, float of_up) {
    return silu(up * s * of_up) * gate * s * of_gate;
  }));
  CHECK_FALSE(passes([&](float gate, float up, float s, float of_gate, float of_up) {
    return silu(gate * s * of_gate) * up * s * of_up * 0.96f;
  }));
}

TEST_CASE("gated gemm of 8-bit floats: large problems are tuned and verified on the device",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  options.mode = kiln::Mode::tune_now;
  const kiln::Runtime runtime(options);
  kiln::TuneOptions few;
  few.max_evaluations = 2;
  const kiln::TuneResult result =
      runtime.tuned(gemm_fp8_gated_kernel<Silu, RowScales>()).tune({200, 128, 208}, few);
  for (const std::string& warning : result.warnings)
    CHECK(warning.find("the reference on the host is used") == warning.npos);
  CHECK(result.count(kiln::CandidateStatus::wrong_result) == 0);
  CHECK(result.count(kiln::CandidateStatus::measured) > 0);
}

TEST_CASE("gated gemm of 8-bit floats: what a GEMM and an activation behind it make",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const int m = 19, n = 24, k = 80;
  const kiln::Runtime runtime = template_test::host_runtime();
  Fp8Product x({m, n, k}, GatedScales::rows, true);
  for (std::size_t i = 0; i < x.scales_a.size(); ++i) x.scales_a[i] *= 1.0f / 16;
  Array<float8_e4m3> rows(size(gated_rows(n)) * size(k));
  Array<bfloat16> product(size(m) * 2 * size(n)), apart(size(m) * size(n)), swapped(apart.size());
  const auto gemm = runtime.tuned(gemm_fp8_kernel<RowScales>());
  const auto activate = runtime.tuned(gated_activation_kernel<bfloat16, Silu>());
  gemm({}, product.data(), x.const_a(), x.const_w(), m, 2 * n, k, x.of_a(), x.of_w());
  activate({}, apart.data(), product.data(), m, n);
  runtime.tuned(gemm_fp8_gated_kernel<Silu, RowScales>())({}, x.out.data(), x.const_a(),
                                                          x.const_w(), m, n, k, x.of_a(), x.of_w());
  // The other layout, by the kernel that copies weights to it: the same scales, and bits.
  runtime.tuned(interleave_gate_up_kernel<float8_e4m3>())({}, rows.data(), x.const_w(),
                                                          x.const_w() + size(n) * size(k), n, k);
  runtime.tuned(gemm_fp8_gated_kernel<Silu, RowScales, GatedWeights::interleaved>())(
      {}, swapped.data(), x.const_a(), rows.data(), m, n, k, x.of_a(), x.of_w());
  runtime.synchronize();
  std::size_t wrong = rows.margins_intact() ? 0 : 1, zeros = 0;
  for (std::size_t i = 0; i < apart.size(); ++i) {
    const float want = static_cast<float>(apart[i]), got = static_cast<float>(x.out[i]);
    wrong += !(std::abs(got - want) <= std::abs(want) / 32 + 1e-6f);  // that rounds three times
    wrong += !(got == static_cast<float>(swapped[i]));
    zeros += want == 0;
  }
  CHECK(wrong == 0);
  CHECK(zeros < apart.size() / 8);
}

TEST_CASE("gated gemm of 8-bit floats: what makes no sense is refused", "[templates]") {
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto by_rows = runtime.tuned(gemm_fp8_gated_kernel<Silu, RowScales>());
  const auto by_one = runtime.tuned(gemm_fp8_gated_kernel<Silu>());
  std::vector<bfloat16> out(64);
  std::vector<float8_e4m3> a(128), w(128);
  std::vector<float> scales(64);
  const auto says = [&](const std::string& words, const auto& call) {
    const std::string refusal = template_test::refusal(call);
    CAPTURE(words, refusal);
    CHECK(refusal.find(words) != std::string::npos);
  };
  const auto in = [](auto& array, std::size_t byte) {
    return reinterpret_cast<bfloat16*>(reinterpret_cast<char*>(array.data()) + byte);
  };
  const auto rows = [&](bfloat16* to, int m, int n, int k) {
    by_rows({}, to, a.data(), w.data(), m, n, k, scales.data(), scales.data() + 8);
  };
  says("negative", [&] { rows(out.data(), -1, 8, 8); });
  says("negative", [&] { rows(out.data(), 8, -8, 8); });
  says("negative", [&] { rows(out.data(), 8, 8, -8); });
  says("2^29", [&] { rows(out.data(), 0, (1 << 29) + 1, 0); });
  says("out overlaps A or W", [&] { rows(in(a, 62), 8, 8, 8); });
  says("out overlaps A or W", [&] { rows(in(w, 126), 8, 8, 8); });
  says("out overlaps the scales", [&] { rows(in(scales, 30), 8, 8, 8); });      // the last of A's
  says("out overlaps the scales", [&] { rows(in(scales, 23 * 4), 8, 8, 8); });  // and of W's
  const auto by_blocks = runtime.tuned(gemm_fp8_block_gated_kernel<Silu>());
  const auto blocks = [&](bfloat16* to, int m, int n, int k) {
    by_blocks({}, to, a.data(), w.data(), m, n, k, scales.data(), scales.data() + 8);
  };
  says("multiple of 128", [&] { blocks(out.data(), 1, 1, 64); });
  says("out overlaps the scales", [&] { blocks(in(scales, 14), 1, 1, 128); });     // leading is 4
  says("out overlaps the scales", [&] { blocks(in(scales, 9 * 4), 1, 1, 128); });  // up's
  says("out overlaps the scales", [&] {
    by_one({}, in(scales, 34), a.data(), w.data(), 8, 8, 8, scales.data(), scales.data() + 8);
  });
}
