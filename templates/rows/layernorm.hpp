// y[r][h] = (x[r][h] - mean(x[r])) * rsqrt(variance(x[r]) + eps) * w[h] + b[h], 0 <= r < rows,
// 0 <= h < hidden; the variance is the mean of (x[r][h] - mean(x[r]))^2 (divided by hidden).
//
// x and y: [rows][hidden], w (gamma) and b (beta): [hidden], row-major without gaps; T = float,
// __half or __nv_bfloat16. Mean, variance and products are float; y rounds once. Both are taken of
// the differences from the row's first element, the variance as a sum of squared deviations, so
// that a large mean costs no digits.
// y may be x. Pointers need no alignment beyond that of T; accesses are wide where x and y are
// aligned alike, as row_config.hpp says.
//
// The variance + eps counts as 2^-126 at least: a row of equal elements, of zeros for one, becomes
// b, with an eps of 0, too. So does one whose squared deviations have a sum beyond the largest
// float (elements that lie more than 1.8e19 apart). A row becomes NaN if it holds a NaN or an
// infinity, or an element that lies further from the first than the largest float; where these
// differences have a sum beyond it, a row becomes NaN or b. Other rows are not affected.
//
// C++ programs: `auto norm = runtime.tuned(kiln::templates::layernorm_kernel<float>());`.
#pragma once

#include "row_config.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: y, x, w, b, rows, hidden, eps.
template <class T>
using LayerNormKernel =
    Kernel<RowConfig, HiddenRows, void(T*, const T*, const T*, const T*, int, int, float)>;
template <class T>
LayerNormKernel<T> layernorm_kernel();

}  // namespace kiln::templates
#endif
