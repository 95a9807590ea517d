// Tuning many problems within one budget.
#pragma once

#include <span>
#include <vector>

#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// A problem, and how often it is launched.
struct WeightedProblem {
  ServedHandle* handle;
  Values problem;  ///< bucketed
  double weight;   ///< finite, 0 or more
};

/// One result for each; equal problems share theirs. First each problem gets something to launch:
/// what is on record, else its untuned config, compiled on all cores. Then `options.max_seconds` (>
/// 0) is divided as next_slice() says. What was not reached stays on what it has got. Without
/// ranks. A problem that fails has a result that says why.
/// @throws where all fail, what tuning the first of them throws; DeviceLost at once
std::vector<TuneResult> tune_within(detail::Engine& engine,
                                    std::span<const WeightedProblem> problems,
                                    const TuneOptions& options);

}  // namespace kiln::runtime
