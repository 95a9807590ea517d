// What a commit publishes: with ranks, the same on all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kiln/background.hpp"
#include "runtime/background/background_tuning.hpp"

namespace kiln::runtime {

/// Puts in use what was loaded; false where something else has been chosen meanwhile, which stays.
using PublishOne = std::function<bool(Proposal& one)>;

/// Publishes what was found, on all handles of its kernel that have launched its problem. Without
/// ranks that is all that was found. With ranks collective: the proposals of all are exchanged,
/// each problem gets the config that most ranks propose (of equals, the least), every rank loads
/// it, and what all have loaded is published.
/// @throws EnvironmentError when a rank fails; then no rank publishes anything, where the
/// communicator settles, else possibly some do when a rank dies during the last exchange
CommitReport agree_on_commit(detail::Engine& engine, const std::vector<Proposal>& found,
                             std::uint64_t generation, const PublishOne& publish);

}  // namespace kiln::runtime
