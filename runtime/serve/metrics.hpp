// The numbers that a runtime tells.
#pragma once

#include "kiln/runtime.hpp"
#include "kiln/runtime_metrics.hpp"

namespace kiln::runtime {

/// As Runtime::statistics.
RuntimeStatistics statistics_of(detail::Engine& engine);
/// As Runtime::metrics.
RuntimeMetrics metrics_of(detail::Engine& engine);

}  // namespace kiln::runtime
