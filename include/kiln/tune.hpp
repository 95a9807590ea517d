// How tuning is asked for and what it found.
//
//   kiln::TuneResult r = runtime.tuned(kernel).tune(Elementwise{1 << 24});
//   r.winner().seconds; r.speedup(); r.candidates[3].reason;
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/key.hpp"
#include "kiln/ranks.hpp"
#include "kiln/space.hpp"
#include "kiln/space_query.hpp"
#include "kiln/trace.hpp"

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
                ///< earlier one on the same store; then in a worker, but with ranks only in step
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
  /// What is tuned now. These are valid during the call.
  std::string_view kernel{};
  std::span<const std::int64_t> problem{};
  /// Set while a candidate's call takes longer than it may (TuneOptions::candidate_seconds): its
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
  /// (`Candidate::cut_seconds`). Callables run in this process, where nothing ends them. One that
  /// takes longer is reported while it runs: in the log, in `progress`, in the metrics. Where the
  /// limit is given, here or by the variable, it is `hung` from then on, even if it returns, and on
  /// record at once, so that no later process calls it. Kernels that run in this process have no
  /// such limit.
  double candidate_seconds = 0;
  bool cold_cache = true;  ///< no launch finds its data in the device's last-level cache
  /// Timed launches overlap where they are described as programmatic (Launch::programmatic): for
  /// programs whose streams are chains of such launches. Off: each begins when the one in front of
  /// it has ended, so that no config wins by starting early. Verified launches are as in use.
  bool overlap_launches = false;
  /// Times of one kind are not compared with those of the other: a record made by the other is
  /// tuned again. Ranks in step launch one by one. Left open: $KILN_MEASURE, else `graph`.
  std::optional<Launching> launching{};
  bool retune = false;  ///< measure again even if the store has an answer; in a runtime's options:
                        ///< each problem of a handle once, when it is launched, prepared or tuned
  std::stop_token stop{};  ///< ends the run early, from any thread
  /// Called on the tuning thread; while a call is overdue, on another one. It must not wait for
  /// that call.
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

/// Why a search ended.
enum class SearchEnd {
  finished,     ///< nothing was left to try, or the strategy had done what it does
  evaluations,  ///< `max_evaluations`
  seconds,      ///< `max_seconds`
  target,       ///< a candidate took `target_seconds` or less
  stopped  ///< before any of these: by `stop`, with its device or worker, or because ranks used
           ///< the defaults; also in the record of a search that is still going on
};
const char* to_string(SearchEnd end) noexcept;

/// What became of a candidate. Only `measured` ones can win.
enum class CandidateStatus {
  measured,
  violates_constraint,  ///< no compile was spent on it
  exceeds_limits,       ///< launch or resources over what the device offers
  compile_failed,
  launch_failed,
  wrong_result,  ///< disqualified, however fast: wrong outputs, an input that was changed, a write
                 ///< outside its arrays
  crashed,  ///< it ended its worker, or cost the process its device: the signal, the exit code or
            ///< the driver's words are in the reason. On record; not tried again, as the next two
  hung,     ///< it did not end in time: its worker or RankOptions::guard ended it, or it came late
  out_of_memory,  ///< it took more of the host's memory than a worker may have. Where the machine
                  ///< had less to spare just then, it is left untried, and tried by the next tuning
  not_tried       ///< the budget, a stop, or a lack of memory or workers came first: see the reason
};
const char* to_string(CandidateStatus status) noexcept;

/// What the compiler reported for a candidate.
struct CandidateResources {
  int registers = 0;     ///< per thread; 0 on the host
  int spill_bytes = 0;   ///< per thread
  int shared_bytes = 0;  ///< per block, static and dynamic
};

struct Candidate {
  Values config;  ///< in the order of `TuneResult::parameters`
  CandidateStatus status = CandidateStatus::not_tried;
  std::string reason;           ///< why it is not `measured`
  double seconds = 0;           ///< median per launch; for finalists, the winner's median times
                                ///< their ratio to it in common rounds
  std::vector<double> samples;  ///< seconds per launch, in the order taken
  /// Largest |got - want| / (absolute + relative * |want|); <= 1 passes. A larger value also passes
  /// if no more elements exceed the tolerance than Tolerance::mismatches permits. Infinite if the
  /// kernel wrote where it must not, or if its `check` refused the outputs.
  double max_error = 0;
  /// ||got - want|| / ||want||, of the output of floats where it is largest; 0: there is a `check`.
  double norm_error = 0;
  CandidateResources resources;
  /// The longest time after which the budget (`max_seconds`) cut off one verification or sample; 0:
  /// none was cut off. On record: later tunings try it last, and only if they have more time.
  double cut_seconds = 0;
  /// When its outcome was known: seconds of tuning this problem until then, earlier runs included.
  /// 0: not known, as in records of earlier versions and where ranks tune together.
  double after_seconds = 0;
};

