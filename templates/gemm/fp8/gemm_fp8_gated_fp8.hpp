// Gated products of 8-bit floats (gemm_fp8_gated.hpp) that leave as 8-bit floats, with scales on
// both sides. So all of a gated MLP is in 8 bits, and nothing passes between its two GEMMs:
//
//   q[i][j] = e4m3(v[i][j] / scale) of
//   v[i][j] = activation(gate[i][j]) * up[i][j],  0 <= i < m, 0 <= j < n
//
// gate and up, their scales and sums are those of gemm_fp8_gated.hpp: A [m][k] and W, in either
// layout, are e4m3, with one scale each, one for each row, or those of blocks. q: [m][n], row-major
// without gaps. Two kernels differ by its scale, as in gemm_gated_fp8.hpp:
//
//   gemm_fp8_gated_fp8_tensor  *scale, in device memory, which is given
//   gemm_fp8_gated_fp8_blocks  scales[j / 128][i], of 128 consecutive elements of a row, as
//                              kiln/block_scales.hpp says. With an n of a multiple of 128 they, and
//                              q, are what gemm_fp8_block_kernel reads as its A
//
// v is float and rounds once, to q. Zeros, NaNs and infinities become what quantize.hpp makes of
// them: the least scale of a block of zeros, NaNs that stay NaNs and do not count for a scale, an
// infinite scale of a block with an infinity. A NaN among scales or operands makes NaNs of all that
// it is summed to. What lies behind the rows of scales is not written. Without elements nothing is
// written, no scales either.
//
// An error of a sum (Fp8Sums) moves an element by as much as gemm_fp8_gated.hpp says, and some of
// them to a neighbour among e4m3 numbers.
//
// Tensor maps, and with them tensor cores, need what they need in gemm_fp8_gated.hpp: sm_90, a k
// of a multiple of 16 (with scales of blocks 128), and an n of a multiple of 8; A and W must be
// aligned to 16 bytes then, and a launch with one that is not is a UserError. Other problems, GPUs
// and the host have the simt body, which converts each element and is slow. q and all scales need
// no more alignment than their type's, and q is stored fastest where it is aligned to 16 bytes and
// n a multiple of 16.
//
// Tiles of gemm_fp8_gated_fp8_blocks have 256 columns of gate and up, and no blocks share k. With
// exact sums, and with scales of blocks, half of the columns are added at a time.
//
//   using kiln::epilogue::Silu, kiln::epilogue::RowScales;
//   auto gated = runtime.tuned(kiln::templates::gemm_fp8_block_gated_fp8_blocks_kernel<Silu>());
//   auto down = runtime.tuned(kiln::templates::gemm_fp8_block_kernel<>());
//   gated(stream, q, a, w, m, n, k, scales_a, scales_w, scales);
//   down(stream, y, q, weights, m, hidden, n, scales, scales_of_weights);
//   auto rows = runtime.tuned(
//       kiln::templates::gemm_fp8_gated_fp8_tensor_kernel<Silu, RowScales>());
//   rows(stream, q, a, w, m, n, k, scales_a, scales_w, scale);
//
// Negative sizes, an n above 2^29, a k above kMostDepth, another k than a multiple of 128 with
// scales of blocks, and a q or written scales that overlap an array that is read, or each other,
// are a UserError.
#pragma once

#include <filesystem>
#include <type_traits>

#include "../gated/gemm_gated_fp8.hpp"
#include "gemm_fp8_gated.hpp"

