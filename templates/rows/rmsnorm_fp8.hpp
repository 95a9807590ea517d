// q[r][h] = e4m3(v[r][h] / scales[r]) of v[r][h] = x[r][h] * rsqrt(mean_h(x[r][h]^2) + eps) * w[h],
// 0 <= r < rows, 0 <= h < hidden: an RMSNorm as 8-bit floats with a scale per row.
//
// x and q: [rows][hidden], w: [hidden], row-major without gaps; T = float, __half or __nv_bfloat16;
// scales: [rows], float. v is float and not rounded to T. Scales and roundings are those of
// quantize.hpp: scales[r] is the largest |v| of the row / 448, and at least 2^-126. A row of zeros
// has zeros. Sums of squares of x and products x * w are within the range of float. Pointers need
// no alignment beyond that of their elements; accesses are wide where x and q are aligned alike, as
// row_config.hpp says. No arrays may overlap.
//
// A row that holds a NaN becomes NaN. Of a row with an infinity the infinite elements become NaN
// and the others 0. Other rows are not affected.
//
// C++ programs: `auto norm = runtime.tuned(kiln::templates::rmsnorm_fp8_kernel<float>());`.
#pragma once

#include "quantize.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: q, scales, x, w, rows, hidden, eps.
template <class T>
using RmsNormFp8Kernel =
    Kernel<RowConfig, HiddenRows, void(float8_e4m3*, float*, const T*, const T*, int, int, float)>;
template <class T>
RmsNormFp8Kernel<T> rmsnorm_fp8_kernel();

}  // namespace kiln::templates
#endif
