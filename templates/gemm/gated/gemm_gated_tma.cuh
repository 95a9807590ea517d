// The Hopper body of gemm_gated.hpp as a kernel of its own, as gemm_tma.cuh has the GEMM's.
#pragma once

#include "../shared/gemm_pairs.cuh"
#include "../tma/gemm_tma.cuh"
#include "gemm_gated.hpp"

namespace kiln::templates {

template <GemmTma c, class T, GatedWeights weights, class Activation,
          class Scales = epilogue::Nothing, class... P>
__global__ void __launch_bounds__(c.threads(), 1) gemm_gated_tma(
    const __grid_constant__ hopper::Argument<gated_results_of(c).store_tma, GemmResult<T>*> out,
    const __grid_constant__ hopper::TensorMap a, const __grid_constant__ hopper::TensorMap w, int m,
    int n, int k, P... parameters, Workspace workspace) {
  gemm_tma_body<c, GemmTranspose::nt, T>(
      out, a, w, gated_shape(m, n, k),
      gated_epilogue<Activation, weights, Scales>(n, parameters...), workspace);
}
/// Its step, in blocks of kAddThreads threads.
template <GemmTma c, class T, GatedWeights weights, class Activation,
          class Scales = epilogue::Nothing, class... P>
__global__ void __launch_bounds__(c.kAddThreads)
    gemm_gated_tma_step(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
                        const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
                        P... parameters, Workspace workspace) {
  gemm_tma_add<c, GemmTranspose::nt, T>(
      out, a, w, gated_shape(m, n, k),
      gated_epilogue<Activation, weights, Scales>(n, parameters...), workspace);
}

}  // namespace kiln::templates
