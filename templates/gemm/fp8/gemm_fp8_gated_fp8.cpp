// Host half of gemm_fp8_gated_fp8.hpp.
#include "templates/gemm/fp8/gemm_fp8_gated_fp8.hpp"

#include <vector>

#include "templates/gemm/fp8/gemm_fp8_gated_host.hpp"
#include "templates/gemm/gated/gemm_gated_fp8_host.hpp"

namespace kiln::templates {

using kiln::detail::UntypedKernel;

namespace {

constexpr const char* kFp8GatedFp8 = "gemm/fp8/gemm_fp8_gated_fp8.cuh";

/// Sums are about 1, with errors of a thousandth or, of fast ones, a hundredth; the largest element
/// of a block is a few times that, which is 448 units. So elements near 0 may be off by a part of
/// one unit or by a few, and of others as many get to a neighbour as are so close to a midpoint.
template <Fp8Sums sums>
constexpr NeighboursAllowed kFp8GatedNeighbours =
    sums == Fp8Sums::fast
        ? NeighboursAllowed{.part = 0.4, .of_scale = 5e-2, .least_scale = 1.0 / 8, .near_zero = 4}
        : NeighboursAllowed{
              .part = 6e-2, .of_scale = 5e-3, .least_scale = 1.0 / 8, .near_zero = 0.5};

/// Few of the products of sums of about 1 are beyond the largest e4m3, and few are below the least.
constexpr Uniform kScaleOfProducts{1.0 / 64, 1.0 / 32};

}  // namespace

template <Fp8Sums sums>
UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_fp8_tensor_base(GatedWeights weights,
                                                                 const HostActivation& activation,
                                                                 GatedScales scales) {
  auto kernel = fp8_gated_common<sums, gated_tensor_bytes>(kFp8GatedFp8, weights, activation,
                                                           scales, "_fp8_tensor");
  kernel.workload = [weights, scales](const GatedProblem& p, Workload& w) {
    add_gated_q(p, w);
    add_gated_operands<Fp8<bfloat16, sums>>(weights, p, w);
    add_fp8_scales(scales, p, w);
    w.input<float>(1, kScaleOfProducts);
  };
  kernel.computed_by([weights, scales, of = activation.of](
                         float8_e4m3* q, const float8_e4m3* a, const float8_e4m3* w, int m, int n,
                         int k, const float* scales_a, const float* scales_w, const float* scale) {
    const std::vector<float> v =
        fp8_gated_values(a, w, weights, {m, n, k}, of, scales, scales_a, scales_w);
    quantize_by_scale(q, *scale, m, n, rows_of_values(v, n));
  });
  kernel.tolerance = kFp8GatedNeighbours<sums>.tolerance();
  kernel.check = gated_fp8_check({Fp8Scales::Of::all, 8}, kFp8GatedNeighbours<sums>);
  return kernel;
}

template <Fp8Sums sums>
UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_fp8_blocks_base(GatedWeights weights,
                                                                 const HostActivation& activation,
                                                                 GatedScales scales) {
  auto kernel = fp8_gated_common<sums, gated_blocks_bytes, true>(kFp8GatedFp8, weights, activation,
                                                                 scales, "_fp8_blocks");
  kernel.workload = [weights, scales](const GatedProblem& p, Workload& w) {
    add_gated_q(p, w);
    add_gated_operands<Fp8<bfloat16, sums>>(weights, p, w);
    add_fp8_scales(scales, p, w);
    add_gated_scales(p, w);
  };
  kernel.computed_by([weights, scales, of = activation.of](
                         float8_e4m3* q, const float8_e4m3* a, const float8_e4m3* w, int m, int n,
                         int k, const float* scales_a, const float* scales_w, float* of_q) {
    const std::vector<float> v =
        fp8_gated_values(a, w, weights, {m, n, k}, of, scales, scales_a, scales_w);
    quantize_by_blocks(q, of_q, m, n, rows_of_values(v, n));
  });
  kernel.tolerance = kFp8GatedNeighbours<sums>.tolerance();
  kernel.check = gated_fp8_check({Fp8Scales::Of::blocks, 8}, kFp8GatedNeighbours<sums>);
  return kernel;
}

#define KILN_FP8_GATED_FP8(sums)                                                            \
  template UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_fp8_tensor_base<Fp8Sums::sums>( \
      GatedWeights, const HostActivation&, GatedScales);                                    \
  template UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_fp8_blocks_base<Fp8Sums::sums>( \
      GatedWeights, const HostActivation&, GatedScales);
KILN_FP8_GATED_FP8(exact)
KILN_FP8_GATED_FP8(fast)
KILN_FP8_GATED_FP8(scaled)
#undef KILN_FP8_GATED_FP8

}  // namespace kiln::templates
