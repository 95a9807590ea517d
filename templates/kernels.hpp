// The shipped kernels, and what their host halves share: space, launch, workload and reference, per
// element type.
//
//   auto gemm = kiln::templates::gemm_kernel<kiln::bfloat16>();    // typed: kiln/kernels/gemm.hpp
//   kiln::shipped_kernels().make("gemm", "bf16");                  // by name
#pragma once

#include "templates/elementwise/residual_add.hpp"
#include "templates/elementwise/vector_add.hpp"
#include "templates/gemm/gemm.hpp"
#include "templates/rmsnorm/rmsnorm.hpp"

namespace kiln::templates {

/// Counts of tokens are tuned for the next power of two: they change from step to step.
constexpr int count_bucket(int count) {
  int bucket = 1;
  while (bucket < count && bucket < (1 << 30)) bucket *= 2;
  return bucket < count ? count : bucket;
}

}  // namespace kiln::templates
