// The Hopper body of gemm_gated.hpp as a kernel of its own, as gemm_tma.cuh has the GEMM's.
#pragma once

#include "../shared/gemm_pairs.cuh"
#include "../tma/gemm_tma.cuh"
#include "gemm_gated.hpp"

namespace kiln::templates {

template <GemmTma c, class T, GatedWeights weights, class Activation>
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_gated_tma(const __grid_constant__
                   typename GemmTmaOutputOf<c, T, false, Gated<Activation, weights>>::Array out,
                   const __grid_constant__ hopper::TensorMap a,
                   const __grid_constant__ hopper::TensorMap w, int m, int n, int k,
                   Workspace workspace) {
  gemm_tma_body<c, GemmTranspose::nt, T>(out, a, w, gated_shape(m, n, k),
                                         Gated<Activation, weights>{}, workspace);
}

}  // namespace kiln::templates