namespace kiln::templates {

// What the kernels are without their signatures: see gemm_fp8_gated_base.
template <Fp8Sums sums>
kiln::detail::UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_fp8_tensor_base(
    GatedWeights weights, const HostActivation& activation, GatedScales scales);
template <Fp8Sums sums>
kiln::detail::UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_fp8_blocks_base(
    GatedWeights weights, const HostActivation& activation, GatedScales scales);

namespace gemm_detail {

/// `Scale`: const float, of what is given, or float, of what is written.
template <class Scale>
using Fp8GatedFp8 = Kernel<Gemm, GatedProblem,
                           void(float8_e4m3*, const float8_e4m3*, const float8_e4m3*, int, int, int,
                                const float*, const float*, Scale*)>;

/// @throws UserError when what is written overlaps anything
template <class Scale>
GatedProblem checked_fp8_gated_fp8(GatedWeights weights, GatedScales scales, const float8_e4m3* q,
                                   const float8_e4m3* a, const float8_e4m3* w,
                                   const GatedProblem& p, const float* scales_a,
                                   const float* scales_w, Scale* scale) {
  constexpr bool kGiven = std::is_const_v<Scale>;
  const GemmStride span = kGiven ? 1 : GemmStride{scale_blocks(p.n)} * scale_leading(p.m);
  const GemmArea of_q = gemm_area(scale, span, 0, 0, 0),
                 area = gemm_area(q, GemmStride{p.m} * p.n, 1, p.n, p.n);
  checked_fp8(weights, q, a, w, p, of_q, kGiven);
  for (const GemmArea& read : gated_scale_areas(scales, p, scales_a, scales_w)) {
    if (overlap(area, read)) throw UserError("gemm: q overlaps the scales");
    if (!kGiven && overlap(of_q, read)) throw UserError("gemm: the scales overlap those of A or W");
  }
  return p;
}

template <class Activation, class Scales, GatedWeights weights, Fp8Sums sums, class Scale>
Fp8GatedFp8<Scale> fp8_gated_fp8(const std::filesystem::path& activation_header) {
  constexpr GatedScales kScales = gated_scales<Scales>();
  static_assert((kScales == GatedScales::blocks) == (sums == Fp8Sums::scaled),
                "Fp8Sums::scaled and BlockScales belong together");
  const auto base_of = std::is_const_v<Scale> ? gemm_fp8_gated_fp8_tensor_base<sums>
                                              : gemm_fp8_gated_fp8_blocks_base<sums>;
  auto base = base_of(weights, gated_activation<Activation>(), kScales);
  base.source = with_header(base.source, activation_header);
  return base.template typed<Fp8GatedFp8<Scale>>([](float8_e4m3* q, const float8_e4m3* a,
                                                    const float8_e4m3* w, int m, int n, int k,
                                                    const float* scales_a, const float* scales_w,
                                                    Scale* scale) {
    return checked_fp8_gated_fp8(weights, kScales, q, a, w, {m, n, k}, scales_a, scales_w, scale);
  });
}

}  // namespace gemm_detail

/// Arguments: q, A, W, m, n, k, scales_a, scales_w, scale.
using GemmFp8GatedFp8TensorKernel = gemm_detail::Fp8GatedFp8<const float>;
/// Arguments: q, A, W, m, n, k, scales_a, scales_w, scales.
using GemmFp8GatedFp8BlocksKernel = gemm_detail::Fp8GatedFp8<float>;

/// As gemm_fp8_gated_kernel.
template <class Activation, class Scales = epilogue::TensorScales,
          GatedWeights weights = GatedWeights::stacked, Fp8Sums sums = Fp8Sums::exact>
GemmFp8GatedFp8TensorKernel gemm_fp8_gated_fp8_tensor_kernel(
    const std::filesystem::path& activation_header = {}) {
  return gemm_detail::fp8_gated_fp8<Activation, Scales, weights, sums, const float>(
      activation_header);
}
template <class Activation, class Scales = epilogue::TensorScales,
          GatedWeights weights = GatedWeights::stacked, Fp8Sums sums = Fp8Sums::exact>
GemmFp8GatedFp8BlocksKernel gemm_fp8_gated_fp8_blocks_kernel(
    const std::filesystem::path& activation_header = {}) {
  return gemm_detail::fp8_gated_fp8<Activation, Scales, weights, sums, float>(activation_header);
}

// A and W with scales of blocks.
template <class Activation, GatedWeights weights = GatedWeights::stacked>
GemmFp8GatedFp8TensorKernel gemm_fp8_block_gated_fp8_tensor_kernel(
    const std::filesystem::path& activation_header = {}) {
  return gemm_fp8_gated_fp8_tensor_kernel<Activation, epilogue::BlockScales, weights,
                                          Fp8Sums::scaled>(activation_header);
}
template <class Activation, GatedWeights weights = GatedWeights::stacked>
GemmFp8GatedFp8BlocksKernel gemm_fp8_block_gated_fp8_blocks_kernel(
    const std::filesystem::path& activation_header = {}) {
  return gemm_fp8_gated_fp8_blocks_kernel<Activation, epilogue::BlockScales, weights,
                                          Fp8Sums::scaled>(activation_header);
}

}  // namespace kiln::templates
