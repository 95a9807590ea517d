// residual[r][h] += x[r][h], and of the sum
// y[r][h] = residual[r][h] * rsqrt(mean_h(residual[r][h]^2) + eps) * w[h],
// 0 <= r < rows, 0 <= h < hidden: what stands between two blocks of a transformer, in one pass.
//
// x, residual and y: [rows][hidden], w: [hidden], row-major without gaps; T = float, __half or
// __nv_bfloat16. The sum is rounded to T, and the norm is that of the rounded sum, as if two
// kernels had computed them. Squares, their sum and the products are float; y rounds once. y may be
// x; no other arrays may overlap. Pointers need no alignment beyond that of T; accesses are wide
// where x, residual and y are aligned alike, as row_config.hpp says.
//
// A NaN in a row's sum makes all of its y NaN. Rows of zeros, rows with an infinity and squares
// beyond the largest float become what rmsnorm.hpp makes of them. Other rows are not affected.
//
// C++ programs: `auto norm = runtime.tuned(kiln::templates::rmsnorm_residual_kernel<float>());`.
#pragma once

#include "row_config.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: y, residual, x, w, rows, hidden, eps.
template <class T>
using RmsNormResidualKernel =
    Kernel<RowConfig, HiddenRows, void(T*, T*, const T*, const T*, int, int, float)>;
template <class T>
RmsNormResidualKernel<T> rmsnorm_residual_kernel();

}  // namespace kiln::templates
#endif
