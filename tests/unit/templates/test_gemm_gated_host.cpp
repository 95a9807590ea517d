// Gated GEMMs on the host target, by the bodies without tensor maps: exact on ragged sizes, in both
// layouts of the weights; the copy from one to the other; verdicts and refusals.
#include <algorithm>
#include <cmath>

#include "kiln/kernels/gemm_gated.hpp"
#include "kiln/kernels/interleave_gate_up.hpp"
#include "kiln/kiln.hpp"
#include "template_test.hpp"

using namespace kiln::templates;
using kiln::bfloat16, kiln::float16;
using kiln::epilogue::Gelu, kiln::epilogue::GeluTanh, kiln::epilogue::Relu, kiln::epilogue::Silu;
using template_test::Array;
using template_test::HostInstance;

namespace {

kiln::RuntimeOptions gated_options(kiln::Mode mode) {
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  options.mode = mode;
  return options;
}

/// Elements of out that are not as they should be, with ReLU, where the weights are in W.
template <class T, GatedWeights weights>
std::size_t wrong_results(const HostInstance<GemmGatedKernel<T>>& gated, const GatedProblem& p,
                          std::size_t offset) {
  constexpr bool kStacked = weights == GatedWeights::stacked;
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
             k = static_cast<std::size_t>(p.k);
  const auto rows = kStacked ? 2 * n : static_cast<std::size_t>(gated_rows(p.n));
  Array<T> out(m * n, offset), a(m * k, offset), w(rows * k, offset);
  a.integers(2, 1);
  w.integers(2, 2);
  std::vector<float> want(m * n);
  std::vector<bool> used(rows);
  for (std::size_t j = 0; j < n; ++j) {
    const std::size_t gate = kStacked ? j : j / 8 * 16 + j % 8, up = gate + (kStacked ? n : 8);
    used[gate] = used[up] = true;
    for (std::size_t i = 0; i < m; ++i) {
      float of_gate = 0, of_up = 0;
      for (std::size_t l = 0; l < k; ++l) {
        of_gate += static_cast<float>(a[i * k + l]) * static_cast<float>(w[gate * k + l]);
        of_up += static_cast<float>(a[i * k + l]) * static_cast<float>(w[up * k + l]);
      }
      want[i * n + j] = static_cast<float>(T(std::max(of_gate, 0.0f) * of_up));
    }
  }
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t l = 0; l < k && !used[row]; ++l) w[row * k + l] = T(NAN);
  gated(p, out.data(), static_cast<const T*>(a.data()), static_cast<const T*>(w.data()), p.m, p.n,
        p.k);
  std::size_t wrong = out.margins_intact() ? 0 : want.size() + 1;
  for (std::size_t i = 0; i < want.size(); ++i) wrong += !(static_cast<float>(out[i]) == want[i]);
  return wrong;
}

template <class T, GatedWeights weights>
void check_gated(const Gemm& config, const std::vector<GatedProblem>& problems,
                 const std::vector<std::string>& options = {}) {
  const HostInstance<GemmGatedKernel<T>> gated(gemm_gated_kernel<T, Relu, weights>(), config,
                                               options);
  for (const GatedProblem& p : problems)
    for (std::size_t offset : {0, 1}) {
      CAPTURE(config.block_m, p.m, p.n, p.k, offset);
      CHECK(wrong_results<T, weights>(gated, p, offset) == 0);
    }
}

const std::vector<GatedProblem> kGatedShapes{{37, 45, 40}, {1, 1, 1},  {1, 200, 33}, {70, 16, 64},
                                             {9, 8, 0},    {33, 0, 8}, {0, 8, 8},    {3, 23, 129}};

}  // namespace

TEST_CASE("gated gemm: each body multiplies what gate and up make of each element",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using enum GatedWeights;
  const Gemm standard =
      gemm_gated_kernel<float, Relu>().space.default_config(kiln::Target::Kind::host);
  check_gated<float, stacked>(standard, kGatedShapes);
  check_gated<float16, interleaved>({GemmBody::simt, 24, 40, 32, 4, 3, 2, 4, 3}, kGatedShapes);
  const std::vector<GatedProblem> few{{37, 45, 40}, {1, 1, 8}, {3, 24, 128}};
  check_gated<bfloat16, stacked>({GemmBody::mma, 32, 64, 32, 2, 16, 32, 8, 1}, few,
                                 {"-DKILN_EMULATE_MMA"});
  const std::vector<GatedProblem> narrow{{8, 45, 136}, {1, 8, 64}, {5, 20, 8}};
  check_gated<bfloat16, stacked>({GemmBody::stream, 8, 32, 64, 1, 8, 64, 8, 8}, narrow);
  check_gated<bfloat16, interleaved>({GemmBody::stream, 8, 16, 128, 2, 8, 64, 8, 8}, narrow);
}

