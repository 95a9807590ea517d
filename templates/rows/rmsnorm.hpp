// y[r][h] = x[r][h] * rsqrt(mean_h(x[r][h]^2) + eps) * w[h], 0 <= r < rows, 0 <= h < hidden.
//
// x and y: [rows][hidden], w: [hidden], row-major without gaps; T = float, __half or __nv_bfloat16.
// Squares, their sum and the products are float; y rounds once. Accesses: row_config.hpp. y may be
// x.
//
// The mean + eps counts as 2^-126 at least: a row of zeros has zeros, with an eps of 0, too. Where
// the sum of squares is beyond the largest float (a single element of more than 1.8e19), finite
// elements become 0. A row that holds a NaN becomes NaN. Of a row with an infinity the infinite
// elements become NaN and the others 0. Other rows are not affected.
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
