// The Hopper body of gemm_gated_fp8.hpp as kernels of its own, as gemm_gated_tma.cuh has the gated
// GEMM's.
#pragma once

#include "gemm_pairs_fp8_tma.cuh"

namespace kiln::templates {

template <GemmTma c, class T, GatedWeights weights, class Activation,
          class Scales = epilogue::Nothing, class... P>
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_gated_fp8_tensor_tma(Fp8Result* q, const __grid_constant__ hopper::TensorMap a,
                              const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
                              P... parameters, const float* scale, Workspace workspace) {
  const GatedFp8Tensor epilogue(gated_epilogue<Activation, weights, Scales>(n, parameters...),
                                ScaleInMemory{scale});
  gemm_tma_body<c, GemmTranspose::nt, T>(q, a, w, gated_shape(m, n, k), epilogue, workspace);
}

template <GemmTma c, class T, GatedWeights weights, class Activation,
          class Scales = epilogue::Nothing, class... P>
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_gated_fp8_blocks_tma(Fp8Result* q, const __grid_constant__ hopper::TensorMap a,
                              const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
                              P... parameters, float* scales) {
  const GatedFp8Blocks epilogue(gated_epilogue<Activation, weights, Scales>(n, parameters...),
                                scales);
  gemm_tma_body<c, GemmTranspose::nt, T>(q, a, w, gated_shape(m, n, k), epilogue, Workspace{});
}

}  // namespace kiln::templates
