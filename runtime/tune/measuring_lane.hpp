// From a binary to a time: the one lane of a tuning run in which candidates are loaded, verified
// and timed.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "kiln/tune.hpp"
#include "runtime/build/build_queue.hpp"
#include "runtime/measure/finals.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/support/trace.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/trial_maker.hpp"

namespace kiln::runtime {

/// Not thread-safe. Everything that it is given must outlive it.
class MeasuringLane {
 public:
  using Progress = std::function<void(TuneProgress::Phase, std::size_t done, std::size_t total)>;

  /// Makes the bench, if it is not there yet.
  MeasuringLane(TrialMaker& maker, const TuneOptions& options, TuneResult& result,
                Candidates& candidates, TraceLog& trace, Progress progress);

  /// The best candidate of an earlier run: its time is the pace by which this run's are scaled.
  void set_leader(std::size_t candidate) { leader_ = candidate; }
  /// The best by score; nothing while there is none.
  std::optional<std::size_t> leader() const noexcept { return leader_; }

  /// Candidates that could not be loaded for want of memory, which may be there another time.
  const std::vector<std::size_t>& postponed() const noexcept { return postponed_; }

  /// As TrialMaker::module_of, of a candidate; null where it is not loaded any more.
  std::shared_ptr<Module> module_of(std::size_t candidate) const;

  /// Loads, verifies and times; every candidate of the group has its status afterwards. Past the
  /// deadline that is `not_tried`, except for the first candidate of all that can be used.
  /// @throws DeviceLost, as hold_finals() does: only the candidate that did it is rejected.
  /// BenchLost, as hold_finals() does: nothing becomes of candidates that have no status yet.
  void measure_group(std::span<const BuildQueue::Finished> group, const TimeLimit& deadline);

  /// Times candidates once more, side by side. A `leading` one is replaced only when another is
  /// certainly faster. Candidates that are no longer loaded are built again, but not after the
  /// deadline. Returns the winner; nothing when fewer than two can be loaded, or all fail.
  std::optional<std::size_t> hold_finals(std::span<const std::size_t> leading,
                                         std::span<const std::size_t> others,
                                         const TimeLimit& deadline);
  /// Alternatives of a choice may be right when they are verified, and wrong in later calls: the
  /// winner, and as long as there is time the other finalists, are verified again, and rejected if
  /// they are wrong now. Returns whether the winner can still be used. (A function's bench looks at
  /// results while it times.)
  bool still_right(std::size_t winner, const TimeLimit& deadline);

  /// Whether the stop token has ended finals before they were decided.
  bool finals_were_stopped() const noexcept { return finals_stopped_; }
  bool finals_have_begun() const noexcept { return finals_begun_; }

  /// Nothing more is measured: lets go of what is loaded, so that the maker can drop its bench.
  void unload() noexcept { loaded_.clear(); }

 private:
  std::optional<Contestant> load(std::size_t index, const Build& build);
  bool verify(const Contestant& contestant);
  bool verify_again(std::size_t candidate, int times, const TimeLimit& deadline);
  void time(std::vector<Contestant>& contestants, const TimeLimit& deadline);
  /// Removes the contestants that failed while they were timed, and rejects them. True if any.
  bool drop_failed(std::vector<Contestant>& contestants);
  void reject(const Contestant& contestant);
  void cut_off(std::size_t candidate, const TrialCut& cut);
  void postpone(std::size_t candidate, const std::string& why);
  /// Times each alone, to learn which of them wrote what it may not; removes and rejects those,
  /// and those that fail. True if any.
  bool drop_culprits(std::vector<Contestant>& contestants);
  void warn_of(const std::string& damage);
  RaceOptions race_options() const;
  /// Throws DeviceLost, naming the candidate that lost the device.
  [[noreturn]] void lose_device(std::size_t candidate, const std::string& why);
  template <class Work>
  auto guarded(std::vector<Contestant>& contestants, const Work& work);
  void keep_the_best();
  std::optional<Contestant> enter(std::size_t index, const TimeLimit& deadline);
  void warn(const std::vector<std::string>& texts);
  std::string describe(std::size_t index) const;

  TrialMaker& maker_;
  TrialBench& bench_;
  const TuneOptions& options_;
  TuneResult& result_;
  Candidates& candidates_;
  TraceLog& trace_;
  Progress progress_;
  std::map<std::size_t, Contestant> loaded_;  ///< the default and the best, by candidate
  std::optional<std::size_t> leader_;
  std::vector<std::size_t> postponed_, finalists_;
  bool finals_begun_ = false, finals_stopped_ = false;
};

}  // namespace kiln::runtime
