// What a problem's candidates cost a rank, measured, or guessed: enough to tell a large problem
// from a small one.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "runtime/ranks/shard.hpp"
#include "runtime/together/trials.hpp"

namespace kiln::runtime {

/// The same on every rank. Empty where the kernel does not say how much it reads and writes.
inline std::vector<ranks::Cost> likely_costs(const TunableProblem& problem,
                                             std::size_t candidates) {
  constexpr double kTrialSeconds = 5e-3;       // of any candidate
  constexpr double kDataBytesPerSecond = 5e8;  // drawing them, and their results, once
  const double bytes = problem.what.bytes(problem.problem);
  if (!(bytes > 0) || !std::isfinite(bytes) || candidates == 0) return {};
  const double data = bytes / kDataBytesPerSecond / static_cast<double>(candidates);
  return {candidates, {0, static_cast<float>(kTrialSeconds + data)}};
}

/// As the agreement has them.
inline std::vector<ranks::Cost> told(const std::vector<Trials::Cost>& measured) {
  std::vector<ranks::Cost> costs;
  for (const Trials::Cost& cost : measured)
    costs.push_back(
        {static_cast<float>(cost.compile_seconds), static_cast<float>(cost.run_seconds)});
  return costs;
}

}  // namespace kiln::runtime
