// Device half of gemm_gated.hpp: the entries. The bodies are the GEMM's, with an epilogue of pairs.
#pragma once

#include "../gemm.cuh"
#include "../shared/gemm_pairs.cuh"
#include "gemm_gated.hpp"

namespace kiln::templates {

/// Dynamic shared memory: c.shared_bytes(sizeof(T), GemmTranspose::nt, GemmOperands::two_bytes)
/// bytes.
template <Gemm c, class T, GatedWeights weights, class Activation>
  requires(c.parts == 1)
__global__ void __launch_bounds__(c.threads(), c.plain() ? 0 : 1)
    gemm_gated(const __grid_constant__ GemmArgument<gated_by_map(c), T> out,
               const __grid_constant__ GemmArgument<c.uses_tma(), const T> a,
               const __grid_constant__ GemmArgument<c.uses_tma(), const T> w, int m, int n, int k) {
  static_assert(takes_pairs(c), "a thread has gate and up of each of its columns");
  gemm_body<c, GemmTranspose::nt, T>(out, a, w, gated_shape(m, n, k), Gated<Activation, weights>{});
}

#ifndef KILN_HOST_TARGET

// Configs whose blocks share k through the workspace, and the step that adds their sums.

template <Gemm c, class T, GatedWeights weights, class Activation>
  requires(c.parts > 1)
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_gated(T* out, const __grid_constant__ hopper::TensorMap a,
               const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
               Workspace workspace) {
  static_assert(takes_pairs(c), "a thread has gate and up of each of its columns");
  gemm_body<c, GemmTranspose::nt, T>(out, a, w, gated_shape(m, n, k), Gated<Activation, weights>{},
                                     workspace);
}
template <Gemm c, class T, GatedWeights weights, class Activation>
__global__ void __launch_bounds__(GemmTma::kAddThreads)
    gemm_gated_add(T* out, const __grid_constant__ hopper::TensorMap a,
                   const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
                   Workspace workspace) {
  gemm_tma_add<c.tma(), GemmTranspose::nt, T>(out, a, w, gated_shape(m, n, k),
                                              Gated<Activation, weights>{}, workspace);
}

#endif

}  // namespace kiln::templates
