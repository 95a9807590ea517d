// What hosts tell the kernels of all ranks, and read of them, while those wait for each other.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "kiln/peers.cuh"

namespace kiln::runtime {

/// Ends all waits of the kernels of one rank, because `rank` gives up. The first one to do so is
/// named.
void give_up_at(PeersControl& control, int rank) noexcept;

/// 0, or 1 + the rank that gave up.
unsigned given_up_by(const PeersControl& control) noexcept;

/// What a wait waited for in vain.
struct Stall {
  int rank;
  unsigned flag, epoch;
};
std::optional<Stall> stall_of(const PeersControl& control, unsigned flags) noexcept;

/// Which rank gave up, as this rank's control says, and which one waited for which; empty: none
/// did. `control`: a copy, by rank; `flags`: of each rank, for each source. Takes a tenth of a
/// second at most.
std::string why_given_up(const std::function<PeersControl(int rank)>& control, int rank, int ranks,
                         unsigned flags);

}  // namespace kiln::runtime
