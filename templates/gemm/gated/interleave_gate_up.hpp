// Weights of a gated product (gemm_gated.hpp) from stacked to interleaved rows:
//
//   out[16 * (j / 8) + j % 8][l] = gate[j][l],  out[16 * (j / 8) + 8 + j % 8][l] = up[j][l],
//   0 <= j < n, 0 <= l < k
//
// gate and up: [n][k]; out: [gated_rows(n)][k]; row-major without gaps, T = float, __half,
// __nv_bfloat16 or e4m3. They are copied bit by bit; rows of out that neither gate nor up has are
// zeros. No alignment is needed; rows of multiples of 16 bytes at addresses of such are moved 16
// bytes at a time. out may not overlap the others. For stacked weights w [2][n][k], gate is w and
// up is w + n * k.
//
//   auto interleave = runtime.tuned(kiln::templates::interleave_gate_up_kernel<kiln::bfloat16>());
//   interleave(stream, out, gate, up, n, k);
#pragma once

#include "gemm_gated.hpp"

namespace kiln::templates {

struct InterleaveGateUp {
  int block;  // threads per block
  int items;  // elements of a row of out per thread

  constexpr int threads() const { return block; }
  constexpr int tile() const { return block * items; }  // elements of a row per block
  constexpr unsigned shared_bytes() const { return 0; }
  constexpr unsigned tiles(int k) const {
    return static_cast<unsigned>((static_cast<long long>(k) + tile() - 1) / tile());
  }
  /// Blocks; the largest unsigned if there are more.
  constexpr unsigned grid(int n, int k) const {
    const unsigned long long blocks = static_cast<unsigned long long>(gated_rows(n)) * tiles(k);
    return blocks > ~0u ? ~0u : static_cast<unsigned>(blocks);
  }
};

/// Of gate, and of up.
struct GateUpRows {
  int n, k;
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::InterleaveGateUp, block, items)
KILN_PROBLEM(kiln::templates::GateUpRows, n, k)

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16, kiln::bfloat16 or kiln::float8_e4m3. Arguments: out, gate, up, n, k.
template <class T>
using InterleaveGateUpKernel =
    Kernel<InterleaveGateUp, GateUpRows, void(T*, const T*, const T*, int, int)>;
/// What it is without its signature.
template <class T>
kiln::detail::UntypedKernel<InterleaveGateUp, GateUpRows> interleave_gate_up_base();
template <class T>
InterleaveGateUpKernel<T> interleave_gate_up_kernel() {
  return interleave_gate_up_base<T>().template typed<InterleaveGateUpKernel<T>>(
      [](T* out, const T* gate, const T* up, int n, int k) {
        using namespace gemm_detail;
        const GemmStride rows = n;
        const GemmArea area = gemm_area(out, gated_rows(n) * k, 1, k, k);
        for (const T* const from : {gate, up})
          if (overlap(area, gemm_area(from, rows * k, 1, k, k)))
            throw UserError("interleave_gate_up: out overlaps gate or up");
        return GateUpRows{n, k};
      });
}

}  // namespace kiln::templates
#endif
