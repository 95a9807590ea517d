// Grouped GEMMs on real hardware: each schedule and cluster, with the groups that tunings draw and
// with sizes that make no sense, verified by the kernel's own reference with guards around each
// array.
#include "gemm_test.hpp"
#include "kiln/kernels/gemm_grouped.hpp"
#include "kiln/kernels/gemm_grouped_fp8.hpp"

using namespace kiln::templates;
using gpu_test::check_each, gpu_test::each_kind, gpu_test::untuned_runtime;
using kiln::bfloat16, kiln::float16;
using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Gelu, kiln::epilogue::Residual;

namespace {

using enum GemmBody;

const std::vector<Gemm> kGroupedConfigs = each_kind({{tma, 192, 176, 64, 1, 64, 64, 8, 8}});

const std::vector<GroupedProblem> kGrouped{{1000, 264, 200, 7}, {300, 520, 1024, 70},
                                           {5, 64, 64, 3},      {3000, 256, 64, 1},
                                           {200, 36, 68, 4},    {640, 72, 64, 0}};
const std::vector<PaddedProblem> kPadded{{1000, 264, 200, 7, 64},  {3000, 520, 1024, 70, 128},
                                         {5, 64, 64, 3, 128},      {3000, 256, 64, 2, 1},
                                         {2000, 264, 200, 5, 100}, {200, 36, 68, 4, 16},
                                         {640, 72, 64, 0, 32}};
const std::vector<MaskedProblem> kMasked{{130, 264, 200, 7, 100},
                                         {16, 520, 1024, 70, 5},
                                         {64, 64, 64, 3, 0},
                                         {1000, 256, 64, 1, 999},
                                         {50, 36, 68, 4, 20}};

}  // namespace

TEST_CASE("grouped gemm is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  check_each(runtime, gemm_grouped_kernel<bfloat16>(), kGroupedConfigs, kGrouped);
  check_each(runtime, gemm_padded_kernel<bfloat16>(), kGroupedConfigs, kPadded);
  check_each(runtime, gemm_masked_kernel<bfloat16>(), kGroupedConfigs, kMasked);
  check_each(runtime, gemm_grouped_kernel<float16, Chain<Bias<float16>, Gelu>>(), kGroupedConfigs,
             kGrouped);
  check_each(runtime, gemm_padded_kernel<float16, Chain<Bias<float16>, Gelu>>(), kGroupedConfigs,
             kPadded);
  check_each(runtime, gemm_masked_kernel<bfloat16, Chain<Gelu, Residual<bfloat16>>>(),
             kGroupedConfigs, kMasked);
}

TEST_CASE("grouped gemm of 8-bit floats with scales of blocks is right by each body",
          "[gpu][templates]") {
  using C = GemmCluster;
  const std::vector<Gemm> configs{{simt, 64, 64, 64, 2, 4, 4, 8, 8},
                                  {pingpong, 128, 128, 128, 1, 128, 64, 8, 8},
                                  {pingpong, 64, 96, 128, 1, 64, 64, 8, 4, C::two_n},
                                  {tma, 128, 176, 128, 1, 64, 64, 8, 8, C::two_m},
                                  {tma, 256, 128, 128, 1, 128, 64, 8, 8, C::two_n},
                                  {tma, 64, 16, 128, 1, 64, 64, 8, 8, C::none, 2, false, true},
                                  {tma, 128, 48, 128, 1, 64, 64, 8, 8, C::none, 1, false, true}};
  const std::vector<GroupedProblem> contiguous{{1000, 264, 256, 7}, {300, 520, 1024, 70},
                                               {5, 64, 128, 3},     {3000, 256, 128, 1},
                                               {200, 36, 384, 4},   {640, 72, 128, 0}};
  const std::vector<PaddedProblem> padded{{1000, 264, 256, 7, 64},
                                          {3000, 520, 1024, 70, 128},
                                          {5, 64, 128, 3, 128},
                                          {2000, 264, 384, 5, 100},
                                          {200, 36, 384, 4, 16}};
  const std::vector<MaskedProblem> masked{{130, 264, 256, 7, 100},
                                          {17, 520, 1024, 70, 5},
                                          {64, 64, 128, 3, 0},
                                          {1000, 256, 128, 1, 999}};
  const kiln::Runtime runtime = untuned_runtime();
  check_each(runtime, gemm_grouped_fp8_block_kernel<>(), configs, contiguous);
  check_each(runtime, gemm_padded_fp8_block_kernel<>(), configs, padded);
  check_each(runtime, gemm_masked_fp8_block_kernel<>(), configs, masked);
  check_each(runtime, gemm_grouped_fp8_block_kernel<Bias<bfloat16>, Gelu>(), configs, contiguous);
}

TEST_CASE("grouped gemm: sizes that make no sense cause no access outside of an array",
          "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  const auto with_sizes = [](auto kernel, bool masked) {
    kernel.draws = {};
    kernel.workload = [masked](const auto& p, kiln::Workload& w) {
      const auto m = std::size_t(p.m), n = std::size_t(p.n), k = std::size_t(p.k),
                 groups = std::size_t(p.groups), rows = masked ? m * groups : m;
      constexpr int kMost = 2147483647;
      std::vector<int> sizes{-kMost - 1, p.m / 2, p.m / 3, -1, p.m / 2 + 1, kMost, 0, p.m - 1};
      sizes.resize(groups, p.m / 4);
      w.in_out<bfloat16>(rows * n).template input<bfloat16>(rows * k);
      w.template input<bfloat16>(groups * n * k).template input<int>(std::span<const int>(sizes));
      w.scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.groups);
      if constexpr (requires { p.expected; }) w.scalar(p.expected);
      if constexpr (requires { p.row_alignment; }) w.scalar(p.row_alignment);
    };
    return kernel;
  };
  check_each(runtime, with_sizes(gemm_grouped_kernel<bfloat16>(), false), kGroupedConfigs,
             std::vector<GroupedProblem>{{777, 136, 128, 8}, {777, 136, 128, 40}, {1, 64, 64, 3}});
  check_each(runtime, with_sizes(gemm_padded_kernel<bfloat16>(), false), kGroupedConfigs,
             std::vector<PaddedProblem>{
                 {777, 136, 128, 8, 128}, {777, 136, 128, 40, 16}, {777, 136, 128, 8, 2147483647}});
  check_each(runtime, with_sizes(gemm_masked_kernel<bfloat16>(), true), kGroupedConfigs,
             std::vector<MaskedProblem>{{150, 136, 128, 8, 9}, {70, 136, 128, 40, 9}});
}
