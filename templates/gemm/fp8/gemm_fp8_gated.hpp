// Gated products (gemm_gated.hpp) of 8-bit floats (e4m3) with scales, the first half of a gated MLP
// in 8 bits, out in bfloat16:
//
//   out[i][j] = activation(gate[i][j]) * up[i][j],  0 <= i < m, 0 <= j < n, 0 <= l < k
//   gate[i][j] = scales_a[i] * scales_w[j]     * sum_l A[i][l] * Wg[j][l]
//   up[i][j]   = scales_a[i] * scales_w[n + j] * sum_l A[i][l] * Wu[j][l]
//
// A: [m][k], out: [m][n], both row-major without gaps. Wg and Wu, [n][k] each, are one array W in
// either layout of gemm_gated.hpp, whose activations these are; interleave_gate_up.hpp has e4m3,
// too.
//
// Scales are floats in device memory, those that quantize.hpp writes, and are factors, as those of
// gemm_fp8.hpp: 0, negative ones, infinities and NaNs have no special meaning.
//   epilogue::TensorScales  one for A and one for W: scales_a[0], scales_w[0]
//   epilogue::RowScales     scales_a[m]; scales_w[2 * n]: gate's n and then up's, in either layout
//                           of W. Where gate and up have one scale each, repeat it.
//   epilogue::BlockScales   of 1 x 128 of A and 128 x 128 of gate and of up, which lie as
//                           kiln/block_scales.hpp says: scales_w has scale_blocks(n) * (k / 128) of
//                           gate and then as many of up, in either layout of W. With an n of a
//                           multiple of 128 they are those of stacked W as one matrix of 2 * n
//                           rows. Sums of 128 k are multiplied with the product of their scales and
//                           added in float, before anything else. Another k than a multiple of 128
//                           is a UserError.
//
// Sums are those of gemm_fp8.hpp, by Fp8Sums; scales, activation and product are in float, and out
// rounds once. Errors of at most e in both scaled sums become, in front of that rounding, at most
// e * (1.13 * |up| + |activation(gate)| + 1.13 * e) with the activations of kiln/epilogue.hpp, none
// of which is steeper. A NaN among the operands makes NaNs of all that it is summed to. With k = 0
// all is activation(0) * 0, whatever finite scales there are.
//
// Tensor maps, and with them tensor cores, need sm_90, a k of a multiple of 16 and an n of a
// multiple of 8; A, W and out must be aligned to 16 bytes then, and a launch with one that is not
// is a UserError. Interleaved weights of another n may be read so where blocks share k. Other
// problems, GPUs and the host have the simt body, which converts each element and is slow. Scales
// need no alignment but a float's.
//
//   using kiln::epilogue::Silu, kiln::epilogue::RowScales;
//   auto gated = runtime.tuned(kiln::templates::gemm_fp8_gated_kernel<Silu, RowScales>());
//   gated(stream, out, a, w, m, n, k, scales_a, scales_w);
//   auto blocks = runtime.tuned(kiln::templates::gemm_fp8_block_gated_kernel<Silu>());
//   blocks(stream, out, a, w, m, n, k, scales_a, scales_w);
//
// Negative sizes, an n above 2^29, a k above kMostDepth, and an `out` that overlaps A, W or scales
// are a UserError. An empty `out` is left alone.
#pragma once

#include <array>
#include <filesystem>
#include <type_traits>

#include "../gated/gemm_gated.hpp"
#include "gemm_fp8.hpp"

