// How long a job of a given number of ranks tunes, from what candidates cost. A pure function.
#pragma once

#include <span>

#include "runtime/ranks/shard.hpp"

namespace sim {

using kiln::runtime::ranks::Cost;
using kiln::runtime::ranks::kShareToEstimate;
using kiln::runtime::ranks::ShardOptions;

struct TuningModel {
  ShardOptions one_rank;      ///< threads and overlap; `ranks` is not looked at
  std::size_t finalists = 4;  ///< timed again by every rank after sharding, and the default
  std::size_t problems = 1;
  std::size_t share_to_estimate = kShareToEstimate;
  double setup = 0;               ///< seconds, however few candidates are measured: data, the
                                  ///< reference's result, timing the best in pairs
  double latency = 20e-6;         ///< seconds of one hop of an exchange: log2(ranks) hops each
  double bytes_per_second = 1e9;  ///< for what one rank receives
};

/// Wall seconds of one agreement.
struct TuningTimes {
  double replicate = 0, shard = 0, leader = 0;
  /// Parts of `shard`: the longest share; what every rank does whatever its share (the default, for
  /// the estimate of costs, and the finals); exchanges.
  double share = 0, everyone = 0, exchanges = 0;
};

/// `costs` are those of all candidates of all problems. @pre not empty
TuningTimes tuning_times(std::span<const Cost> costs, int ranks, const TuningModel& model);

}  // namespace sim
