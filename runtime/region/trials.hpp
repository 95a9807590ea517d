// Candidates of a region's sites, tried by running the region: the same runs on all ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/communicator.hpp"
#include "kiln/region.hpp"
#include "runtime/region/runner.hpp"
#include "runtime/region/schedule.hpp"
#include "runtime/together/rank_log.hpp"
#include "runtime/together/trials.hpp"

namespace kiln::runtime {

/// What ranks tell each other after every run: the same numbers on all of them, to the last bit.
/// Without ranks it is this process's own.
class RegionExchange {
 public:
  /// `communicator` may be null.
  RegionExchange(Communicator* communicator, const RankOptions& options)
      : communicator_(communicator), options_(options) {}

  bool alone() const noexcept { return communicator_ == nullptr; }
  double step_seconds() const noexcept { return options_.step_seconds; }
  /// Replaces each number by its maximum over the ranks. If ranks are to be judged by their mean,
  /// the first `times` become the mean of the numbers that are not 0. @throws EnvironmentError
  /// naming the rank that did not take part.
  void share(std::vector<float>& values, std::size_t times, Deadline deadline) const;

 private:
  Communicator* communicator_;
  RankOptions options_;
};

/// For one tune_together, on one thread. What it is given must outlive it.
class RegionTrials final : public Trials {
 public:
  RegionTrials(detail::Engine& engine, RegionRunner& runner, const RegionOptions& options,
               const RegionExchange& exchange, RankLog& log);

  std::optional<Refusal> make_ready(std::size_t site, const Values& config,
                                    bool for_lockstep) override;
  std::vector<std::vector<Candidate>> measure(std::span<const Request> requests,
                                              Deadline deadline) override;
  Candidate measure_in_step(std::size_t site, const Values& config, TimingPolicy timing,
                            Deadline deadline) override;
  bool always_in_step() const override { return true; }
  void annotate(std::size_t site, TuneResult& result) const override;

  /// What the region threw; null: nothing.
  const std::exception_ptr& thrown() const noexcept { return thrown_; }
  SearchEnd end() const noexcept { return end_; }
  /// Wall time of whole runs, in the order taken.
  const std::vector<double>& default_seconds() const noexcept { return default_seconds_; }
  const std::vector<double>& chosen_seconds() const noexcept { return chosen_seconds_; }

 private:
  /// What is known of a site's candidates before they are run.
  struct Prepared {
    const Request* request = nullptr;  ///< null: nothing is asked for
    std::vector<Candidate> candidates;
    std::map<std::size_t, detail::Launchable> loaded;
  };
  using Clock = std::chrono::steady_clock;

  bool build(Deadline until, Deadline last);
  void build_all(Deadline until);
  void try_to_build(const Site& site, Candidate& candidate) const;
  bool run_once(RegionSchedule& schedule, Deadline until);
  const detail::Launchable* load(std::size_t site, std::size_t candidate, std::string& why);
  void forget_others(std::span<const RegionSchedule::Place> places, const RegionSchedule& schedule);
  void keep_seconds(std::span<const RegionSchedule::Place> places, const RegionSchedule& schedule,
                    const RegionRunner::Outcome& outcome);
  float end_wanted(Deadline until) const;
  bool heed(float end);
  void describe(const RegionSchedule& schedule);
  void write_log(std::span<const RegionSchedule::Place> places,
                 const RegionRunner::Outcome& outcome, std::span<const float> shared);

  detail::Engine& engine_;
  RegionRunner& runner_;
  const RegionOptions& options_;
  const RegionExchange& exchange_;
  RankLog& log_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Prepared> sites_;
  std::vector<std::string> wrongs_;  ///< what `check` said last, by site
  SearchEnd end_ = SearchEnd::finished;
  double longest_run_ = 0;
  double compile_seconds_ = 0, run_seconds_ = 0;
  std::vector<double> default_seconds_, chosen_seconds_;
  std::size_t default_runs_ = 0;
  std::exception_ptr thrown_;
};

}  // namespace kiln::runtime
