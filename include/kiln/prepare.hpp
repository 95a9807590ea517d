// Making the problems of a manifest ready before a program serves, and the report of it.
//
//   const kiln::PrepareReport report = runtime.prepare(manifest, {.max_seconds = 60});
//   if (!report.complete()) std::puts(kiln::to_json(report).c_str());
//   runtime.seal();  // launches compile, tune and load nothing any more
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/manifest.hpp"
#include "kiln/missing.hpp"

namespace kiln {

/// What preparing may do for a problem that is not ready. Each includes those below it.
enum class PrepareWork {
  tune,     ///< measure what has no record, and go on with searches that are unfinished
  compile,  ///< compile what no store has; measure nothing
  look_up   ///< load what stores and bundles have; compile nothing
};
const char* to_string(PrepareWork work) noexcept;

/// What became of a problem.
enum class PreparedState {
  waiting,     ///< not looked at yet; in a report: the call was stopped before
  tuned,       ///< loaded: the winner of a search that this call made
  known,       ///< loaded: the winner on record, what the ranks agreed on, or the config that the
               ///< program chose
  untuned,     ///< loaded: the untuned config (Mode::untuned), as asked: there is no record, and
               ///< nothing was to be measured
  on_default,  ///< loaded: the untuned config or the default; `why` says why nothing better
  missing,     ///< nothing is loaded: a binary or the handle is missing: `why`
  failed       ///< nothing of it can be used: it does not compile, no candidate passed: `why`
};
const char* to_string(PreparedState state) noexcept;

/// One bucketed problem of one handle, or one exact problem of a choice; where no handle or choice
/// was found, one entry of the manifest.
struct PreparedProblem {
  std::string kernel;  ///< its name, or that of a choice
  std::vector<std::string> types;
  std::map<std::string, std::int64_t> problem;
  /// What launches get: of a kernel or of a choice's alternative. Empty: nothing is loaded, or the
  /// alternative has no parameters.
  std::map<std::string, std::int64_t> config;
  PreparedState state = PreparedState::waiting;
  std::string why;  ///< why it is not `tuned`, `known` or `untuned`; also why an instance that the
                    ///< manifest names could not be had
  std::optional<Missing> missing{};  ///< the binary that `why` is about, if it is about one
  double seconds = 0;                ///< spent on loading and tuning this problem
  bool is_choice = false;
  std::string alternative{};  ///< of a choice: the one that launches use; empty: nothing is ready
};

struct PrepareReport {
  PrepareWork work = PrepareWork::tune;   ///< what was done at most: less than asked for where the
                                          ///< runtime's mode forbids to compile or to measure
  std::vector<PreparedProblem> problems;  ///< in the order of the manifest
  std::size_t instances = 0;              ///< distinct ones of each handle that were looked for
  std::size_t compiled = 0;               ///< of them and of candidates
  std::size_t searched = 0;               ///< problems that were measured
  std::size_t evaluated = 0;              ///< candidates that these searches tried
  double seconds = 0;                     ///< wall time
  /// Its parts. The first two overlap: what has been found is loaded while the rest is looked for
  /// or compiled.
  double compile_seconds = 0, load_seconds = 0, tune_seconds = 0;
  /// By how much loading reduced the device's free memory, where the device tells. What others
  /// take and free meanwhile counts as well.
  std::optional<std::int64_t> device_bytes{};
  bool stopped = false;      ///< by the stop token, or by Preparation::cancel
  bool out_of_time = false;  ///< `max_seconds` ended before all was done

  std::size_t count(PreparedState state) const noexcept;
  /// Problems that launches serve without a miss.
  std::size_t ready() const noexcept;
  /// Whether every problem is tuned, known or untuned as asked, and nothing was left out.
  bool complete() const noexcept;
};

/// As one line: counts, seconds, and each problem with its state and reason.
std::string to_json(const PrepareReport& report);

struct PrepareProgress {
  enum class Step { check, compile, load, tune, done };
  Step step = Step::check;
  std::size_t done = 0,
              total = 0;     ///< of this step: instances to compile, problems to load or tune
  std::size_t problems = 0;  ///< all
  std::size_t ready = 0, on_default = 0, missing = 0,
              failed = 0;  ///< `on_default` ones are `ready`
  double seconds = 0;      ///< since the beginning
};
const char* to_string(PrepareProgress::Step step) noexcept;

struct PrepareOptions {
  PrepareWork work = PrepareWork::tune;
  /// For the whole manifest; 0: no limit. Each problem that is to be tuned gets an equal part of
  /// what is left. What has begun is not cut off: a compilation, the kernel's `workload` and
  /// `reference`, loading what is compiled. RuntimeOptions::tuning says how each is searched.
  double max_seconds = 0;
  std::stop_token stop{};  ///< ends early, from any thread; what was done is kept
  std::function<void(const PrepareProgress&)> progress{};  ///< on the thread that prepares
  /// Streams of the device that will launch: each gets the workspaces of whatever is loaded then,
  /// in all handles and choices, so that launches of it there allocate nothing; of a kernel for the
  /// bucketed problem. What is put in use later may need more. Waits for the streams, none of which
  /// may be captured meanwhile. The host's stream and CUDA's per-thread default stream are those of
  /// the thread that prepares. A problem of the manifest whose workspace cannot be had is `failed`.
  std::vector<Stream> streams{};
};

/// A preparation on a thread of its own. Move-only: what was moved from may only be cancelled,
/// assigned to and destroyed. The destructor cancels it and waits.
class Preparation {
 public:
  Preparation(Preparation&&) noexcept;
  Preparation& operator=(Preparation&&) noexcept;
  ~Preparation();

  /// Its progress so far. Thread-safe.
  PrepareProgress progress() const;
  /// Waits until it has ended, for at most `seconds` (0: no limit), and returns whether it has.
  /// Thread-safe.
  bool wait(double seconds = 0) const;
  /// Asks it to end early. Thread-safe.
  void cancel() noexcept;
  /// Waits, and returns the report. @throws what Runtime::prepare throws
  PrepareReport get() const;

 private:
  friend class Runtime;
  struct State;
  explicit Preparation(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

/// What a sealed runtime does with a launch of a problem that was not prepared
/// (RuntimeOptions::on_unprepared).
enum class OnUnprepared {
  serve,  ///< launch something that is loaded; where there is nothing, UnpreparedError
  warn,   ///< the same, and say so once per problem; the message is put together on the heap
  error   ///< UnpreparedError
};

/// Thrown by a launch on a sealed runtime.
class UnpreparedError : public EnvironmentError {
 public:
  UnpreparedError(const std::string& what, WantedInstance wanted)
      : EnvironmentError(what), wanted_(std::move(wanted)) {}

  /// The problem, as Runtime::wanted() has it.
  const WantedInstance& wanted() const noexcept { return wanted_; }

 private:
  WantedInstance wanted_;
};

}  // namespace kiln
