// GEMMs of 8-bit floats on real hardware: each schedule, cluster and way to share k, with exact and
// fast sums, verified by the kernel's own reference.
#include "gemm_test.hpp"
#include "kiln/kernels/gemm_fp8.hpp"

using namespace kiln::templates;
using gpu_test::check_each, gpu_test::untuned_runtime;
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

const std::vector<GemmProblem> kProblems{{128, 256, 128}, {16, 72, 48},      {8, 1032, 272},
                                         {264, 328, 528}, {300, 512, 2048},  {67, 35, 33},
                                         {72, 35, 2048},  {128, 256, 32768}, {7, 129, 0}};

}  // namespace

TEST_CASE("gemm of 8-bit floats is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  check_each(runtime, gemm_fp8_kernel<>(), kBoth, kProblems);
  check_each(runtime, gemm_fp8_kernel<RowScales>(), kBoth, kProblems);
  check_each(runtime, gemm_fp8_kernel<Fp8Epilogue<RowScales, Bias<kiln::bfloat16>, Gelu>>(), kBoth,
             kProblems);
  const std::vector<GemmStridedProblem> strided{
      {130, 72, 144, 80, 160, 144, 3, 130 * 80, 130 * 160, 0},
      {20, 33, 1040, 35, 1056, 1040, 2, 720, 0, 34320}};
  check_each(runtime, gemm_strided_kernel<Fp8<kiln::bfloat16>, GemmTranspose::nt, TensorScales>(),
             kBoth, strided);
  for (const auto* configs : {&kBoth, &kFast})
    check_each(runtime, gemm_fp8_kernel<TensorScales, Fp8Sums::fast>(), *configs, kProblems);
}

TEST_CASE("gemm of 8-bit floats with scales of blocks is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  // The 1000 x 1160 problem's tiles of 208 columns reach into three blocks of n.
  const std::vector<GemmProblem> problems{{128, 256, 128}, {16, 72, 256},     {8, 1032, 384},
                                          {264, 328, 640}, {300, 512, 2048},  {67, 35, 128},
                                          {72, 35, 2048},  {1000, 1160, 512}, {7, 129, 0}};
  check_each(runtime, gemm_fp8_block_kernel<>(), kBoth, problems);
  check_each(runtime, gemm_fp8_block_kernel<Bias<kiln::bfloat16>, Gelu>(), kBoth, problems);
  check_each(runtime, gemm_fp8_block_kernel<kiln::epilogue::Residual<kiln::bfloat16>>(), kBoth,
             problems);
  const std::vector<Gemm> more{{pingpong, 128, 112, 128, 1, 128, 64, 8, 8, C::two_m},
                               {tma, 256, 96, 128, 1, 128, 64, 8, 8, C::two_n},
                               {tma, 128, 144, 128, 1, 64, 64, 8, 8, C::none},
                               {tma, 64, 16, 128, 1, 64, 64, 8, 8, C::split_2, 2, false, true},
                               {tma, 128, 48, 128, 1, 64, 64, 8, 8, C::none, 1, false, true, 4}};
  check_each(runtime, gemm_fp8_block_kernel<>(), more, problems);
}

// The tensor cores' own sum of all k loses ones beside 448 * 448.
TEST_CASE("gemm of 8-bit floats is exact between slices", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  auto kernel = gemm_fp8_kernel<>();
  kernel.tolerance = {.relative = 0, .absolute = 0};
  kernel.workload = [](const GemmProblem& p, kiln::Workload& w) {
    const auto filled = [&](int rows, float last) {
      std::vector<kiln::float8_e4m3> values(std::size_t(rows) * std::size_t(p.k));
      for (int i = 0; i < rows; ++i)
        for (int l = 0; l < p.k; ++l)
          values[std::size_t(i * p.k + l)] = kiln::float8_e4m3(l == 0                ? 448.0f
                                                               : l == 256            ? last
                                                               : l >= 128 && l < 256 ? 1.0f
                                                                                     : 0.0f);
      return values;
    };
    const std::vector<float> one{1};
    w.output<kiln::bfloat16>(std::size_t(p.m) * std::size_t(p.n));
    w.input<kiln::float8_e4m3>(filled(p.m, -448)).input<kiln::float8_e4m3>(filled(p.n, 448));
    w.scalar(p.m).scalar(p.n).scalar(p.k).input<float>(one).input<float>(one);
  };
  check_each(runtime, kernel, kBoth, std::vector<GemmProblem>{{264, 128, 384}});
}
