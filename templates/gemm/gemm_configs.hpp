// The configs of a GEMM that are worth a look for a problem, out of millions of combinations.
#pragma once

#include <cstddef>
#include <vector>

#include "kiln/device.hpp"
#include "templates/gemm/gemm.hpp"

namespace kiln::templates {

/// Fields that a body does not look at have one value each. The space's constraints decide about
/// what is listed.
std::vector<Gemm> gemm_configs(const GemmProblem& p, std::size_t element_bytes,
                               const DeviceLimits& d);

}  // namespace kiln::templates
