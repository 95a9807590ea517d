// Gated products (gemm_gated.hpp) that leave as 8-bit floats (e4m3) with scales, so that a GEMM of
// 8-bit floats (gemm_fp8.hpp) reads them as its A without a pass between:
//
//   q[i][j] = e4m3(v[i][j] / scale) of
//   v[i][j] = activation(sum_l A[i][l] * gate[j][l]) * sum_l A[i][l] * up[j][l],
//   0 <= i < m, 0 <= j < n, 0 <= l < k
//
// A, the weights and activations are those of gemm_gated.hpp; q is [m][n], row-major without gaps.
// gemm_fp8_gated_fp8.hpp multiplies 8-bit floats. v is float, and not rounded to T. Two kernels
// differ by the scale:
//
//   gemm_gated_fp8_tensor  *scale, in device memory, which is given
//   gemm_gated_fp8_blocks  scales[j / 128][i], of 128 consecutive elements of a row, as
//                          kiln/block_scales.hpp says, which the block-scaled GEMM reads
//
// Layouts of scales, their least value, roundings, NaNs and infinities are those that quantize.hpp
// has for v in place of x. Of an element close to the middle between two e4m3 numbers another order
// of the sums makes either. What lies behind the rows of scales is not written. With k = 0 all is
// activation(0) * 0.
//
// A block of 128 elements is one thread block's: tiles of gemm_gated_fp8_blocks have 256 of the
// columns of gate and up, and no blocks share k. So there is no body for a few rows that streams
// the weights.
//
// q and the scales need no alignment, and are stored fastest where q is aligned to 16 bytes and n a
// multiple of 16. On sm_90 A and W must be aligned as gemm_gated.hpp says.
//
//   using kiln::epilogue::Silu;
//   using T = kiln::bfloat16;
//   auto gated = runtime.tuned(kiln::templates::gemm_gated_fp8_blocks_kernel<T, Silu>());
//   auto down = runtime.tuned(kiln::templates::gemm_fp8_block_kernel<>());
//   gated(stream, q, a, w, m, n, k, scales);
//   down(stream, y, q, weights, m, hidden, n, scales, scales_of_weights);
//
// Negative sizes, an n above 2^29, a k above kMostDepth, and a q or scales that overlap an array
// that is read, or each other, are a UserError. Without elements nothing is written, no scales
// either.
#pragma once

#include "gemm_gated.hpp"
#include "kiln/block_scales.hpp"

namespace kiln::templates {

/// Columns of gate and up whose products have a scale in common.
inline constexpr int kPairsOfScale = 2 * kScaleBlock;

/// Whether a config's tiles hold whole blocks of 128 elements of q.
constexpr bool takes_scale_blocks(const Gemm& c) {
  if (!takes_pairs(c) || c.body == GemmBody::stream) return false;
  return (c.swap ? c.block_m : c.block_n) == kPairsOfScale && c.split_k() == 1 && c.parts == 1;
}

}  // namespace kiln::templates

#if !defined(KILN_DEVICE_PASS)
#include "gemm_gated_fp8_kernel.hpp"
#endif
