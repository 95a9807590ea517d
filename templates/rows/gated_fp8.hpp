// The middle of a gated MLP (SwiGLU, GeGLU, ReGLU) as 8-bit floats (e4m3) with scales:
//
//   q[r][h] = e4m3(v[r][h] / scale) of v[r][h] = activation(x[r][h]) * x[r][hidden + h],
//   0 <= r < rows, 0 <= h < hidden
//
// x: [rows][2 * hidden], the gate and up projections side by side (gated_activation.hpp); q:
// [rows][hidden], row-major without gaps; T = float, __half or __nv_bfloat16. Activation is Silu,
// Gelu (exact), GeluTanh or Relu of kiln/epilogue.hpp. v is float and not rounded to T. Three
// kernels differ by the scale, as those of quantize.hpp do:
//
//   gated_fp8_rows    scales[r], of the row
//   gated_fp8_blocks  scales[h / 128][r], of 128 consecutive elements of a row
//   gated_fp8_tensor  *scale, which is given
//
// So a GEMM of 8-bit floats (gemm_fp8.hpp) reads q and the scales as its A, which makes the second
// half of an MLP. Layouts of scales, their least value, roundings, NaNs and infinities are those
// that quantize.hpp has for v in place of x.
//
// Devices differ in an activation by a few units in the last place of its largest term, which is
// x / 2 for Gelu; on a GPU Silu is 0 where the gate is below -87.3. So an element close to
// the middle between two e4m3 numbers may become either. Where all gates of a scale are far below
// 0, v is a small difference of large numbers, and elements may differ by more.
//
// Pointers need no alignment beyond that of their elements. Accesses are wide where x and q are
// aligned to `vector` elements and `vector` divides hidden; otherwise elements are read one by one.
// No arrays may overlap. Without elements nothing is written, no scales either.
//
//   using kiln::epilogue::Silu;
//   auto middle = runtime.tuned(kiln::templates::gated_fp8_blocks_kernel<kiln::bfloat16, Silu>());
//   middle(stream, q, scales, x, rows, hidden);
#pragma once

#include "kiln/epilogue.hpp"
#include "quantize.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: q, scales, x, rows, hidden.
template <class T>
using GatedFp8Kernel = QuantizeRowsKernel<T>;
template <class T, class Activation>
GatedFp8Kernel<T> gated_fp8_rows_kernel();
template <class T, class Activation>
GatedFp8Kernel<T> gated_fp8_blocks_kernel();

/// Arguments: q, x, scale, rows, hidden.
template <class T>
using GatedFp8TensorKernel = QuantizeTensorKernel<T>;
template <class T, class Activation>
GatedFp8TensorKernel<T> gated_fp8_tensor_kernel();

}  // namespace kiln::templates
#endif
