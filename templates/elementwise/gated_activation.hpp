// The middle of a gated MLP (SwiGLU, GeGLU, ReGLU) whose gate and up projections lie side by side:
//
//   out[r][h] = activation(x[r][h]) * x[r][hidden + h],  0 <= r < rows, 0 <= h < hidden
//
// x: [rows][2 * hidden], out: [rows][hidden], row-major without gaps, of T = float, __half or
// __nv_bfloat16. Activation is one of kiln/epilogue.hpp: Silu, Gelu (exact), GeluTanh or Relu. It
// and the product are in float; out rounds once. What NaNs, infinities and zeros become,
// gemm_gated.hpp says of its gate and up. Where x and out are 16-byte aligned and rows are
// multiples of 16 bytes, 16 bytes are moved at a time. out may not overlap x.
//
// A GEMM that does this by itself is gemm_gated.hpp; this kernel is for products that another
// kernel computes, such as an all-gather and GEMM (gemm_all_gather.hpp).
//
//   using kiln::epilogue::Silu;
//   auto activate = runtime.tuned(
//       kiln::templates::gated_activation_kernel<kiln::bfloat16, Silu>());
//   activate(stream, out, x, rows, hidden);
#pragma once

#include "kiln/epilogue.hpp"
#include "residual_add.hpp"

namespace kiln::templates {

struct GatedActivation {
  int block;  // threads per block
  int items;  // elements of a row of out per thread

  constexpr int threads() const { return block; }
  constexpr int tile() const { return block * items; }  // elements of a row per block
  constexpr unsigned shared_bytes() const { return 0; }
  constexpr unsigned tiles(int hidden) const {
    return static_cast<unsigned>((static_cast<long long>(hidden) + tile() - 1) / tile());
  }
  /// Blocks; the largest unsigned if there are more.
  constexpr unsigned grid(int rows, int hidden) const {
    const unsigned long long blocks = static_cast<unsigned long long>(rows) * tiles(hidden);
    return blocks > ~0u ? ~0u : static_cast<unsigned>(blocks);
  }
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::GatedActivation, block, items)

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: out, x, rows, hidden.
template <class T>
using GatedActivationKernel = Kernel<GatedActivation, Activations, void(T*, const T*, int, int)>;
/// Activation is Silu, Gelu, GeluTanh or Relu of kiln/epilogue.hpp.
template <class T, class Activation>
GatedActivationKernel<T> gated_activation_kernel();

}  // namespace kiln::templates
#endif
