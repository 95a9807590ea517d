// Host half of gemm_gated_fp8.hpp.
#include "templates/gemm/gated/gemm_gated_fp8.hpp"

#include <algorithm>
#include <vector>

#include "kiln/paths.hpp"
#include "templates/gemm/gated/gemm_gated_host.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

using kiln::detail::UntypedKernel;

namespace {

/// Sums of k products in another order, whose errors count as often as the other sum is large:
/// small elements differ by a part of the largest one, not of themselves.
constexpr NeighboursAllowed kGatedNeighbours{
    .part = 2e-3, .of_scale = 2e-4, .least_scale = 1.0 / 8, .near_zero = 1.0 / 64};

template <class T>
double tensor_traffic(const GatedProblem& p) {
  return gated_operand_bytes<T>(p) + 1.0 * p.m * p.n;
}
template <class T>
double blocks_traffic(const GatedProblem& p) {
  return tensor_traffic<T>(p) + sizeof(float) * 1.0 * p.m * scale_blocks(p.n);
}

/// Products of sums whose variance grows with k, so that few are beyond the largest e4m3.
Uniform scale_for(int k) {
  const double most = std::max(k, 1) / 256.0;
  return {most / 2, most};
}

RowValues rows_of_values(const std::vector<float>& v, int n) {
  return [&v, n](std::ptrdiff_t row) {
    return std::vector<float>(v.begin() + row * n, v.begin() + (row + 1) * n);
  };
}

auto gated_check(Fp8Scales::Of of) {
  return [scales = Fp8Scales{of, 6}](const GatedProblem& p, const auto& got, const auto& expected) {
    return wrong_fp8({p.m, p.n}, scales, kGatedNeighbours, std::get<0>(got), std::get<0>(expected));
  };
}

}  // namespace

template <class T>
UntypedKernel<Gemm, GatedProblem> gemm_gated_fp8_tensor_base(GatedWeights weights,
                                                             const HostActivation& activation) {
  auto kernel = gated_common<T>("gemm/gated/gemm_gated_fp8.cuh", weights, activation, "_fp8_tensor",
                                tensor_traffic<OfSize<T>>);
  kernel.workload = [weights](const GatedProblem& p, Workload& w) {
    w.output<float8_e4m3>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    add_gated_operands<T>(weights, p, w);
    w.input<float>(1, scale_for(p.k));
  };
  kernel.computed_by([weights, of = activation.of](float8_e4m3* q, const T* a, const T* w, int m,
                                                   int n, int k, const float* scale) {
    const std::vector<float> v = gated_values(a, w, weights, {m, n, k}, of);
    quantize_by_scale(q, *scale, m, n, rows_of_values(v, n));
  });
  kernel.check = gated_check(Fp8Scales::Of::all);
  return kernel;
}

template <class T>
UntypedKernel<Gemm, GatedProblem> gemm_gated_fp8_blocks_base(GatedWeights weights,
                                                             const HostActivation& activation) {
  auto kernel = gated_common<T, true>("gemm/gated/gemm_gated_fp8.cuh", weights, activation,
                                      "_fp8_blocks", blocks_traffic<OfSize<T>>);
  kernel.workload = [weights](const GatedProblem& p, Workload& w) {
    w.output<float8_e4m3>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    add_gated_operands<T>(weights, p, w);
    w.output<float>(Rows{.rows = static_cast<std::size_t>(scale_blocks(p.n)),
                         .columns = static_cast<std::size_t>(p.m),
                         .leading = static_cast<std::size_t>(scale_leading(p.m))});
  };
  kernel.computed_by([weights, of = activation.of](float8_e4m3* q, const T* a, const T* w, int m,
                                                   int n, int k, float* scales) {
    const std::vector<float> v = gated_values(a, w, weights, {m, n, k}, of);
    quantize_by_blocks(q, scales, m, n, rows_of_values(v, n));
  });
  kernel.check = gated_check(Fp8Scales::Of::blocks);
  return kernel;
}

#define KILN_GATED_FP8(T)                                                                          \
  template UntypedKernel<Gemm, GatedProblem> gemm_gated_fp8_tensor_base<T>(GatedWeights,           \
                                                                           const HostActivation&); \
  template UntypedKernel<Gemm, GatedProblem> gemm_gated_fp8_blocks_base<T>(GatedWeights,           \
                                                                           const HostActivation&);
KILN_GATED_FP8(float)
KILN_GATED_FP8(float16)
KILN_GATED_FP8(bfloat16)
#undef KILN_GATED_FP8

}  // namespace kiln::templates
