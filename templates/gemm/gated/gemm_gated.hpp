// Gated products, the first half of a gated MLP (SwiGLU, GeGLU, ReGLU): one GEMM computes gate and
// up projection, and what is stored is
//
//   out[i][j] = activation(sum_l A[i][l] * gate[j][l]) * sum_l A[i][l] * up[j][l],
//   0 <= i < m, 0 <= j < n, 0 <= l < k
//
// A: [m][k], out: [m][n], both row-major without gaps, as gate and up [n][k] are, of T = float,
// __half or __nv_bfloat16; gemm_fp8_gated.hpp has 8-bit floats. Sums, activation and product are in
// float; out rounds once. With k = 0 all is activation(0) * 0. The down projection is a plain GEMM
// (gemm.hpp) of `out`.
//
// Activation is one of kiln/epilogue.hpp without parameters: Silu, Gelu (exact), GeluTanh, Relu, or
// one of your own. Sums of NaNs, infinities and zeros are as in gemm.hpp. A NaN in gate or
// up is one in out, and an infinity goes through both factors as float arithmetic has it: of
// -infinity Relu makes 0 and Gelu -6e-9, Silu and GeluTanh NaN. A row of
// zeros in A becomes activation(0) * 0, zeros.
//
// The weights are one array, W, in one of two layouts:
//   GatedWeights::stacked      [2][n][k]: gate, and up behind it, as models store a merged
//                              projection
//   GatedWeights::interleaved  [gated_rows(n)][k]: 8 rows of gate, 8 of up, and so on, which
//                              interleave_gate_up.hpp writes. The last 8 rows of each may be fewer;
//                              what fills them up is never in a result
//
// On sm_90, with n and k that are multiples of 8, both are read by tensor maps, stacked ones by a
// map of four dimensions, and the tensor cores see the same. A, W and out must be aligned to 16
// bytes then, and a launch with one that is not is a UserError. Other n: interleaved weights of a
// multiple of 8 k may still be read so, stacked ones by the bodies of sm_80.
//
//   using kiln::epilogue::Silu;
//   auto gated = runtime.tuned(kiln::templates::gemm_gated_kernel<kiln::bfloat16, Silu>());
//   gated(stream, out, a, w, m, n, k);  // then gemm(stream, y, out, down, m, hidden, n)
//
// Negative sizes, an n above 2^29, a k above kMostDepth, and an `out` that overlaps A or W are a
// UserError. An empty `out` is left alone.
#pragma once

#include "../gemm.hpp"
#include "../shared/gemm_pairs.hpp"

namespace kiln::templates {

/// `n`: columns of out.
struct GatedProblem {
  int m, n, k;
};

/// Of the product of both projections, whose columns are in groups of 8, gate and up in turn. C,
/// which is narrower, has rows of `ldc` elements.
constexpr GemmShape<false> gated_shape(int m, int n, int k) {
  return {.m = m,
          .n = static_cast<int>(gated_rows(n)),
          .k = k,
          .ldc = n,
          .lda = k,
          .ldb = k,
          .batch = 1,
          .stride_c = 0,
          .stride_a = 0,
          .stride_b = 0};
}
template <GemmTranspose>
constexpr GemmShape<false> gemm_shape(const GatedProblem& p) {
  return gated_shape(p.m, p.n, p.k);
}

/// Whether a config's tiles hold gate and up of each of their columns of C where one thread has
/// both.
constexpr bool takes_pairs(const Gemm& c) {
  if (c.uses_tma()) return c.swap || (c.block_n % 32 == 0 && c.split_k() == 1 && c.parts == 1);
  return c.body != GemmBody::simt || c.tile_n % 2 == 0;
}

/// Whether out is a tensor map.
constexpr bool gated_by_map(const Gemm& c) { return c.stores_by_map() && !c.swap; }

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::GatedProblem, m, n, k)

#if !defined(KILN_DEVICE_PASS)
#include "gemm_gated_kernel.hpp"
#endif
