// The last word on the winner: finalists timed side by side, in pairs, until the order is clear.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runtime/measure/race.hpp"
#include "runtime/measure/statistics.hpp"

namespace kiln::runtime {

struct FinalsOptions {
  double seconds = 2.0;          ///< most wall time, unless the least number of rounds takes longer
  double tie_band = 0.005;       ///< relative: closer than this is a tie, whatever samples say
  std::size_t must_beat = 1;     ///< leading finalists that only a certainly faster one replaces
  double least_seconds = 0.3;    ///< machines have slow spells: nothing is certain earlier
  int least_rounds = 7;          ///< however long they take
  double sample_seconds = 3e-4;  ///< aimed at by launching repeatedly
  double deviations = 2.6;  ///< of the estimate, that make its bounds: each is wrong once in 200
  bool cold_cache = true;
  bool overlap_launches = false;  ///< as in a race
  bool graph_replay = true;
  TimeLimit deadline{};  ///< no round begins that would not end before it, going by the longest
  /// Leaves the device without work for `seconds`. Null: the final never pauses.
  std::function<void(double seconds)> rest{};
};

struct FinalsResult {
  std::size_t winner = 0;             ///< index into the finalists
  std::size_t rounds = 0;             ///< that were timed
  std::vector<Interval> behind;       ///< log of each one's time over the fastest's, paired
  std::vector<std::string> warnings;  ///< drift, throttling, noise over the tie band
};

/// Re-times the finalists in interleaved, shuffled rounds; their `samples` are those of the final
/// afterwards. `finalists` come in the order of preference (the default, the incumbent, then the
/// fixed order of the space). The first wins that is not slower than the fastest by more than the
/// tie band; the `must_beat` leading ones (those which the caller would rather keep) also win when
/// it is only not certain that they are slower. A round is paired: what slows the machine down
/// meets all, and ratios within the round cancel it; where it meets some and not others, what the
/// undisturbed samples say is sharper, and is used. Where work without a pause has slowed the
/// device down, the final pauses between samples, and does not count the slow rounds unless pauses
/// are of no use. A finalist that is certainly outside the tie
/// band is not timed again, and the final ends as soon as the winner is certain. A finalist that
/// fails is out; when all do, the winner is one that has `failure` set. `stop()` ends the final
/// early with the answer so far; before the first round is complete that is choose() of the samples
/// that came in.
/// @throws nothing of its own; finalists must not be empty.
FinalsResult finals(TrialBench& bench, std::vector<Contestant>& finalists,
                    const FinalsOptions& options, const std::function<bool()>& stop);

/// The same decision from samples that are there, of different rounds: bounds are wider, nothing is
/// timed. For an answer at any moment. Finalists without samples or with a failure cannot win.
std::size_t choose(const std::vector<Contestant>& finalists, const FinalsOptions& options);

}  // namespace kiln::runtime
