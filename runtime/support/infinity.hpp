// One name for seconds that are not known yet, or never will be.
#pragma once

#include <limits>

namespace kiln::runtime {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace kiln::runtime
