// The candidates that ranks measure together: the same list, found by each rank for itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"
#include "kiln/space_query.hpp"

namespace kiln::runtime {

struct CandidateList {
  std::vector<Values> configs;  ///< the default first, then the incumbent, then best guess first
  std::vector<std::uint32_t> launches;  ///< that each of them is; empty: all are one
  SpaceCount space;
  std::optional<std::size_t> incumbent{};  ///< its place, if there is one
  bool whole = true;                       ///< nothing that the space allows is left out
};

/// `most` configs that the space allows for this problem on this device: all, if there are no more.
/// Else three quarters of them are those that the cost model expects to be fastest, and the rest is
/// spread over the others. 0: as many as a search without a budget would try. `incumbent`, a config
/// that did well before, is among them if the space still allows it; empty: there is none. Depends
/// on the arguments alone.
/// @throws UserError on a space that makes no sense.
CandidateList candidate_list(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                             const DeviceInfo& device, std::size_t most, std::uint64_t seed,
                             const Values& incumbent = {});

}  // namespace kiln::runtime
