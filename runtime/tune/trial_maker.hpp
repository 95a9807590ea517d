// Turns a config into a trial: what the tuner needs of a kernel, or of anything else that it tunes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kiln/communicator.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/ranks.hpp"
#include "runtime/build/build_crew.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/measure/trial.hpp"
#include "runtime/tune/kept_memory.hpp"

namespace kiln::runtime {

/// What is tuned is not what it was when the tuning began. What was measured so far holds for that.
class SourceEdited : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

struct LastingBuilds {
  BuildCrew& crew;
  /// Called by the thread that measures; the job as TrialMaker::build.
  std::function<std::function<Build()>(const Values& config)> job;
};

/// One problem of one tunable. build() and load() may be called from several threads, the
/// others from the one that measures. What it was made of must outlive it.
class TrialMaker {
 public:
  virtual ~TrialMaker() = default;

  virtual detail::Tunable subject() const noexcept = 0;
  virtual std::span<const std::int64_t> problem() const noexcept = 0;
  /// The device that trials are timed on.
  virtual const DeviceInfo& device() const noexcept = 0;

  /// @throws UserError where this problem cannot be tuned at all
  virtual void check() const {}

  /// Whether a reference says what is right. Otherwise the outputs of candidates are compared with
  /// the default's.
  virtual bool has_reference() const noexcept = 0;

  /// Whether a candidate may be faster another time, though nothing was changed: so no search among
  /// them is complete.
  virtual bool may_improve() const noexcept { return false; }

  /// Builds that are worth running at once.
  virtual unsigned threads() const noexcept = 0;
  /// @throws as Builder::build, and SourceEdited
  virtual Build build(const Values& config) = 0;
  /// Builds as jobs that may go on, on this crew, after the search has ended: they use neither this
  /// object nor the kernel's definition. The builder, whose crew this is, outlives them. Nothing:
  /// builds must have ended by then.
  virtual std::optional<LastingBuilds> lasting_builds() const { return {}; }
  /// What was built, loaded as launches need it (null: there is nothing to load), or why it cannot
  /// be.
  virtual std::variant<std::shared_ptr<Module>, Refusal> load(const Values& config,
                                                              const Build& build) = 0;

  /// From now on trials run in a worker. Drops the bench. False: these trials cannot run there. If
  /// bench() finds that a worker cannot be used, it warns and goes on in this process.
  virtual bool isolate() { return false; }
  /// Why trials that ranks run in step cannot run in workers here; empty: no reason is
  /// known.
  virtual std::string why_not_in_workers() const {
    return "its candidates are calls of the program";
  }
  /// From now on trials run in step in the workers of all ranks: measure_in_workers(). Drops the
  /// bench.
  virtual void isolate_in_step(const std::shared_ptr<Communicator>& /*ranks*/,
                               const RankOptions& /*options*/) {}
  /// One config, tried by all ranks now. Nothing: there are no workers, as all ranks have found,
  /// and all of them can try it in their own processes. The first such call leaves a warning.
  /// @throws what the same call throws on all ranks; SourceEdited on this rank alone, once all of
  /// them are through with the config
  virtual std::optional<Candidate> measure_in_workers(const Values& /*config*/,
                                                      const TimingPolicy& /*timing*/) {
    return {};
  }
  /// Makes the data at the first call. @throws UserError where they cannot be made
  virtual TrialBench& bench() = 0;
  /// Has the bench know what is right, where anything can tell. Only the first call for a bench
  /// does any work; it comes before the first verification. @throws what the reference throws
  virtual void expect() { bench().expect(); }
  /// Warnings about the bench for the result of a tuning; each is returned once.
  virtual std::vector<std::string> take_warnings() { return {}; }
  /// Where nothing can end a trial: from now on told of those that take too long, while they run on
  /// another thread. Empty: not any more.
  virtual void when_overdue(std::function<void(const Overdue&)> /*tell*/) {}
  /// Frees what bench() made, which is large.
  virtual void drop_bench() noexcept = 0;
  /// From now on what bench() makes on the host is kept beside it, as far as `memory` allows, and
  /// so is what expect() finds out: a bench after drop_bench() need neither make nor find it again.
  virtual void keep_data(std::shared_ptr<KeptMemory> /*memory*/) {}
  /// The next bench is the last: it takes what is kept.
  virtual void use_up_data() noexcept {}
  /// The run was stopped: it runs nothing on the device any more, though it may still wait for
  /// builds.
  virtual void leave_device() noexcept {}
  /// @throws CompileError, MissingError when the build has no binary
  virtual Trial trial(const Values& config, const Build& build) = 0;
  /// A loaded module that launches may use; null: it has to be loaded anew.
  virtual std::shared_ptr<Module> module_of(const Rig& rig) = 0;
};

}  // namespace kiln::runtime
