// What launchers tell a process: its place in the job, and where the ranks of the job can meet.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kiln/communicators.hpp"
#include "kiln/detail/environment.hpp"

namespace kiln::runtime::ranks {

/// As kiln::detail::environment: empty when the variable is not set.
using Lookup = std::function<std::string_view(detail::Variable)>;
Lookup process_environment();

/// @throws UserError as rank_place_from_environment
std::optional<RankPlace> rank_place(const Lookup& environment, bool mpi = false);

struct MeetingPoint {
  std::string host;
  std::uint16_t port = 0;
  std::string chosen;  ///< how the port was chosen, for messages
};
/// Where the ranks of the job of `place` meet over TCP. @throws UserError
MeetingPoint meeting_point(const RankPlace& place, const Lookup& environment);

/// A text that is the same on all ranks of a job, and differs between jobs as far as the launcher
/// tells.
std::string job_identity(const std::optional<RankPlace>& place, const Lookup& environment);

/// The first of a Slurm node list, as `a[01-03,7]b,c` is of a01b. @throws UserError
std::string first_host(std::string_view nodes);

}  // namespace kiln::runtime::ranks
