// A guess at a GEMM's time from its tiles.
#pragma once

#include <cstddef>

#include "kiln/device.hpp"
#include "templates/gemm/gemm.hpp"

namespace kiln::templates {

/// Seconds, of which only the order is meaningful. `registers` is an estimate per thread, `traffic`
/// is in bytes, `element_bytes` those of A and B; of a tile's sums `stored` are stored, a part of
/// 1. `unaligned_rows`: GemmShape::has_unaligned_rows() of 2-byte operands that lie along k.
double gemm_cost(const Gemm& c, const GemmProblem& p, double traffic, std::size_t element_bytes,
                 GemmOperands operands, int registers, const DeviceLimits& d, double stored = 1,
                 bool unaligned_rows = false);

}  // namespace kiln::templates
