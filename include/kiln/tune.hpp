// How tuning is asked for. What it found: tune_result.hpp.
//
//   runtime.tuned(kernel).tune(Elementwise{1 << 24}, {.max_seconds = 10});
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "kiln/ranks.hpp"
#include "kiln/tune_result.hpp"

namespace kiln {

class Communicator;

/// Where a kernel's candidates run while they are tuned: in this process, where one that faults
/// costs a CUDA device or, on the host device, the program; or in a worker, a process of Kiln's
/// own, where it costs that process. Callables (functions with knobs, alternatives of choices) and
/// regions stay in this process, and so do others, with a warning, where no worker can be of use
/// (docs/engine.md). One that cannot be started just now is no such reason: after three tries
/// `tune` throws an EnvironmentError, and a launch runs the untuned config.
enum class Isolation {
  off,          ///< in this process
  after_fault,  ///< in this process, until a candidate of the problem has faulted, in it or in an
                ///< earlier one on the same store; then in a worker
  always        ///< in a worker
};

/// How the launches of one sample are started, where a launch is so short that a sample has
/// several.
enum class Launching {
  graph,  ///< as one graph, on devices that have graphs: the host's part of a launch does not
          ///< count. For programs that capture their launches
  eager   ///< one by one: if enqueuing a launch takes longer than running it, the enqueuing time is
          ///< what is measured. For programs that launch as they go
};

struct TuneProgress {
  enum class Phase { compile, verify, time, finals };
  Phase phase = Phase::compile;
  std::size_t done = 0, total = 0;  ///< candidates (finals: rounds) of this phase
  std::size_t evaluated = 0;        ///< candidates finished so far, earlier runs' included
  double best_seconds = 0;          ///< 0: none yet
  /// What is tuned now, as in TuneResult: kernels and choices of one name differ in their types or
  /// in the fields of their problems. These are valid during the call.
  std::string_view kernel{};
  std::span<const std::string> types{}, problem_fields{};
  std::span<const std::int64_t> problem{};
  /// Set while a trial takes longer than it may (TuneOptions::candidate_seconds): the candidate's
  /// config, as text, and how long it has taken so far. Otherwise empty and 0.
  std::string overdue{};
  double overdue_seconds = 0;
};

/// A run ends when the search has nothing more to try, or at the first limit that is reached; its
/// answer is the best so far. Whatever was measured is kept, and the next run continues from there.
struct TuneOptions {
  /// Empty: the strategy that wins on measured spaces. An unknown name is a UserError that lists
  /// the known ones.
  std::string strategy{};
  std::uint64_t seed = 1;  ///< of data and strategies
  /// Candidates tried, the default and those of earlier runs included; 0: no limit. Left open:
  /// $KILN_MAX_EVALUATIONS, else no limit.
  std::optional<std::size_t> max_evaluations{};
  /// Seconds of wall time, including waiting for other tunings; with ranks it begins when all have
  /// arrived. 0: no limit. Left open: $KILN_MAX_SECONDS, else no limit. The kernel's `workload` and
  /// `reference` run once, however long they take: nothing is measured without data, and nothing is
  /// chosen that was not verified.
  std::optional<double> max_seconds{};
  double target_seconds = 0;  ///< per launch: good enough; 0: none
  /// Seconds that a candidate which runs in a worker (Isolation) may take for one verification or
  /// one sample; in step with other ranks, for all of its launches. Then it is `hung`. 0:
  /// `$KILN_CANDIDATE_SECONDS`; if that is not set, 20 in step, else 30, or 20 times the longest
  /// verification or sample so far if that is more, and 300 while there is none. A candidate that
  /// `max_seconds` cuts off before that, once another one has ended, is left untried
  /// (`Candidate::cut_seconds`). Callables, and kernels without a worker (Isolation), run in this
  /// process, where nothing ends them. One that takes longer is reported while it runs: in the log,
  /// in `progress`, in the metrics. A callable, where the limit is given, here or by the variable,
  /// is `hung` from then on, even if it returns, and on record at once, so that no later process
  /// calls it.
  double candidate_seconds = 0;
  bool cold_cache = true;  ///< no launch finds its data in the device's last-level cache
  /// Timed launches overlap where they are described as programmatic (Launch::programmatic): for
  /// programs whose streams are chains of such launches. Off: each begins when the one in front of
  /// it has ended, so that no config wins by starting early. Verified launches are as in use.
  bool overlap_launches = false;
  /// Times of one kind are not compared with those of the other: a record made by the other is
  /// tuned again. Ranks in step replay their finals. Left open: $KILN_MEASURE, else `graph`.
  std::optional<Launching> launching{};
  bool retune = false;  ///< measure again even if the store has an answer; in a runtime's options:
                        ///< each problem of a handle once, when it is launched, prepared or tuned
  std::stop_token stop{};  ///< ends the run early, from any thread
  /// Called on the tuning thread; while a trial is overdue, on another one. It must not wait for
  /// that trial.
  std::function<void(const TuneProgress&)> progress{};

  /// The ranks that choose together; null: those of the runtime, if it has any. Tuning, and the
  /// first launch of a problem, are then collective: every rank makes the same calls for the same
  /// problems in the same order. Ranks of one process have a runtime each: one runtime tunes one
  /// thing at a time. A communicator of one rank, `thread_communicators(1)`, keeps the runtime's
  /// ranks out of a call. See ranks.hpp.
  std::shared_ptr<Communicator> ranks{};
  /// How `ranks` tune together. They measure a list of candidates: `strategy` and `target_seconds`
  /// above are then ignored, and `max_evaluations` is the length of the list.
  RankOptions together{};
};

}  // namespace kiln
