// Kernels and choices within one budget.
#pragma once

#include <span>
#include <vector>

#include "kiln/detail/choice_core.hpp"
#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// One of `handle` and `choice` is null.
struct BudgetJob {
  ServedHandle* handle;
  detail::ChoiceCore* choice;
  Values problem;
  double weight;  ///< finite, 0 or more
};

/// One result for each. The kernels of choices are problems as any other (tune_within()), and then
/// each choice's alternatives meet, in the time that is kept for that. A job that fails has a
/// result that says why.
/// @throws where all fail, what the first of them throws; UserError on a kernel that has nothing to
/// do; DeviceLost at once
std::vector<TuneResult> tune_model(detail::Engine& engine, std::span<const BudgetJob> jobs,
                                   const TuneOptions& options);

}  // namespace kiln::runtime