namespace kiln::templates {

/// What the operands of a gated product have scales of.
enum class GatedScales { tensor, rows, blocks };

/// What the kernels are without their signatures. Fp8Sums::scaled and scales of blocks belong
/// together.
template <Fp8Sums sums>
kiln::detail::UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_base(
    GatedWeights weights, const HostActivation& activation, GatedScales scales);

/// Arguments: out, A, W, m, n, k, scales_a, scales_w.
using GemmFp8GatedKernel = Kernel<Gemm, GatedProblem,
                                  void(bfloat16*, const float8_e4m3*, const float8_e4m3*, int, int,
                                       int, const float*, const float*)>;

namespace gemm_detail {

template <class Scales>
constexpr GatedScales gated_scales() {
  constexpr bool kRows = std::is_same_v<Scales, epilogue::RowScales>,
                 kBlocks = std::is_same_v<Scales, epilogue::BlockScales>;
  static_assert(kRows || kBlocks || std::is_same_v<Scales, epilogue::TensorScales>,
                "Scales is TensorScales, RowScales or BlockScales of kiln/epilogue.hpp");
  return kRows ? GatedScales::rows : kBlocks ? GatedScales::blocks : GatedScales::tensor;
}

/// Of A and of W.
inline std::array<GemmArea, 2> gated_scale_areas(GatedScales scales, const GatedProblem& p,
                                                 const float* scales_a, const float* scales_w) {
  const GemmStride blocks = scale_blocks(p.k);
  const GemmStride of_a = scales == GatedScales::rows     ? p.m
                          : scales == GatedScales::blocks ? blocks * scale_leading(p.m)
                                                          : 1;
  const GemmStride of_w = scales == GatedScales::rows     ? 2ll * p.n
                          : scales == GatedScales::blocks ? 2 * blocks * scale_blocks(p.n)
                                                          : 1;
  return {gemm_area(scales_a, of_a, 0, 0, 0), gemm_area(scales_w, of_w, 0, 0, 0)};
}

/// @throws UserError when out overlaps what is read
inline GatedProblem checked_fp8_gated(GatedWeights weights, GatedScales scales, const bfloat16* out,
                                      const float8_e4m3* a, const float8_e4m3* w,
                                      const GatedProblem& p, const float* scales_a,
                                      const float* scales_w) {
  const GemmArea area = gemm_area(out, GemmStride{p.m} * p.n, 1, p.n, p.n);
  if (overlap(area, gemm_area(a, GemmStride{p.m} * p.k, 1, p.k, p.k)) ||
      overlap(area, gated_weights_area(w, weights, p)))
    throw UserError("gemm: out overlaps A or W");
  for (const GemmArea& read : gated_scale_areas(scales, p, scales_a, scales_w))
    if (overlap(area, read)) throw UserError("gemm: out overlaps the scales");
  return p;
}

}  // namespace gemm_detail

/// Activation is Silu, Gelu, GeluTanh or Relu of kiln/epilogue.hpp, or a struct like those in a
/// header of your own; Scales is TensorScales or RowScales, or with Fp8Sums::scaled BlockScales.
template <class Activation, class Scales = epilogue::TensorScales,
          GatedWeights weights = GatedWeights::stacked, Fp8Sums sums = Fp8Sums::exact>
GemmFp8GatedKernel gemm_fp8_gated_kernel(const std::filesystem::path& activation_header = {}) {
  constexpr GatedScales kScales = gemm_detail::gated_scales<Scales>();
  static_assert((kScales == GatedScales::blocks) == (sums == Fp8Sums::scaled),
                "Fp8Sums::scaled and BlockScales belong together");
  auto base =
      gemm_fp8_gated_base<sums>(weights, gemm_detail::gated_activation<Activation>(), kScales);
  base.source = gemm_detail::with_header(base.source, activation_header);
  return base.template typed<GemmFp8GatedKernel>([](bfloat16* out, const float8_e4m3* a,
                                                    const float8_e4m3* w, int m, int n, int k,
                                                    const float* scales_a, const float* scales_w) {
    return gemm_detail::checked_fp8_gated(weights, kScales, out, a, w, {m, n, k}, scales_a,
                                          scales_w);
  });
}
template <class Activation, GatedWeights weights = GatedWeights::stacked>
GemmFp8GatedKernel gemm_fp8_block_gated_kernel(
    const std::filesystem::path& activation_header = {}) {
  return gemm_fp8_gated_kernel<Activation, epilogue::BlockScales, weights, Fp8Sums::scaled>(
      activation_header);
}

}  // namespace kiln::templates