TEST_CASE("gated gemm: data, activations and verdicts", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(gated_options(kiln::Mode::untuned));
  const auto right = [&](const auto& kernel, const auto& problem) {
    const kiln::Verification v = runtime.tuned(kernel).verify(problem);
    INFO(kernel.name << ": " << v.why);
    CHECK(v.right);
  };
  for (const GatedProblem& p : {GatedProblem{100, 75, 130}, {1, 8, 8}, {6, 4, 0}, {0, 8, 8}}) {
    right(gemm_gated_kernel<bfloat16, Silu>(), p);
    right(gemm_gated_kernel<float, GeluTanh, GatedWeights::interleaved>(), p);
  }
  right(gemm_gated_kernel<float16, Gelu>(), GatedProblem{33, 40, 50});
  // The factors are not each other's, and neither is left out.
  const auto differs = [&](auto of) {
    auto wrong = gemm_gated_kernel<float, Silu>();
    wrong.reference = [of](float* out, const float* a, const float* w, int m, int n, int k) {
      for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
          float sums[2] = {};
          for (int up = 0; up < 2; ++up)
            for (int l = 0; l < k; ++l) sums[up] += a[i * k + l] * w[(up * n + j) * k + l];
          out[i * n + j] = of(sums[0], sums[1]);
        }
    };
    return !runtime.tuned(wrong).verify({30, 9, 10}).right;
  };
  const auto silu = [](float x) { return x / (1 + std::exp(-x)); };
  CHECK_FALSE(differs([&](float gate, float up) { return silu(gate) * up; }));
  CHECK(differs([&](float gate, float up) { return silu(up) * gate; }));
  CHECK(differs([&](float gate, float) { return silu(gate); }));
}

TEST_CASE("gated gemm: large problems are tuned and verified on the device", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(gated_options(kiln::Mode::tune_now));
  kiln::TuneOptions few;
  few.max_evaluations = 2;
  const kiln::TuneResult result =
      runtime.tuned(gemm_gated_kernel<bfloat16, Silu>()).tune({200, 128, 200}, few);
  for (const std::string& warning : result.warnings)
    CHECK(warning.find("the reference on the host is used") == warning.npos);
  CHECK(result.count(kiln::CandidateStatus::wrong_result) == 0);
  CHECK(result.count(kiln::CandidateStatus::measured) > 0);
}

TEST_CASE("interleave_gate_up: rows are copied, and those that nobody has are zeros",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const InterleaveGateUp& config : {InterleaveGateUp{64, 8}, {128, 1}}) {
    const HostInstance<InterleaveGateUpKernel<bfloat16>> copy(interleave_gate_up_kernel<bfloat16>(),
                                                              config);
    for (const GateUpRows& p : {GateUpRows{20, 72}, {8, 1000}, {1, 1}, {0, 8}, {5, 0}})
      for (std::size_t offset : {0, 1}) {
        CAPTURE(config.block, p.n, p.k, offset);
        const auto n = static_cast<std::size_t>(p.n), k = static_cast<std::size_t>(p.k);
        const auto rows = static_cast<std::size_t>(gated_rows(p.n));
        Array<bfloat16> out(rows * k, offset), gate(n * k, offset), up(n * k, offset);
        gate.reals(1);
        up.reals(2);
        copy(p, out.data(), static_cast<const bfloat16*>(gate.data()),
             static_cast<const bfloat16*>(up.data()), p.n, p.k);
        std::size_t wrong = out.margins_intact() ? 0 : 1;
        for (std::size_t row = 0; row < rows; ++row)
          for (std::size_t l = 0; l < k; ++l) {
            const std::size_t from = row / 16 * 8 + row % 8;
            Array<bfloat16>& of = row % 16 < 8 ? gate : up;
            const float want = from < n ? static_cast<float>(of[from * k + l]) : 0;
            wrong += !(static_cast<float>(out[row * k + l]) == want);
          }
        CHECK(wrong == 0);
      }
  }
  const kiln::Runtime runtime(gated_options(kiln::Mode::untuned));
  CHECK(runtime.tuned(interleave_gate_up_kernel<float>()).verify({37, 65}).right);
}

TEST_CASE("gated gemm: what makes no sense is refused", "[templates]") {
  const kiln::Runtime runtime(gated_options(kiln::Mode::untuned));
  const auto gated = runtime.tuned(gemm_gated_kernel<float, Silu>());
  const auto interleave = runtime.tuned(interleave_gate_up_kernel<float>());
  std::vector<float> out(64), a(64), w(256);
  const auto says = [&](const std::string& words, const auto& call) {
    CHECK(template_test::refusal(call).find(words) != std::string::npos);
  };
  says("negative", [&] { gated({}, out.data(), a.data(), w.data(), -1, 8, 8); });
  says("negative", [&] { gated({}, out.data(), a.data(), w.data(), 8, -8, 8); });
  says("2^29", [&] { gated({}, out.data(), a.data(), w.data(), 1, (1 << 29) + 1, 0); });
  says("out overlaps", [&] { gated({}, out.data(), out.data() + 63, w.data(), 8, 8, 8); });
  says("out overlaps", [&] { gated({}, w.data() + 127, a.data(), w.data(), 8, 8, 8); });
  says("negative", [&] { interleave({}, out.data(), a.data(), w.data(), 8, -8); });
  says("out overlaps", [&] { interleave({}, w.data() + 31, a.data(), w.data(), 4, 8); });
}
