// The candidates that ranks measure together: the same list, found by each rank for itself.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"
#include "kiln/space_query.hpp"

namespace kiln::runtime {

struct CandidateList {
  std::vector<Values> configs;  ///< the default first, then best guess first
  SpaceCount space;
};

/// `most` configs that the space allows for this problem on this device: all, if they are so few,
/// else three quarters of them by what the cost model expects and the rest spread over what it
/// thinks little of. 0: as many as a search without a budget would try. Depends on the arguments
/// alone.
/// @throws UserError on a space that makes no sense.
CandidateList candidate_list(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                             const DeviceInfo& device, std::size_t most, std::uint64_t seed);

}  // namespace kiln::runtime
