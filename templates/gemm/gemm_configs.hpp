// The configs of a GEMM that are searched for a problem, out of millions of combinations.
#pragma once

#include <cstddef>
#include <vector>

#include "kiln/device.hpp"
#include "templates/gemm/gemm.hpp"

namespace kiln::templates {

/// with_wide: also tiles of 64 rows and 256 columns, and those of which half of the columns are
/// added at a time (GemmTma::halved()).
enum class GemmTiles { usual, with_wide };

/// Fields that a body does not look at have one value each. The space's constraints decide about
/// what is listed. No config is programmatic: alone such a launch is no faster, and beside other
/// kernels it takes their multiprocessors early. A program whose stream is a chain of such launches
/// sets the field (`with_config`).
/// `element_bytes`: of A and B.
std::vector<Gemm> gemm_configs(GemmTranspose op, const GemmShape<true>& p,
                               std::size_t element_bytes, GemmOperands operands,
                               const DeviceLimits& d, GemmTiles tiles = GemmTiles::usual);

/// Those of the shift body, for op nt and unaligned rows; none for others.
std::vector<Gemm> gemm_shift_configs(const GemmShape<true>& p, const DeviceLimits& d);

}  // namespace kiln::templates
