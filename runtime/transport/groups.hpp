// What ranks name to Communicator::split, once all know it.
#pragma once

#include <algorithm>
#include <span>

#include "kiln/communicator.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::runtime {

/// The same on all ranks. Nothing: they can be split.
inline Communicator::Failure obstacle_of(std::span<const int> groups) {
  const auto negative = std::ranges::find_if(groups, [](int group) { return group < 0; });
  if (negative == groups.end()) return {};
  return RankFailure{RankFailure::Kind::mismatch,
                     {static_cast<int>(negative - groups.begin())},
                     kiln::detail::format("group {} is negative", *negative)};
}

}  // namespace kiln::runtime
