// Host half of gemm_gated_fp8.hpp.
#include "templates/gemm/gated/gemm_gated_fp8.hpp"

#include <algorithm>
#include <vector>

#include "kiln/paths.hpp"
#include "templates/gemm/gated/gemm_gated_fp8_host.hpp"
#include "templates/gemm/gated/gemm_gated_host.hpp"

namespace kiln::templates {

using kiln::detail::UntypedKernel;

namespace {

/// Sums of k products in another order, whose errors count as often as the other sum is large:
/// small elements differ by a part of the largest one, not of themselves.
constexpr NeighboursAllowed kGatedNeighbours{
    .part = 2e-3, .of_scale = 2e-4, .least_scale = 1.0 / 8, .near_zero = 1.0 / 64};

template <class T>
double tensor_traffic(const GatedProblem& p) {
  return gated_operand_bytes<T>(p) + gated_tensor_bytes(p);
}
template <class T>
double blocks_traffic(const GatedProblem& p) {
  return gated_operand_bytes<T>(p) + gated_blocks_bytes(p);
}

/// Products of sums whose variance grows with k, so that few are beyond the largest e4m3.
Uniform scale_for(int k) {
  const double most = std::max(k, 1) / 256.0;
  return {most / 2, most};
}

}  // namespace

template <class T>
UntypedKernel<Gemm, GatedProblem> gemm_gated_fp8_tensor_base(GatedWeights weights,
                                                             const HostActivation& activation) {
  auto kernel = gated_common<T>("gemm/gated/gemm_gated_fp8.cuh", weights, activation, "_fp8_tensor",
                                tensor_traffic<OfSize<T>>);
  kernel.workload = [weights](const GatedProblem& p, Workload& w) {
    add_gated_q(p, w);
    add_gated_operands<T>(weights, p, w);
    w.input<float>(1, scale_for(p.k));
  };
  kernel.computed_by([weights, of = activation.of](float8_e4m3* q, const T* a, const T* w, int m,
                                                   int n, int k, const float* scale) {
    const std::vector<float> v = gated_values(a, w, weights, {m, n, k}, of);
    quantize_by_scale(q, *scale, m, n, rows_of_values(v, n));
  });
  kernel.tolerance = kGatedNeighbours.tolerance();
  kernel.check = gated_fp8_check({Fp8Scales::Of::all, 6}, kGatedNeighbours);
  return kernel;
}

template <class T>
UntypedKernel<Gemm, GatedProblem> gemm_gated_fp8_blocks_base(GatedWeights weights,
                                                             const HostActivation& activation) {
  auto kernel = gated_common<T, true>("gemm/gated/gemm_gated_fp8.cuh", weights, activation,
                                      "_fp8_blocks", blocks_traffic<OfSize<T>>);
  kernel.workload = [weights](const GatedProblem& p, Workload& w) {
    add_gated_q(p, w);
    add_gated_operands<T>(weights, p, w);
    add_gated_scales(p, w);
  };
  kernel.computed_by([weights, of = activation.of](float8_e4m3* q, const T* a, const T* w, int m,
                                                   int n, int k, float* scales) {
    const std::vector<float> v = gated_values(a, w, weights, {m, n, k}, of);
    quantize_by_blocks(q, scales, m, n, rows_of_values(v, n));
  });
  kernel.tolerance = kGatedNeighbours.tolerance();
  kernel.check = gated_fp8_check({Fp8Scales::Of::blocks, 6}, kGatedNeighbours);
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
