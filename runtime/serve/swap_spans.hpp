// The span of each config that takes the place of another one, or is the first of its problem.
#pragma once

#include <functional>

#include "kiln/definition.hpp"
#include "runtime/support/spans.hpp"

namespace kiln::runtime {

/// For ProblemBound::published. What it is given must outlive it.
std::function<void(const Values& problem, const Values& config, const Values* before)> swap_spans(
    Spans& spans, const KernelDefinition& kernel);

}  // namespace kiln::runtime
