// Timing of many candidates so that the comparison is fair: warm-up, cold caches, interleaved
// rounds, and a race that ends early for candidates that can no longer win.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/measure/bench.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// One candidate being timed.
struct Contestant {
  std::size_t candidate = 0;  ///< the tuner's index
  std::shared_ptr<Rig> rig;
  std::size_t launches = 1;  ///< per sample, so that a sample is well over the clock's resolution
  std::vector<double> samples;  ///< seconds per launch; the n-th ones of all are neighbours in time
  double spent = 0;             ///< seconds of device time on it
  double host_seconds = 0;      ///< of a call; 0: not known
  bool active = true;           ///< still in the race
  std::string failure;          ///< why it cannot be timed
  /// Where there is a failure. `not_tried`: the device lacks memory now.
  CandidateStatus failed_as = CandidateStatus::launch_failed;
  std::optional<TrialCut> cut{};  ///< the budget ended while it ran; its samples count
};

struct RaceOptions {
  int rounds = 5;                   ///< for every contestant
  int final_rounds = 12;            ///< more, for those near the front
  double sample_seconds = 1e-4;     ///< aimed at by launching repeatedly
  double warm_up_below = 1e-2;      ///< seconds: longer launches need no separate warm-up
  double warm_up_tolerance = 0.03;  ///< successive launches agree: warm
  int warm_up_launches = 8;         ///< at most, however they differ
  double contestant_seconds = 1.0;  ///< device time for one contestant; three samples in any case
  double give_up_factor = 2.0;      ///< over the leader's time: out after the first sample
  double final_factor = 1.10;       ///< over the leader's median: not in the final
  /// A contestant that is slower than the leader with this probability leaves the race.
  double confidence = 0.999;
  bool cold_cache = true;         ///< no launch finds its data in the last-level cache
  bool overlap_launches = false;  ///< programmatic launches begin before the one in front has ended
  bool graph_replay = true;  ///< samples of several launches are one graph, where the device can
  /// At this time the race ends with the samples taken so far. Later only the first contestant is
  /// still started. A contestant that was not started has neither samples nor a failure.
  TimeLimit deadline{};
};

struct RaceReport {
  std::vector<std::string> warnings;  ///< drift and throttling, with figures
};

/// Times all contestants on their bench. In each round every active contestant gives
/// one sample, so that a drift of the machine meets all alike. A contestant that takes
/// `give_up_factor` times as long as the leader beside it leaves after one sample, the others after
/// three at the earliest. A contestant for which `keeps(candidate)` is true gives at least three
/// samples, however slow it is, and leaves only when it is far behind. A launch that fails, or a
/// clock that does not advance, ends that contestant with a failure; the race continues with the
/// others. `progress(done, total)` counts samples.
RaceReport race(TrialBench& bench, std::vector<Contestant>& contestants, const RaceOptions& options,
                const std::function<bool(std::size_t)>& keeps,
                const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace kiln::runtime