/// An alternative of a choice (choice.hpp) that took no part, or not with its best guess.
struct LeftOut {
  std::string name;
  std::string why;  ///< such as: switched off, absent, not for the problem, not on all ranks

  bool operator==(const LeftOut&) const = default;
};

/// How ranks came to a result together.
struct RankReport {
  enum class Outcome {
    plan,     ///< every rank holds this result
    defaults  ///< all use the default config, or what they agreed on before; `why` has the reason
  };
  Outcome outcome = Outcome::plan;
  int rank = 0, size = 1;
  /// Hexadecimal SHA-256 of the configs chosen for all problems of this call: the same on every
  /// rank, and for the same choice at any time. Empty for defaults.
  std::string plan_digest;
  std::string why;           ///< for defaults: which rank failed, and how
  bool broken = false;       ///< the communicator can no longer be used
  std::size_t measured = 0;  ///< candidates that this rank was given to time
};
const char* to_string(RankReport::Outcome outcome) noexcept;

struct TuneResult {
  std::string kernel;
  std::vector<std::string> types;
  std::vector<std::string> problem_fields;
  Values problem;  ///< the bucketed problem that was measured
  std::string device;
  std::vector<std::string> parameters;
  /// How values of a parameter are shown, e.g. `enumerators["body"][1]` is "mma"; for enums only.
  std::map<std::string, std::map<std::int64_t, std::string>> enumerators;
  std::vector<Candidate> candidates;                ///< those tried; the default first
  std::size_t default_index = 0, winner_index = 0;  ///< into `candidates`
  SpaceCount space;      ///< how large the space is, and what its constraints refuse
  std::string strategy;  ///< the one that searched last
  SearchEnd end = SearchEnd::finished;
  bool complete = false;      ///< the search ended by itself: nothing was left worth trying
  bool from_store = false;    ///< nothing was compiled or measured
  std::size_t evaluated = 0;  ///< candidates tried by this run
  /// Why the tuning failed, where that was no exception: a shared budget goes on with its other
  /// problems (Runtime::tune). Then nothing was measured. Empty: it did not fail.
  std::string failure{};
  std::vector<std::string> warnings;  ///< drift, throttling, noise, a default that cannot run
  std::vector<LeftOut> left_out{};    ///< of a choice: alternatives without a candidate
  double flops = 0, bytes = 0;        ///< of the problem; 0: the kernel does not say
  double norm_permitted = 0;          ///< Tolerance::norm
  /// Wall time, and its parts on the tuning thread: waiting for compilers, verifying, timing
  /// (finals included), searching.
  double wall_seconds = 0, compile_seconds = 0, verify_seconds = 0, time_seconds = 0,
         search_seconds = 0;
  std::vector<TraceSpan> spans;      ///< of this run; see trace.hpp
  std::size_t compiled = 0;          ///< instances compiled, not found in the store
  std::vector<KeyField> versions;    ///< software and hardware behind the numbers
  std::optional<RankReport> agreed;  ///< where ranks chose together

  const Candidate& default_candidate() const { return candidates[default_index]; }
  const Candidate& winner() const { return candidates[winner_index]; }
  std::size_t count(CandidateStatus status) const noexcept;
  /// The default's time over the winner's; 1 when the default won or could not be measured.
  double speedup() const noexcept;
  /// A value of a parameter as people read it: an enumerator's name, else the number.
  std::string show(std::size_t parameter, std::int64_t value) const;
  /// `block=256,body=mma`.
  std::string describe(const Candidate& candidate) const;
};

/// The outputs of a launch on random data, compared with the reference.
struct Verification {
  bool right = false;
  double max_error = 0;   ///< as Candidate::max_error
  std::string why;        ///< if they are wrong: the worst element
  double norm_error = 0;  ///< as Candidate::norm_error
};

}  // namespace kiln
