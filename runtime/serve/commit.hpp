// What a commit publishes: with ranks, the same on all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "kiln/background.hpp"
#include "runtime/serve/background.hpp"

namespace kiln::runtime {

/// Fills in the report, and returns what is to be published, loaded. Without ranks that is all that was
/// found. With ranks collective: the proposals of all are exchanged, each problem gets the config that
/// most ranks propose (of equals, the least), every rank loads it, and what all have loaded is published.
/// @throws EnvironmentError when a rank fails; then no rank publishes anything, where the communicator
/// settles, else possibly some do when a rank dies during the last exchange
std::vector<Proposal> agree_on_commit(detail::Engine& engine, const std::vector<Proposal>& found,
                                      std::uint64_t generation, CommitReport& report);

}  // namespace kiln::runtime
