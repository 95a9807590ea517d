// A commit of several ranks: what is unsettled on any of them is exchanged, and all publish the
// same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kiln/background.hpp"
#include "runtime/background/commit_loader.hpp"
#include "runtime/background/pending_changes.hpp"
#include "runtime/background/proposal.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

/// Puts in use what was loaded; false where something else has been chosen meanwhile, which stays.
using PublishOne = std::function<bool(Proposal& one)>;

/// With ranks: a problem of this rank for which something provisional is in use and nothing was
/// found.
struct Unfound {
  std::weak_ptr<ServedHandle> handle;
  Values problem;
  bool given_up = false;  ///< nothing is looked for here any more
  bool settled = false;   ///< by the commit: what is in use stays, on all ranks
  bool pending = false;   ///< by the commit: a config was agreed on, and is being loaded
};

/// What a rank brings to a commit.
struct CommitWork {
  const std::vector<Proposal>& found;
  std::vector<Unfound>& unfound;
  Definitions& definitions;
  std::vector<PendingChange> pending{};  ///< since commits before this one
  std::uint64_t generation = 0;          ///< before it
  bool waits = true;                     ///< CommitOptions::wait
  bool loads_behind = false;             ///< something here loads what is pending
};

struct Committed {
  CommitReport report;
  bool settled = true;  ///< with ranks: nothing is looked for any more, on any of them
  std::vector<PendingChange> pending{};
};

/// Which problems are pending.
Places places_of(const std::vector<PendingChange>& pending);

/// Collective. Each problem that is unsettled on any rank gets the config that most ranks have
/// found (of equals, the least); what all ranks have loaded is published, and what one of them has
/// not built within a step is pending. What a rank cannot load, and what nobody has found and all
/// that looked for it have given up, stays as it is, on all ranks.
/// @throws EnvironmentError when a rank fails, and on that rank what has failed; then no rank
/// publishes anything, where the communicator settles, else possibly some do when a rank dies
/// during the last exchange
Committed commit_with_ranks(detail::Engine& engine, CommitWork work, const PublishOne& publish);

}  // namespace kiln::runtime
