// A guess at a GEMM's time from its tiles.
#pragma once

#include <cstddef>

#include "kiln/device.hpp"
#include "templates/gemm/gemm.hpp"

namespace kiln::templates {

/// Seconds, to be trusted in their order only. `registers` is a guess at those of a thread.
double gemm_cost(const Gemm& c, const GemmProblem& p, std::size_t element_bytes, int registers,
                 const DeviceLimits& d);

}  // namespace kiln::templates
