// What tuning found: candidates, the winner among them, and how ranks came to it.
//
//   kiln::TuneResult r = runtime.tuned(kernel).tune(Elementwise{1 << 24});
//   r.winner().seconds; r.speedup(); r.candidates[3].reason;
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kiln/key.hpp"
#include "kiln/space.hpp"
#include "kiln/space_query.hpp"
#include "kiln/trace.hpp"

namespace kiln {

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
  /// ||got - want|| / ||want||, of the output of floats where it is largest. A `check` without a
  /// reference knows none: 0.
  double norm_error = 0;
  CandidateResources resources;
  /// The longest time after which the budget (`max_seconds`) cut off one verification or sample; 0:
  /// none was cut off. On record: later tunings try it last, and only if they have more time.
  double cut_seconds = 0;
  /// When its outcome was known: seconds of tuning this problem until then, earlier runs included.
  /// 0: not known, as in records of earlier versions and where ranks tune together.
  double after_seconds = 0;
  /// Of a choice's candidate: the host's seconds for one launch, which it need not wait for. Median
  /// of a few calls on an idle stream. 0: not known, as on the host device, where launches compute.
  double host_seconds = 0;
};

/// An alternative of a choice (choice.hpp) that took no part, or not with its best guess.
struct LeftOut {
  std::string name;
  std::string why;  ///< such as: switched off, absent, not for the problem, not on all ranks

  bool operator==(const LeftOut&) const = default;
};

/// An alternative of a choice that is a kernel, and so has results of its own.
struct KernelOfChoice {
  std::string alternative, kernel;
  std::vector<std::string> types;
  Values problem;  ///< its bucket
  /// What it ran with when the alternatives met. Empty: not known, with ranks for example.
  std::map<std::string, std::int64_t> config{};
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
  std::vector<std::string> warnings;      ///< drift, throttling, noise, a default that cannot run
  std::vector<LeftOut> left_out{};        ///< of a choice: alternatives without a candidate
  std::vector<KernelOfChoice> kernels{};  ///< of a choice: those that took part
  double flops = 0, bytes = 0;            ///< of the problem; 0: the kernel does not say
  /// Tolerance::norm; 0 where all bits must be the same. Empty: the norm is not judged.
  std::optional<double> norm_permitted{};
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
