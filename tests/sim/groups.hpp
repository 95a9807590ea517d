// A job whose ranks first agree in groups, as Communicator::split makes them, and then all
// together.
#pragma once

#include <vector>

#include "world.hpp"

namespace sim {

struct Played {
  Scenario scenario;
  Outcome outcome;
};

/// The groups are of ranks r with equal r % groups, each with a communicator, caches and, if no
/// rank is odd, a problem of its own. All ranks follow, each when it is through with its group; those
/// that died there are missing. @param groups at most half as many as ranks, so that each has two
std::vector<Played> in_groups(const Scenario& job, int groups);

}  // namespace sim
