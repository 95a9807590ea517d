// y[r][h] = x[r][h] * rsqrt(mean_h(x[r][h]^2) + eps) * w[h], 0 <= r < rows, 0 <= h < hidden.
//
// x and y: [rows][hidden], w: [hidden], row-major without gaps; T = float, __half or __nv_bfloat16.
// Squares, their sum and the products are float; y rounds once. Accesses: row_config.hpp. y may be
// x.
//
// C++ programs: `auto norm = runtime.tuned(kiln::templates::rmsnorm_kernel<float>());`.
#pragma once

#include "row_config.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

using RmsNormProblem = HiddenRows;

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: y, x, w, rows, hidden, eps.
template <class T>
using RmsNormKernel =
    Kernel<RowConfig, RmsNormProblem, void(T*, const T*, const T*, int, int, float)>;
template <class T>
RmsNormKernel<T> rmsnorm_kernel();

}  // namespace kiln::templates
#endif
