// The shipped kernels' host halves: space, launch, workload and reference, per element type.
//
//   auto gemm = kiln::templates::gemm_kernel<kiln::bfloat16>();    // typed
//   kiln::shipped_kernels().make("gemm", "bf16");                  // by name
#pragma once

#include "kiln/kernel.hpp"
#include "templates/gemm.hpp"
#include "templates/residual_add.hpp"
#include "templates/rmsnorm.hpp"
#include "templates/vector_add.hpp"

namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16 in all of these; arguments as in the headers above.
template <class T>
using VectorAddKernel = Kernel<VectorAdd, Elementwise, void(T*, const T*, const T*, int)>;
template <class T>
using ResidualAddKernel = Kernel<VectorAdd, Activations, void(T*, const T*, const T*, int, int)>;
template <class T>
using RmsNormKernel =
    Kernel<RmsNorm, RmsNormProblem, void(T*, const T*, const T*, int, int, float)>;
template <class T>
using GemmKernel = Kernel<Gemm, GemmProblem, void(T*, const T*, const T*, int, int, int)>;

template <class T>
VectorAddKernel<T> vector_add_kernel();
template <class T>
ResidualAddKernel<T> residual_add_kernel();
template <class T>
RmsNormKernel<T> rmsnorm_kernel();
template <class T>
GemmKernel<T> gemm_kernel();

/// Counts of tokens are tuned for the next power of two: they change from step to step.
constexpr int count_bucket(int count) {
  int bucket = 1;
  while (bucket < count && bucket < (1 << 30)) bucket *= 2;
  return bucket < count ? count : bucket;
}

}  // namespace kiln::templates
