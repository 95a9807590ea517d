// Device half of gemm_gated.hpp: the entries. The bodies are the GEMM's, with an epilogue of pairs.
#pragma once

#include "../gemm.cuh"
#include "../shared/gemm_pairs.cuh"
#include "gemm_gated.hpp"

namespace kiln::templates {

/// Scales and P: what sums are multiplied with (gemm_fp8_gated.hpp), an epilogue of
/// kiln/epilogue.hpp and what its arguments are. Dynamic shared memory:
/// c.shared_bytes(sizeof(GemmOperand<T>), GemmTranspose::nt, GemmTypes<T>::kOperands) bytes.
template <Gemm c, class T, GatedWeights weights, class Activation, class Scales = epilogue::Nothing,
          class... P>
  requires(c.parts == 1)
__global__ void __launch_bounds__(c.threads(), c.plain() ? 0 : 1)
    gemm_gated(const __grid_constant__ GemmArgument<gated_by_map(c), GemmResult<T>> out,
               const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> a,
               const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> w, int m,
               int n, int k, P... parameters) {
  static_assert(takes_pairs(c), "a thread has gate and up of each of its columns");
  gemm_body<c, GemmTranspose::nt, T>(out, a, w, gated_shape(m, n, k),
                                     gated_epilogue<Activation, weights, Scales>(n, parameters...));
}

#ifndef KILN_HOST_TARGET

// Configs whose blocks share k through the workspace, and the step that adds their sums.

template <Gemm c, class T, GatedWeights weights, class Activation, class Scales = epilogue::Nothing,
          class... P>
  requires(c.parts > 1)
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_gated(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
               const __grid_constant__ hopper::TensorMap w, int m, int n, int k, P... parameters,
               Workspace workspace) {
  static_assert(takes_pairs(c), "a thread has gate and up of each of its columns");
  gemm_body<c, GemmTranspose::nt, T>(out, a, w, gated_shape(m, n, k),
                                     gated_epilogue<Activation, weights, Scales>(n, parameters...),
                                     workspace);
}
template <Gemm c, class T, GatedWeights weights, class Activation, class Scales = epilogue::Nothing,
          class... P>
__global__ void __launch_bounds__(GemmTma::kAddThreads)
    gemm_gated_add(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
                   const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
                   P... parameters, Workspace workspace) {
  gemm_tma_add<c.tma(GemmTypes<T>::kOperands), GemmTranspose::nt, T>(
      out, a, w, gated_shape(m, n, k),
      gated_epilogue<Activation, weights, Scales>(n, parameters...), workspace);
}

#endif

}  // namespace kiln::templates
