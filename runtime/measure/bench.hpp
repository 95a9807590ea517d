// Where trials run: loaded, verified and timed. The race, the finals and measuring in step know
// benches only.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <variant>

#include "kiln/error.hpp"
#include "kiln/tune.hpp"
#include "runtime/measure/trial.hpp"
#include "runtime/measure/verify.hpp"
#include "runtime/support/guarded_launches.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// A trial that a bench has taken: loaded, with its data, ready to run on that bench. Keeps its
/// module alive.
class Rig {
 public:
  virtual ~Rig() = default;
  /// Whether its launches are replayed as a graph.
  virtual bool recorded() const noexcept = 0;
  /// Whether its launches are calls of the program, on each of which the host may spend longer than
  /// the device does.
  virtual bool is_call() const noexcept { return false; }
};

/// Why a bench does not take a trial.
struct Refusal {
  CandidateStatus status = CandidateStatus::launch_failed;
  std::string reason;
};

/// A trial ended the process that ran it, or had to be ended with it. The bench, and what else it
/// has loaded, can be used as before.
class TrialFault : public Error {
 public:
  /// @param as `crashed`, `hung` or `out_of_memory`; `wrong_result` where the trial had to be
  /// verified once more
  TrialFault(CandidateStatus as, const std::string& why) : Error(why), status_(as) {}
  CandidateStatus status() const noexcept { return status_; }

 private:
  CandidateStatus status_;
};

/// The time for all trials was over before this one ended. The trial is not to blame.
class TrialCut : public Error {
 public:
  /// @param seconds that it was given
  TrialCut(double seconds, const std::string& why) : Error(why), seconds_(seconds) {}
  double seconds() const noexcept { return seconds_; }

 private:
  double seconds_;
};

/// A verification or a sample that takes longer than it may, and that nothing can end.
struct Overdue {
  const Values& config;
  const std::string& text;  ///< the config
  double seconds = 0;       ///< so far
  double limit = 0;
  bool rejected = false;  ///< the limit was given: whatever comes of the trial, it has failed
  bool returned = false;  ///< it has come to its end
};

/// The bench can run no trial any more. No trial is to blame for that.
class BenchLost : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

/// Where another process runs the trials, calls that launch also throw TrialCut and BenchLost.
/// Not thread-safe. Rigs belong to the bench that made them.
class TrialBench {
 public:
  virtual ~TrialBench() = default;

  /// Computes what is right, where a reference tells. verify() does so itself; a caller that has
  /// to wait for something else calls this before. @throws what the reference throws
  virtual void expect() {}
  /// True if verify() needs one launch; else two launches of the first trial define what is right.
  virtual bool knows_results() const noexcept = 0;

  virtual std::variant<std::shared_ptr<Rig>, Refusal> load(const Trial& trial) = 0;
  /// Runs the trial and judges its results. @throws Error when it cannot be launched; TrialFault
  virtual Verdict verify(Rig& rig) = 0;

  /// Whether launches from now on find the last-level cache cold. It stays warm where making it
  /// cold would take longer than the deadline allows.
  virtual void keep_cold(bool cold, const TimeLimit& deadline = {}) = 0;
  /// Whether timed launches from now on may overlap, where they are programmatic.
  virtual void let_overlap(bool /*overlap*/) {}
  /// Launches from now on are those of measure_in_step(), until this is called with null: each goes
  /// through `launches`, whatever takes several makes all of them, even if one fails, and ranks
  /// meet before each sample (RankMeeting).
  virtual void keep_in_step(GuardedLaunches* launches) = 0;
  /// Launches that may make one sample. In step, where the caches stay warm, it follows from what
  /// the kernel is, so that it is the same on all ranks.
  virtual std::size_t most_launches(const Rig& rig) const = 0;
  /// Returns the seconds that `launches` launches in a row take, by the device's clock. Preparation
  /// comes first and is not timed. @throws Error when one fails, or when the clock does not
  /// advance; TrialFault
  virtual double time(Rig& rig, std::size_t launches) = 0;
  /// From now on time() replays these `launches` launches as one graph. False: it cannot be done.
  virtual bool record(Rig& rig, std::size_t launches) = 0;
  /// Launches of the rig are made one by one again.
  virtual void forget_recording(Rig& rig) = 0;

  /// Seconds of the host for one call of a rig that is one, while the stream has nothing else to
  /// do: the median of a few. 0: not known. @throws as time()
  virtual double host_seconds(Rig& /*rig*/) { return 0; }

  /// What launches have changed that they may not, since this was last called. Puts it right.
  /// Empty: nothing.
  virtual std::string repair() { return {}; }
  /// True once where repair() cannot know of all launches: the process that made some of them has
  /// ended, and what they have changed is gone with it.
  virtual bool take_unchecked() noexcept { return false; }

  /// As Device::lost and Device::shares_cpu.
  virtual bool lost() noexcept = 0;
  virtual bool shares_cpu() const noexcept = 0;
};

/// A trial that other ranks run at the same time: one launch to verify it, where one is enough for
/// that, then its TimingPolicy. All launches are made, whatever one of them throws: others may wait
/// in each of them for this one's. After one that was given up, none is made on any rank, and the
/// candidate is `hung`. A rank that cannot record a graph launches one by one.
/// @throws DeviceLost; Error when it cannot be loaded; GuardedLaunches::failure
Candidate measure_in_step(TrialBench& bench, const Trial& trial, const Values& config,
                          GuardedLaunches& launches);
/// The same for a trial that is loaded.
Candidate measure_in_step(TrialBench& bench, Rig& rig, const TimingPolicy& timing,
                          const Values& config, GuardedLaunches& launches);

}  // namespace kiln::runtime
