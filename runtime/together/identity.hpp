// What must be the same on all ranks that tune together.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/ranks/messages.hpp"
#include "runtime/together/trials.hpp"
#include "runtime/tune/candidate_list.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// `lists`: the candidates of each problem.
ranks::Identity ranks_identity(Workshop& workshop, std::span<const TunableProblem> problems,
                               std::span<const CandidateList> lists, const TuneOptions& options);

/// A random identity for a store in memory, which no other process can see.
std::uint64_t unseen_store();

}  // namespace kiln::runtime
