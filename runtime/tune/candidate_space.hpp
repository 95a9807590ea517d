// The space of a problem's candidates.
#pragma once

#include <cstdint>
#include <span>

#include "kiln/detail/tunable.hpp"
#include "runtime/search/search_space.hpp"

namespace kiln::runtime {

/// The configs that the tuner may consider: `authored` (Tunable::configs), or all where its author
/// lists none; in either case those that break no constraint and that a device with these limits
/// can launch. Refers to what it is given, except `authored`.
inline SearchSpace candidate_space(const detail::Tunable& subject,
                                   std::span<const std::int64_t> problem,
                                   const DeviceLimits& limits, std::span<const Values> authored) {
  const auto can_launch = [&subject, problem, &limits](std::span<const std::int64_t> config) {
    return subject.launch_obstacle(config, problem, limits).empty();
  };
  return {subject.space(), problem, limits, can_launch, authored};
}

}  // namespace kiln::runtime
