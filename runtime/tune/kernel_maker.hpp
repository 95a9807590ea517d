// Trials of a kernel: built by its builder, run on its device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/measure/kernel_bench.hpp"
#include "runtime/measure/problem_bench.hpp"
#include "runtime/measure/watched_bench.hpp"
#include "runtime/tune/drawn_data.hpp"
#include "runtime/tune/trial_maker.hpp"
#include "runtime/tune/trusted_references.hpp"
#include "runtime/worker/isolation.hpp"
#include "runtime/worker/worker_group.hpp"

namespace kiln::runtime {

class KernelMaker final : public TrialMaker {
 public:
  /// @param seed for generating the data
  /// @param references that are known already; null: none are
  /// @param worker where trials run once they are to be isolated
  KernelMaker(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
              std::shared_ptr<Device> device, Builder& builder, std::uint64_t seed,
              std::shared_ptr<TrustedReferences> references = nullptr, WorkerOptions worker = {});

  /// What make_expected_draws() gave for this kernel, problem and seed: benches in this process use
  /// copies of it. Empty: they make their data.
  void use_data(std::vector<KernelData> draws) { draws_ = std::move(draws); }
  /// What make_draws() gives for them: the first bench in this process has it. Not valid, or an
  /// exception: it makes its data.
  void use_drawn(DrawnData::Draws draws) { drawn_ = std::move(draws); }
  /// Where trials find what they call, if they are of implementations.
  void use_calls(FindCall find_call) { find_call_ = std::move(find_call); }
  /// What is told of trials in this process that take longer than WorkerOptions::candidate_seconds,
  /// as WatchedBench. Empty: nothing watches them.
  void watch(WatchedBench::Tell tell) { tell_ = std::move(tell); }
  /// Called when a run that was stopped has freed its bench, before it waits for builds that must
  /// end with it.
  void when_device_is_left(std::function<void()> left) { left_ = std::move(left); }

  detail::Tunable subject() const noexcept override { return kernel_; }
  std::span<const std::int64_t> problem() const noexcept override { return problem_; }
  const DeviceInfo& device() const noexcept override { return device_->info(); }
  void check() const override;
  bool has_reference() const noexcept override { return static_cast<bool>(kernel_.reference); }
  unsigned threads() const noexcept override { return threads_; }
  Build build(const Values& config) override;
  std::optional<LastingBuilds> lasting_builds() const override;
  std::variant<std::shared_ptr<Module>, Refusal> load(const Values& config,
                                                      const Build& build) override;
  bool isolate() override;
  std::string why_not_in_workers() const override;
  void isolate_in_step(const std::shared_ptr<Communicator>& ranks,
                       const RankOptions& options) override;
  std::optional<Candidate> measure_in_workers(const Values& config,
                                              const TimingPolicy& timing) override;
  TrialBench& bench() override;
  /// A reference on the device is tried first; where it cannot be trusted, a warning says so.
  void expect() override;
  std::vector<std::string> take_warnings() override;
  void when_overdue(WatchedBench::Tell tell) override;
  void drop_bench() noexcept override;
  void keep_data(std::shared_ptr<KeptMemory> memory) override { memory_ = std::move(memory); }
  void use_up_data() noexcept override { memory_.reset(); }
  void leave_device() noexcept override;
  Trial trial(const Values& config, const Build& build) override;
  /// A trial of a call on the kernel's data. @throws UserError where these have variables
  Trial trial(Implementation code, const Values& config, std::string text);
  std::shared_ptr<Module> module_of(const Rig& rig) override;

 private:
  detail::LaunchPlan plan(const Values& config) const;
  /// @throws EnvironmentError where no worker can be had
  std::unique_ptr<ProblemBench> isolated_bench(std::span<const std::int64_t> problem,
                                               std::uint64_t seed) const;
  void give_up_workers(const std::string& why);
  std::unique_ptr<ProblemBench> make_bench(std::span<const std::int64_t> problem,
                                           std::uint64_t seed);
  void open_bench();
  std::vector<KernelData> take_drawn();
  /// Keeps the data that the next bench uses, if they may be kept.
  void make_kept();
  /// Keeps what the bench knows of results.
  void keep_expected();
  /// Has KernelDefinition::device_reference define what is right, unless the problem is no larger
  /// than the one that it is checked with.
  void try_device_reference();
  /// Why it cannot define that; empty: it has.
  std::string use_device_reference(std::span<const std::int64_t> small);

  const KernelDefinition& kernel_;
  const Values problem_;
  std::shared_ptr<Device> device_;
  Builder& builder_;
  const std::optional<Digest> source_;  ///< nothing: it is not here
  const std::uint64_t seed_;
  std::shared_ptr<TrustedReferences> references_;
  const WorkerOptions worker_;
  bool isolated_ = false;
  std::unique_ptr<WorkerGroup>
      group_;  ///< where trials run in step; also once there are no workers
  std::shared_ptr<Communicator> ranks_;
  std::string why_alone_;  ///< why this rank has no worker; empty: it has
  bool alone_ = false;     ///< no rank has a worker
  bool lost_ = false;      ///< a warning says that there are no workers any more
  std::vector<KernelData> draws_;
  DrawnData::Draws drawn_;
  std::shared_ptr<KeptMemory> memory_;  ///< null: data are not kept
  std::int64_t kept_ = 0;               ///< bytes of it that `draws_` have
  std::function<void()> left_;
  FindCall find_call_;
  WatchedBench::Tell tell_, also_tell_;
  std::unique_ptr<ProblemBench> bench_;
  std::unique_ptr<WatchedBench> watched_;  ///< `bench_`, where that runs trials in this process
  bool reference_tried_ = false;           ///< on `bench_`
  const unsigned threads_ = builder_.builds_at_once();
  std::vector<std::string> warnings_;
};

}  // namespace kiln::runtime
