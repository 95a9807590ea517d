// out[r][h] = x[r][h] + residual[r][h], 0 <= r < rows, 0 <= h < hidden; row-major, T = float,
// __half or __nv_bfloat16. Rows follow each other without gaps, so this is vector_add (its config,
// alignment and aliasing rules, NaNs and infinities) over rows * hidden elements, which may exceed
// 2^31.
//
// C++ programs: `auto add = runtime.tuned(kiln::templates::residual_add_kernel<float>());`.
#pragma once

#include "vector_add.hpp"

namespace kiln::templates {

struct Activations {
  int rows;    // tokens
  int hidden;  // elements per row

  constexpr long long elements() const { return static_cast<long long>(rows) * hidden; }
};

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::Activations, rows, hidden)

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: out, x, residual, rows, hidden.
template <class T>
using ResidualAddKernel = Kernel<VectorAdd, Activations, void(T*, const T*, const T*, int, int)>;
template <class T>
ResidualAddKernel<T> residual_add_kernel();

}  // namespace kiln::templates
#endif
