// GEMMs of 8-bit floats on real hardware: each schedule, cluster and way to share k, with exact and fast
// sums, verified by the kernel's own reference.
#include "gemm_test.hpp"
#include "kiln/kernels/gemm_fp8.hpp"

using namespace kiln::templates;
using gpu_test::untuned_runtime, gpu_test::verified;
using kiln::epilogue::Bias, kiln::epilogue::Gelu, kiln::epilogue::RowScales,
    kiln::epilogue::TensorScales;

namespace {

using enum GemmBody;
using C = GemmCluster;

const std::vector<Gemm> kBoth{
    {simt, 64, 64, 64, 2, 4, 4, 8, 8},
    {pingpong, 128, 128, 128, 1, 128, 64, 8, 8},
    {pingpong, 64, 96, 128, 1, 64, 64, 8, 4, C::two_n},
    {pingpong, 64, 192, 128, 1, 64, 64, 8, 8, C::two_m, 1, true},
    {tma, 128, 208, 128, 1, 64, 64, 8, 8, C::two_m},
    {tma, 256, 128, 128, 1, 128, 64, 8, 8, C::two_n},
    {tma, 128, 128, 128, 1, 64, 64, 8, 8, C::two_m},
    {tma, 64, 64, 128, 1, 64, 64, 8, 8, C::none, 2, false, false, 1, false, true},
    {tma, 128, 96, 128, 1, 64, 64, 8, 8, C::split_3},
    {tma, 64, 16, 128, 1, 64, 64, 8, 8, C::none, 2, false, true},
    {tma, 128, 48, 128, 1, 64, 64, 8, 8, C::split_4, 1, false, true},
    {tma, 128, 128, 128, 1, 64, 64, 8, 8, C::none, 1, false, false, 2, false},
    {tma, 64, 96, 128, 1, 64, 64, 8, 8, C::none, 1, false, false, 4, true}};
const std::vector<Gemm> kFast{{tma, 128, 256, 128, 1, 64, 64, 8, 8, C::two_m},
                              {tma, 256, 176, 128, 1, 128, 64, 8, 8, C::two_n},
                              {pingpong, 128, 192, 128, 1, 128, 64, 8, 8, C::two_n},
                              {tma, 64, 64, 256, 1, 64, 64, 8, 8, C::none, 2}};

const std::vector<GemmProblem> kProblems{{128, 256, 128}, {16, 72, 48},     {8, 1032, 272},
                                         {264, 328, 528}, {300, 512, 2048}, {67, 35, 33},
                                         {7, 129, 0}};

}  // namespace

TEST_CASE("gemm of 8-bit floats is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  CHECK(verified(runtime, gemm_fp8_kernel<>(), kBoth, kProblems) > 0);
  CHECK(verified(runtime, gemm_fp8_kernel<RowScales>(), kBoth, kProblems) > 0);
  CHECK(verified(runtime, gemm_fp8_kernel<Fp8Epilogue<RowScales, Bias<kiln::bfloat16>, Gelu>>(),
                 kBoth, kProblems) > 0);
  for (const auto* configs : {&kBoth, &kFast})
    CHECK(verified(runtime, gemm_fp8_kernel<TensorScales, Fp8Sums::fast>(), *configs, kProblems) >
          0);
}
