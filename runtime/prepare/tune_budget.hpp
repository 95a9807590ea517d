// Tuning many problems within one budget.
#pragma once

#include <exception>
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

/// What became of a problem, or of a choice.
struct BudgetResult {
  TuneResult result{};
  std::exception_ptr failure{};  ///< what tuning it threw; the result says it in words
};

/// A failure as a result. `named` says of what; `config`: its default.
/// @throws DeviceLost
TuneResult failed_result(TuneResult named, Values config, const std::exception_ptr& failure);

/// One result for each; equal problems share theirs. First each problem gets something to launch:
/// what is on record, else its untuned config, compiled on all cores. Then `options.max_seconds` (>
/// 0) is divided as next_slice() says. What was not reached stays on what it has got. Without
/// ranks. A problem that fails has a result that says why.
/// @throws DeviceLost at once
std::vector<BudgetResult> tune_within(detail::Engine& engine,
                                      std::span<const WeightedProblem> problems,
                                      const TuneOptions& options);

}  // namespace kiln::runtime
