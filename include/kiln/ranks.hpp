// How the ranks of a job tune together.
//
//   kiln::RankOptions options;
//   options.strategy = kiln::RankStrategy::shard;
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kiln/version.hpp"

namespace kiln {

enum class RankStrategy {
  replicate,  ///< every rank times every candidate
  shard,      ///< candidates are split so that ranks finish together; needs like devices
  leader      ///< one rank times, all receive; needs like devices
};
const char* to_string(RankStrategy strategy) noexcept;

/// How the ranks' times of one candidate become one.
enum class RankReduction {
  max,  ///< for kernels that wait for each other: the slowest rank is what counts
  mean
};
const char* to_string(RankReduction reduction) noexcept;

/// What to do when only some ranks have a record. Ranks on unlike devices do not distribute theirs,
/// because a record is of one model.
enum class OnPartialCache { distribute, retune };

/// Every rank gives the same options; only the seconds may differ. A difference is found and named.
struct RankOptions {
  RankStrategy strategy = RankStrategy::replicate;
  RankReduction reduction = RankReduction::max;
  OnPartialCache on_partial_cache = OnPartialCache::distribute;
  /// The kernel communicates inside: candidates run one by one on all ranks together, and one that
  /// fails on one rank is skipped by all. Only with `replicate`.
  bool lockstep = false;
  /// With `lockstep`: called for each launch of a candidate (or as many in a row as are one
  /// sample), with the function that makes it and waits for its end; in a region, for each run.
  /// What a rank does by itself in between, such as a `check`, may take longer. A guard may end
  /// kernels that wait for each other in vain, and throws then on every rank, as it does when the
  /// function throws on one of them: the candidate is `hung` and launched no more; a region finds
  /// out which candidate of the run that was. What it throws before it has called the function is
  /// this rank's failure. All ranks have a guard (SymmetricMemory::guard) or none has; a guard
  /// without `lockstep` is a UserError, but for regions. Candidates in workers need none. Empty:
  /// nothing ends candidates in this process.
  std::function<void(const std::function<void()>& launches)> guard{};
  int leader = 0;
  /// How many of the best candidates of a problem, and the default, are timed again and then chosen
  /// from; 0: the first times decide. With `lockstep` they take turns on all ranks, with several
  /// launches in a row, and so does the best of those that are one launch, two launches and so on.
  /// Sharding times each candidate on one rank: of a problem whose candidates several ranks have,
  /// these are then timed on every rank. Else it has no effect.
  std::uint32_t finalists = 4;
  /// The default stays unless beaten by more than this part of its time.
  float margin = 0.005F;

  double first_seconds = 60;  ///< how long to wait for the last rank to arrive
  double step_seconds = 30;   ///< for one exchange
  double tune_seconds = 600;  ///< for this rank's share of compiling and timing
};

}  // namespace kiln
