// Gated GEMMs on real hardware: each body, schedule and cluster, in both layouts of the weights,
// verified by the kernel's own reference with guards around each array.
#include "gemm_test.hpp"
#include "kiln/kernels/gemm_gated.hpp"
#include "kiln/kernels/interleave_gate_up.hpp"

using namespace kiln::templates;
using gpu_test::check_each, gpu_test::each_kind, gpu_test::untuned_runtime;
using kiln::bfloat16, kiln::float16;
using kiln::epilogue::Gelu, kiln::epilogue::GeluTanh, kiln::epilogue::Relu, kiln::epilogue::Silu;

namespace {

using enum GemmBody;
using C = GemmCluster;

const std::vector<Gemm> kGatedConfigs =
    each_kind({{tma, 64, 16, 64, 1, 64, 64, 8, 8, C::split_4, 1, false, true},
               {tma, 128, 48, 64, 1, 64, 64, 8, 8, C::none, 1, false, true, 4},
               {tma, 64, 32, 64, 1, 64, 64, 8, 8, C::none, 1, false, true, 6, true},
               {stream, 16, 32, 512, 2, 16, 64, 8, 8}});

const std::vector<GatedProblem> kGated{{1000, 264, 200}, {300, 520, 1024}, {5, 64, 64},
                                       {16, 4096, 4096}, {200, 36, 68},    {40, 1003, 2048},
                                       {1, 8, 8}};

}  // namespace

TEST_CASE("gated gemm is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  check_each(runtime, gemm_gated_kernel<bfloat16, Silu>(), kGatedConfigs, kGated);
  check_each(runtime, gemm_gated_kernel<bfloat16, Gelu, GatedWeights::interleaved>(), kGatedConfigs,
             kGated);
  check_each(runtime, gemm_gated_kernel<float16, GeluTanh>(), kGatedConfigs, kGated);
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
