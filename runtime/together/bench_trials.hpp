// Candidates of ranks that are tried on this rank's bench: what is to be measured goes through the
// tuner.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/together/trials.hpp"
#include "runtime/tune/trial_maker.hpp"

namespace kiln::runtime {

/// For one agreement, on one thread, but for `make_ready`. The options must outlive it.
class BenchTrials final : public Trials {
 public:
  using Makers = std::vector<std::unique_ptr<TrialMaker>>;

  /// One maker per problem, in order.
  BenchTrials(Makers makers, const TuneOptions& options);

  std::optional<Refusal> make_data(std::size_t problem) override;
  std::optional<Refusal> make_ready(std::size_t problem, const Values& config,
                                    bool for_lockstep) override;
  std::vector<std::vector<Candidate>> measure(std::span<const Request> requests,
                                              Deadline deadline) override;
  Candidate measure_in_step(std::size_t problem, const Values& config, TimingPolicy timing,
                            Deadline deadline) override;
  void isolate() override;
  std::string why_not_in_workers() const override;
  void isolate_in_step() override;
  /// The default's, measured, and scaled by the cost model.
  std::vector<Cost> costs(std::size_t problem, std::span<const Values> configs,
                          Deadline deadline) override;
  void annotate(std::size_t problem, TuneResult& result) const override;
  /// The module of a config that was made ready last, for launches; null: it is not there.
  std::shared_ptr<Module> take_module(std::size_t problem, const Values& config);

 private:
  struct Loaded {
    Values config;
    std::shared_ptr<Module> module;
  };
  TuneResult tune(std::size_t problem, std::span<const Values> configs, bool decides,
                  double seconds);
  /// What the work returns, or what it throws as a refusal.
  template <class Work>
  static std::optional<Refusal> refusal_of(const Work& work);
  TrialMaker& maker_with_data(std::size_t problem);
  void get_ready_for_lockstep(std::size_t problem);
  void keep_warnings(std::size_t problem);
  std::optional<Refusal> refusal_in_step(std::size_t problem, const Values& config,
                                         const Build& build);

  const Makers makers_;
  const TuneOptions& options_;
  std::vector<std::optional<TuneResult>> seen_;  ///< sums of what was done for each problem
  std::map<std::size_t, TuneResult> defaults_;   ///< measured for costs(), not yet asked for
  std::vector<Loaded> loaded_;                   ///< by problem: what was made ready last
  std::mutex data_mutex_;                        ///< `make_ready` is called from several threads
  std::size_t data_of_ = 0;
  bool isolated_ = false;  ///< in step
};

}  // namespace kiln::runtime
