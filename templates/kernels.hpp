// The shipped kernels, and what their host halves share: space, launch, workload and reference, per
// element type.
//
//   auto gemm = kiln::templates::gemm_kernel<kiln::bfloat16>();    // typed: kiln/kernels/gemm.hpp
//   kiln::shipped_kernels().make("gemm", "bf16");                  // by name
#pragma once

#include <type_traits>

#include "templates/elementwise/elementwise_kernels.hpp"
#include "templates/experts/sort_by_expert.hpp"
#include "templates/gemm/fp8/gemm_fp8.hpp"
#include "templates/gemm/fp8/gemm_fp8_gated.hpp"
#include "templates/gemm/fp8/gemm_fp8_gated_fp8.hpp"
#include "templates/gemm/fp8/gemm_grouped_fp8.hpp"
#include "templates/gemm/gated/gemm_gated.hpp"
#include "templates/gemm/gated/gemm_gated_fp8.hpp"
#include "templates/gemm/gated/interleave_gate_up.hpp"
#include "templates/gemm/gemm.hpp"
#include "templates/gemm/grouped/gemm_grouped.hpp"
#include "templates/rope/rope_kernels.hpp"
#include "templates/rows/row_kernels.hpp"

namespace kiln::templates {

/// Stands for all element types of as many bytes: rules that ask for a type's size alone are
/// compiled once for them.
template <class T>
using OfSize = std::conditional_t<std::is_same_v<T, float16>, bfloat16, T>;

/// Counts of tokens are tuned for the next power of two: they change from step to step.
constexpr int count_bucket(int count) {
  int bucket = 1;
  while (bucket < count && bucket < (1 << 30)) bucket *= 2;
  return bucket < count ? count : bucket;
}

/// Counts of rows whose tiles must fit, because rows beyond them are computed all the same: powers
/// of two up to 32, from there on four counts between each and the next, in steps of at least 16.
constexpr int row_bucket(int rows) {
  const int power = count_bucket(rows);
  if (power <= 32 || power > (1 << 30)) return power;  // those beyond have one each
  const int step = power / 8 > 16 ? power / 8 : 16;
  return (rows + step - 1) / step * step;
}

}  // namespace kiln::templates
