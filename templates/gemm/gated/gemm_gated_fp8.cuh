// Device half of gemm_gated_fp8.hpp: the entries. The bodies are the GEMM's, with an epilogue of
// pairs whose results are 8-bit floats.
#pragma once

#include "../gemm.cuh"
#include "gemm_pairs_fp8.cuh"
#ifndef KILN_HOST_TARGET
#include "gemm_pairs_fp8_tma.cuh"
#endif

namespace kiln::templates {

/// Scales, P and dynamic shared memory: as in gemm_gated.cuh.
template <Gemm c, class T, GatedWeights weights, class Activation, class Scales = epilogue::Nothing,
          class... P>
  requires(c.parts == 1)
__global__ void __launch_bounds__(c.threads(), c.plain() ? 0 : 1) gemm_gated_fp8_tensor(
    Fp8Result* q, const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> a,
    const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> w, int m, int n, int k,
    P... parameters, const float* scale) {
  static_assert(takes_pairs(c), "a thread has gate and up of each of its columns");
  const GatedFp8Tensor epilogue(gated_epilogue<Activation, weights, Scales>(n, parameters...),
                                ScaleInMemory{scale});
  gemm_body<c, GemmTranspose::nt, T>(q, a, w, gated_shape(m, n, k), epilogue);
}

template <Gemm c, class T, GatedWeights weights, class Activation, class Scales = epilogue::Nothing,
          class... P>
__global__ void __launch_bounds__(c.threads(), c.plain() ? 0 : 1) gemm_gated_fp8_blocks(
    Fp8Result* q, const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> a,
    const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> w, int m, int n, int k,
    P... parameters, float* scales) {
  static_assert(takes_scale_blocks(c), "a tile has 256 columns of gate and up");
  const GatedFp8Blocks epilogue(gated_epilogue<Activation, weights, Scales>(n, parameters...),
                                scales);
  gemm_body<c, GemmTranspose::nt, T>(q, a, w, gated_shape(m, n, k), epilogue);
}

#ifndef KILN_HOST_TARGET

// Configs whose blocks share k through the workspace, and the step that adds their sums.

template <Gemm c, class T, GatedWeights weights, class Activation, class Scales = epilogue::Nothing,
          class... P>
  requires(c.parts > 1)
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_gated_fp8_tensor(Fp8Result* q, const __grid_constant__ hopper::TensorMap a,
                          const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
                          P... parameters, const float* scale, Workspace workspace) {
  static_assert(takes_pairs(c), "a thread has gate and up of each of its columns");
  const GatedFp8Tensor epilogue(gated_epilogue<Activation, weights, Scales>(n, parameters...),
                                ScaleInMemory{scale});
  gemm_body<c, GemmTranspose::nt, T>(q, a, w, gated_shape(m, n, k), epilogue, workspace);
}
template <Gemm c, class T, GatedWeights weights, class Activation, class Scales = epilogue::Nothing,
          class... P>
__global__ void __launch_bounds__(GemmTma::kAddThreads)
    gemm_gated_fp8_tensor_add(Fp8Result* q, const __grid_constant__ hopper::TensorMap a,
                              const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
                              P... parameters, const float* scale, Workspace workspace) {
  const GatedFp8Tensor epilogue(gated_epilogue<Activation, weights, Scales>(n, parameters...),
                                ScaleInMemory{scale});
  gemm_tma_add<c.tma(GemmTypes<T>::kOperands), GemmTranspose::nt, T>(q, a, w, gated_shape(m, n, k),
                                                                     epilogue, workspace);
}

#endif

}  // namespace kiln::templates
