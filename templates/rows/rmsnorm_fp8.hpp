// RMSNorms as 8-bit floats (e4m3) with scales, 0 <= r < rows, 0 <= h < hidden:
//
//   q[r][h] = e4m3(v[r][h] / scale) of v[r][h] = x[r][h] * rsqrt(mean_h(x[r][h]^2) + eps) * w[h]
//
// Four kernels differ by the scale, and by what is normalized:
//
//   rmsnorm_fp8                  scales[r], of the row
//   rmsnorm_fp8_blocks           scales[h / 128][r], of 128 consecutive elements of a row
//   rmsnorm_residual_fp8         scales[r]; first residual[r][h] += x[r][h], and the norm is that
//   rmsnorm_residual_fp8_blocks  of residual in place of x; scales[h / 128][r]
//
// So a GEMM of 8-bit floats (gemm_fp8.hpp) reads q and the scales as its A. x, residual and q:
// [rows][hidden], w: [hidden], row-major without gaps; T = float, __half or __nv_bfloat16; scales
// are float and lie as those of quantize.hpp do, padding included. The sum is rounded to T, and the
// norm is that of the rounded sum. v is float and not rounded to T. Scales and roundings are those
// of quantize.hpp: a scale is the largest |v| of its elements / 448, and at least 2^-126. Pointers
// need no alignment beyond that of their elements; accesses of rmsnorm_fp8 are wide where x and q
// are aligned alike, as row_config.hpp says, those of the others where all rows begin at a multiple
// of `vector` elements. No arrays may overlap. Without elements nothing is written.
//
// The mean + eps counts as 2^-126 at least: a row of zeros has zeros, with an eps of 0, too.
// Products x * w are within the range of float; where the sum of squares of x is not, finite
// elements become 0. A row that holds a NaN becomes NaN. Of a row with an infinity the infinite
// elements become NaN and the others 0. Other rows are not affected.
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
/// The same arguments.
template <class T>
RmsNormFp8Kernel<T> rmsnorm_fp8_blocks_kernel();

/// Arguments: q, scales, residual, x, w, rows, hidden, eps.
template <class T>
using RmsNormResidualFp8Kernel =
    Kernel<RowConfig, HiddenRows,
           void(float8_e4m3*, float*, T*, const T*, const T*, int, int, float)>;
template <class T>
RmsNormResidualFp8Kernel<T> rmsnorm_residual_fp8_kernel();
/// The same arguments.
template <class T>
RmsNormResidualFp8Kernel<T> rmsnorm_residual_fp8_blocks_kernel();

}  // namespace kiln::templates
#endif
