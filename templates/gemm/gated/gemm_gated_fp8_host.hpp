// What the host halves of gated GEMMs that leave as 8-bit floats share, whatever they multiply:
// what is written, and how it is judged.
#pragma once

#include <cstddef>
#include <tuple>
#include <vector>

#include "templates/gemm/gated/gemm_gated_fp8.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

// Bytes of q, and with scales of blocks of these, too.
inline double gated_tensor_bytes(const GatedProblem& p) { return 1.0 * p.m * p.n; }
inline double gated_blocks_bytes(const GatedProblem& p) {
  return gated_tensor_bytes(p) + sizeof(float) * 1.0 * p.m * scale_blocks(p.n);
}

inline void add_gated_q(const GatedProblem& p, Workload& w) {
  w.output<float8_e4m3>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
}
inline void add_gated_scales(const GatedProblem& p, Workload& w) {
  w.output<float>(Rows{.rows = static_cast<std::size_t>(scale_blocks(p.n)),
                       .columns = static_cast<std::size_t>(p.m),
                       .leading = static_cast<std::size_t>(scale_leading(p.m))});
}

/// Rows of n of what gated_values has given.
inline RowValues rows_of_values(const std::vector<float>& v, int n) {
  return [&v, n](std::ptrdiff_t row) {
    return std::vector<float>(v.begin() + row * n, v.begin() + (row + 1) * n);
  };
}

/// `scales`: of q.
inline auto gated_fp8_check(Fp8Scales scales, const NeighboursAllowed& allowed) {
  return [=](const GatedProblem& p, const auto& got, const auto& expected) {
    return wrong_fp8({p.m, p.n}, scales, allowed, std::get<0>(got), std::get<0>(expected));
  };
}

}  // namespace kiln::templates
