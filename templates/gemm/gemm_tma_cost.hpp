// Guesses at the times of the GEMMs for Hopper, fitted to an H200: gemm_tma.hpp, gemm_small_m.hpp.
#pragma once

#include "kiln/device.hpp"
#include "templates/gemm/gemm.hpp"
#include "templates/gemm/gemm_small_m.hpp"
#include "templates/gemm/tma/gemm_tma.hpp"

namespace kiln::templates {

/// Seconds from launch to launch with cold caches. Both are on one scale, so that they may be
/// compared with each other. Infinite for what cannot run. `traffic`: bytes of A, B and C that must
/// be moved at least once; `stored`: the part of a tile's sums that is stored.
double gemm_tma_cost(const GemmTma& c, const GemmProblem& p, double traffic, const DeviceLimits& d,
                     double stored = 1);
double gemm_small_m_cost(const GemmSmallM& c, const GemmProblem& p, double traffic,
                         const DeviceLimits& d);

}  // namespace kiln::templates
