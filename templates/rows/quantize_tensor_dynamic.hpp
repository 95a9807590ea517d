// A tensor as 8-bit floats (e4m3) with one scale, which is computed: that of quantize.hpp for all
// elements, the largest |x| / 448 and at least 2^-126.
//
//   q[r][h] = e4m3(x[r][h] / *scale), 0 <= r < rows, 0 <= h < hidden
//
// x and q: [rows][hidden], row-major without gaps; T = float, __half or __nv_bfloat16; scale: one
// float, which is written. Roundings, zeros, NaNs, infinities, alignment and overlaps are as for
// quantize_tensor (quantize.hpp), of which this is the kernel for a scale that is not known ahead.
// All results are the same on each device and with each config. Without elements nothing is
// written, no scale either.
//
// Two launches in a row: thread blocks that walk over x leave the largest magnitude of each in the
// workspace; the second reads x again, what was read last first, since that is still cached.
//
//   auto quantize = runtime.tuned(kiln::templates::quantize_tensor_dynamic_kernel<float>());
//   quantize(stream, q, scale, x, rows, hidden);
#pragma once

#include "quantize.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: q, scale, x, rows, hidden.
template <class T>
using QuantizeTensorDynamicKernel = QuantizeRowsKernel<T>;
template <class T>
QuantizeTensorDynamicKernel<T> quantize_tensor_dynamic_kernel();

}  // namespace kiln::templates
#endif
