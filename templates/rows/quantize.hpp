// Rows as 8-bit floats (e4m3) with scales: q[r][h] = e4m3(x[r][h] / scale), so that
// x[r][h] ~ q[r][h] * scale, 0 <= r < rows, 0 <= h < hidden. Three kernels differ by the scale:
//
//   quantize_rows    scales[r], of the row
//   quantize_blocks  scales[h / 128][r], of 128 consecutive elements of a row
//   quantize_tensor  *scale, which is given
//
// x and q: [rows][hidden], row-major without gaps; T = float, __half or __nv_bfloat16. Scales are
// float. The scales of blocks lie as a block-scaled matrix product reads those of its rows, block
// by block of k: [ceil(hidden / 128)][leading], `leading` = scale_leading(rows), rows rounded up to
// a multiple of 4, so that each block's scales begin at a multiple of 16 bytes. What lies behind
// the rows is not written. The last block of a row may be shorter.
//
// A scale that is computed is the largest |x| of its elements / 448, the largest e4m3, and at least
// 2^-126; so it is positive, and zeros have zeros. Quotients are products with 1 / scale in float,
// rounded to nearest even; what is beyond +-448 becomes that. All results are the same on each
// device and with each config. NaNs become NaNs and do not count for the scale. The scale of
// elements of which one is infinite is infinite: the infinite ones become NaN and the others 0. Of
// a scale that is given the same is true: less than 2^-126, 0 and negative numbers included, counts
// as 2^-126, with an infinite one finite elements become 0, and with NaN all elements become NaN.
//
// Pointers need no alignment beyond that of their elements; accesses are wide where x and q are
// aligned alike, as row_config.hpp says (quantize_rows), or to `vector` elements, which divides
// hidden (quantize_blocks), or to `vector` elements (quantize_tensor). No arrays may overlap.
// Without elements nothing is written, no scales either.
//
// C++ programs: `auto quantize = runtime.tuned(kiln::templates::quantize_rows_kernel<float>());`.
#pragma once

#include "kiln/block_scales.hpp"
#include "row_config.hpp"

namespace kiln::templates {

using kiln::kScaleBlock, kiln::scale_leading;

inline constexpr float kLeastScale = 1.17549435e-38f;  // 2^-126

/// The scale of elements of which the largest magnitude is `most`.
constexpr float fp8_scale(float most) {
  constexpr float kLargest = 448.0f;
  const float scale = most / kLargest;
  return scale > kLeastScale ? scale : kLeastScale;
}

/// What elements with a given scale are multiplied by.
constexpr float fp8_factor(float scale) {
  return 1.0f / (scale < kLeastScale ? kLeastScale : scale);  // NaN stays NaN
}

/// How many thread blocks share a row in kernels whose thread blocks take tiles (fp8_tiles.cuh):
/// `kept` rows by block * vector columns each.
constexpr long long column_tiles(const RowConfig& c, int hidden) {
  const long long columns = static_cast<long long>(c.block) * c.vector;
  return (hidden + columns - 1) / columns;
}

}  // namespace kiln::templates

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: q, scales, x, rows, hidden.
template <class T>
using QuantizeRowsKernel =
    Kernel<RowConfig, HiddenRows, void(float8_e4m3*, float*, const T*, int, int)>;
template <class T>
QuantizeRowsKernel<T> quantize_rows_kernel();
/// The same arguments.
template <class T>
using QuantizeBlocksKernel = QuantizeRowsKernel<T>;
template <class T>
QuantizeBlocksKernel<T> quantize_blocks_kernel();

/// Arguments: q, x, scale, rows, hidden.
template <class T>
using QuantizeTensorKernel =
    Kernel<RowConfig, HiddenRows, void(float8_e4m3*, const T*, const float*, int, int)>;
template <class T>
QuantizeTensorKernel<T> quantize_tensor_kernel();

}  // namespace kiln::templates
#endif
