// How scales of blocks lie in memory, in float: those that quantize_blocks
// (kiln/kernels/quantize.hpp) and gated_fp8_blocks (kiln/kernels/gated_fp8.hpp) write and the
// block-scaled GEMM of 8-bit floats (kiln/kernels/gemm_fp8.hpp) reads. This header is read by the
// host compiler and by kernel compilers.
//
// Activations [rows][k] have one for each 1 x 128, block by block of k, so that neighbouring rows
// have neighbouring scales: element (r, l) has scales[l / 128 * scale_leading(rows) + r]. Weights
// [n][k] have one for each 128 x 128, row-major: (j, l) has scales[j / 128 * scale_blocks(k) + l /
// 128].
#pragma once

#if !defined(KILN_DEVICE_PASS)
#include "kiln/version.hpp"
#endif

namespace kiln {

inline constexpr int kScaleBlock = 128;  ///< elements

/// Blocks of which the last may be shorter.
constexpr int scale_blocks(int elements) {
  return elements / kScaleBlock + (elements % kScaleBlock != 0 ? 1 : 0);
}

/// Scales from one block of k to the next, for a matrix of this many rows: a multiple of 4, so that
/// each block's scales begin at a multiple of 16 bytes. What lies behind the rows has no meaning.
constexpr long long scale_leading(int rows) { return (static_cast<long long>(rows) + 3) / 4 * 4; }

}  // namespace kiln
