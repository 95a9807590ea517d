// Gated GEMMs on real hardware: each body, schedule and cluster, in both layouts of the weights,
// verified by the kernel's own reference with guards around each array.
#include "gemm_test.hpp"
#include "kiln/kernels/gemm_gated.hpp"
#include "kiln/kernels/interleave_gate_up.hpp"

using namespace kiln::templates;
using gpu_test::untuned_runtime, gpu_test::verified;
using kiln::bfloat16, kiln::float16;
using kiln::epilogue::Gelu, kiln::epilogue::GeluTanh, kiln::epilogue::Relu, kiln::epilogue::Silu;

namespace {

using enum GemmBody;
using C = GemmCluster;

const std::vector<Gemm> kGatedConfigs{
    {mma, 64, 128, 64, 3, 32, 32, 8, 8},
    {wgmma, 128, 128, 64, 4, 64, 128, 8, 8},
    {pingpong, 128, 128, 64, 1, 128, 64, 8, 8},
    {pingpong, 64, 96, 64, 1, 64, 64, 8, 4, C::two_n},
    {pingpong, 128, 192, 64, 1, 128, 64, 8, 8, C::two_m, 1, true},
    {tma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m},
    {tma, 256, 128, 64, 1, 128, 64, 8, 4, C::two_n, 1, true},
    {tma, 64, 128, 128, 1, 64, 64, 8, 8, C::none, 2},
    {tma, 64, 16, 64, 1, 64, 64, 8, 8, C::none, 2, false, true},
    {tma, 128, 64, 128, 1, 128, 64, 8, 8, C::none, 1, false, true},
    {tma, 64, 16, 64, 1, 64, 64, 8, 8, C::split_4, 1, false, true},
    {tma, 128, 48, 64, 1, 64, 64, 8, 8, C::none, 1, false, true, 4},
    {tma, 64, 32, 64, 1, 64, 64, 8, 8, C::none, 1, false, true, 6, true},
    {stream, 16, 32, 512, 2, 16, 64, 8, 8}};

const std::vector<GatedProblem> kGated{{1000, 264, 200}, {300, 520, 1024}, {5, 64, 64},
                                       {16, 4096, 4096}, {200, 36, 68},    {40, 1003, 2048},
                                       {1, 8, 8}};

template <class Kernel>
void check_gated_configs(const kiln::Runtime& runtime, const Kernel& kernel) {
  const bool hopper = runtime.device().limits.compute_capability == 90;
  for (const Gemm& config : kGatedConfigs) {
    if (!hopper && config.body != mma && config.body != stream) continue;
    INFO(kernel.definition().space.describe(kiln::to_values(config)));
    CHECK(verified(runtime, kernel, {config}, kGated) > 0);
  }
}

}  // namespace

TEST_CASE("gated gemm is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  check_gated_configs(runtime, gemm_gated_kernel<bfloat16, Silu>());
  check_gated_configs(runtime, gemm_gated_kernel<bfloat16, Gelu, GatedWeights::interleaved>());
  check_gated_configs(runtime, gemm_gated_kernel<float16, GeluTanh>());
  for (const GatedProblem& p : kGated)
    CHECK(runtime.tuned(gemm_gated_kernel<float, Relu>()).verify(p).right);
}

TEST_CASE("interleaved weights give what stacked ones do", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  const auto interleave = runtime.tuned(interleave_gate_up_kernel<bfloat16>());
  for (const GateUpRows& p : {GateUpRows{14336, 4096}, {1003, 1001}, {1, 1}})
    CHECK(interleave.verify(p).right);
  const int m = 300, n = 520, k = 256;
  std::vector<bfloat16> values(std::size_t(2 * n) * k);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = bfloat16(static_cast<float>(i * 7919 % 31) / 16 - 1);
  const auto w = runtime.array(values);
  const auto a = runtime.array(std::vector<bfloat16>(values.begin(), values.begin() + m * k));
  auto rows = runtime.array(std::vector<bfloat16>(std::size_t(gated_rows(n)) * k));
  auto first = runtime.array(std::vector<bfloat16>(std::size_t(m) * n));
  auto second = runtime.array(std::vector<bfloat16>(std::size_t(m) * n));
  interleave({}, rows.data(), w.data(), w.data() + n * k, n, k);
  runtime.tuned(gemm_gated_kernel<bfloat16, Silu>())({}, first.data(), a.data(), w.data(), m, n, k);
  runtime.tuned(gemm_gated_kernel<bfloat16, Silu, GatedWeights::interleaved>())(
      {}, second.data(), a.data(), rows.data(), m, n, k);
  runtime.synchronize();
  const auto one = first.download(), other = second.download();
  std::size_t different = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    different += !(static_cast<float>(one[i]) == static_cast<float>(other[i]));
  CHECK(different == 0);
}
