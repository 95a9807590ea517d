// Grouped GEMMs (gemm_grouped.hpp) of 8-bit floats (e4m3) with scales of blocks, C in bfloat16:
//
//   C[i][j] = epilogue(sum_b scales_a[b][i] * scales_b[g][j / 128][b] *
//                      sum_{l in b} A[i][l] * B[g][j][l])
//
// for the rows i of group g and the blocks b of 128 k; with gemm_masked C, A and scales_a have the
// group in front. kiln/block_scales.hpp says how the scales of a matrix lie. Groups whose rows
// follow each other, with padding or without, share the scales of A, as quantize_blocks writes them
// for all m rows; otherwise each group has k / 128 * scale_leading(m) of them, one group behind the
// other. Each group has scale_blocks(n) * (k / 128) scales of B. What of this is for rows that no
// group has is not read.
// Sums, sizes, n, k, NaNs and zeros are as for gemm_fp8.hpp's scales of blocks: another k than a
// multiple of 128 is a UserError, and tensor cores need sm_90 and an n that is a multiple of 8.
//
//   auto gemm = runtime.tuned(kiln::templates::gemm_grouped_fp8_block_kernel<>());
//   gemm(stream, c, a, b, ends, m, n, k, groups, scales_a, scales_b);
//   auto padded = runtime.tuned(kiln::templates::gemm_padded_fp8_block_kernel<>());
//   padded(stream, c, a, b, ends, m, n, k, groups, row_alignment, scales_a, scales_b);
//   auto masked = runtime.tuned(kiln::templates::gemm_masked_fp8_block_kernel<>());
//   masked(stream, c, a, b, counts, m, n, k, groups, expected, scales_a, scales_b);
#pragma once

#include "../grouped/gemm_grouped.hpp"
#include "gemm_fp8.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// Arguments: C, A, B, ends, m, n, k, groups, scales_a, scales_b, those of the rest of the
/// epilogue.
template <class... Rest>
using GemmGroupedFp8BlockKernel =
    GemmGroupedKernel<Fp8<bfloat16, Fp8Sums::scaled>, Fp8Epilogue<epilogue::BlockScales, Rest...>>;
template <class... Rest>
GemmGroupedFp8BlockKernel<Rest...> gemm_grouped_fp8_block_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_grouped_kernel<Fp8<bfloat16, Fp8Sums::scaled>,
                             Fp8Epilogue<epilogue::BlockScales, Rest...>>(epilogue_header);
}

/// Arguments: C, A, B, ends, m, n, k, groups, row_alignment, scales_a, scales_b, those of the rest
/// of the epilogue.
template <class... Rest>
using GemmPaddedFp8BlockKernel =
    GemmPaddedKernel<Fp8<bfloat16, Fp8Sums::scaled>, Fp8Epilogue<epilogue::BlockScales, Rest...>>;
template <class... Rest>
GemmPaddedFp8BlockKernel<Rest...> gemm_padded_fp8_block_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_padded_kernel<Fp8<bfloat16, Fp8Sums::scaled>,
                            Fp8Epilogue<epilogue::BlockScales, Rest...>>(epilogue_header);
}

/// Arguments: C, A, B, counts, m, n, k, groups, expected, scales_a, scales_b, those of the rest of
/// the epilogue.
template <class... Rest>
using GemmMaskedFp8BlockKernel =
    GemmMaskedKernel<Fp8<bfloat16, Fp8Sums::scaled>, Fp8Epilogue<epilogue::BlockScales, Rest...>>;
template <class... Rest>
GemmMaskedFp8BlockKernel<Rest...> gemm_masked_fp8_block_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_masked_kernel<Fp8<bfloat16, Fp8Sums::scaled>,
                            Fp8Epilogue<epilogue::BlockScales, Rest...>>(epilogue_header);
}

}  // namespace kiln::templates
#endif
