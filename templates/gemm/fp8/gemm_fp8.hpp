// GEMMs of 8-bit floats (e4m3) with scales, C in bfloat16:
//
//   C[i][j] = epilogue(scale_a * scale_b * sum_l A[i][l] * B[j][l])
//
// A: [m][k], B: [n][k], C: [m][n], all row-major (gemm.hpp, op nt). Scales are floats in device
// memory, those that quantize.hpp writes: with epilogue::TensorScales one for A and one for B, with
// epilogue::RowScales one for each row of A and one for each of B. They are factors: 0, negative
// ones, infinities and NaNs have no special meaning. A NaN among the operands makes a NaN of all
// that it is summed to; e4m3 has no infinities. A row of zeros has sums of 0, and with finite
// scales zeros.
//
// Hopper's tensor cores sum 8-bit products with about 14 bits (Fp8Sums in gemm_types.hpp). With
// Fp8Sums::exact, which cuBLAS has as "no fast accumulation", sums of 128 k are added in float;
// with Fp8Sums::fast all is summed by the tensor cores, which is faster, and less exact the larger
// k is.
//
// With scales of blocks, Fp8Sums::scaled, it is
//
//   C[i][j] =
//       epilogue(sum_b scales_a[b][i] * scales_b[j / 128][b] * sum_{l in b} A[i][l] * B[j][l])
//
// for the blocks b of 128 k; kiln/block_scales.hpp says how the scales lie. Sums of a block are
// multiplied with the product of its two scales, and added, in float. Another k than a multiple of
// 128 is a UserError. m and n are any, and the scales need no more alignment than a float's. A
// scale is read only for a row that is in A: what lies behind them may be anything.
//
// Tensor maps, and with them tensor cores, need sm_90, a k of a multiple of 16 and, unless blocks
// share k, an n of a multiple of 8. Other problems, GPUs and the host have the simt body, which
// converts each element and is slow. With leading dimensions and batches:
// gemm_strided_kernel<Fp8<kiln::bfloat16>, GemmTranspose::nt, epilogue::TensorScales>().
//
//   auto gemm = runtime.tuned(kiln::templates::gemm_fp8_kernel<>());
//   gemm(stream, c, a, b, m, n, k, scale_a, scale_b);
//   using Bias = epilogue::Bias<kiln::bfloat16>;
//   using Scaled = kiln::templates::Fp8Epilogue<epilogue::RowScales, Bias>;
//   auto rows = runtime.tuned(kiln::templates::gemm_fp8_kernel<Scaled, Fp8Sums::fast>());
//   rows(stream, c, a, b, m, n, k, scales_a, scales_b, bias);
//   auto blocks = runtime.tuned(kiln::templates::gemm_fp8_block_kernel<epilogue::Gelu>());
//   blocks(stream, c, a, b, m, n, k, scales_a, scales_b);
#pragma once

#include "../gemm_kernel.hpp"
#include "kiln/block_scales.hpp"

namespace kiln::templates {

template <class Scales, class... Rest>
using Fp8Epilogue = epilogue::Chain<Scales, Rest...>;

/// Arguments: C, A, B, m, n, k, those of the scales, those of the rest of the epilogue.
template <class Epilogue = epilogue::TensorScales, Fp8Sums sums = Fp8Sums::exact>
using GemmFp8Kernel = GemmKernel<Fp8<bfloat16, sums>, GemmTranspose::nt, Epilogue>;
/// A kernel's name by its scales.
template <class Epilogue>
std::string fp8_name(std::string name) {
  if constexpr (std::is_same_v<Epilogue, epilogue::RowScales>)
    name.insert(std::string_view("gemm_fp8").size(), "_rows");
  return name;
}
template <class Epilogue = epilogue::TensorScales, Fp8Sums sums = Fp8Sums::exact>
GemmFp8Kernel<Epilogue, sums> gemm_fp8_kernel(const std::filesystem::path& epilogue_header = {}) {
  auto kernel = gemm_kernel<Fp8<bfloat16, sums>, GemmTranspose::nt, Epilogue>(epilogue_header);
  kernel.name = fp8_name<Epilogue>(kernel.name);
  return kernel;
}

/// Scales of blocks, without leading dimensions and batches. Arguments: C, A, B, m, n, k, scales_a,
/// scales_b, those of the rest of the epilogue.
template <class... Rest>
using GemmFp8BlockKernel =
    GemmFp8Kernel<Fp8Epilogue<epilogue::BlockScales, Rest...>, Fp8Sums::scaled>;
template <class... Rest>
GemmFp8BlockKernel<Rest...> gemm_fp8_block_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_fp8_kernel<Fp8Epilogue<epilogue::BlockScales, Rest...>, Fp8Sums::scaled>(
      epilogue_header);
}

}  // namespace kiln::templates
