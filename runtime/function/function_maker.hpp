// Trials of a function: each is a call with one set of knobs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/measure/watched_bench.hpp"
#include "runtime/tune/trial_maker.hpp"

namespace kiln::runtime {

/// Makes trials of one call; nothing has to be built or loaded.
class FunctionMaker final : public TrialMaker {
 public:
  /// The bench must outlive it.
  FunctionMaker(const detail::FunctionDescription& function, std::span<const std::int64_t> problem,
                const DeviceInfo& device, WatchedBench& bench)
      : function_(function),
        problem_(problem.begin(), problem.end()),
        device_(device),
        bench_(bench) {}

  detail::Tunable subject() const noexcept override { return function_; }
  std::span<const std::int64_t> problem() const noexcept override { return problem_; }
  const DeviceInfo& device() const noexcept override { return device_; }
  /// A call's own `verify` judges its results.
  bool has_reference() const noexcept override { return true; }
  unsigned threads() const noexcept override { return 1; }
  Build build(const Values&) override { return {}; }
  std::variant<std::shared_ptr<Module>, Refusal> load(const Values&, const Build&) override {
    return {};
  }
  TrialBench& bench() override { return bench_; }
  void when_overdue(WatchedBench::Tell tell) override { bench_.when_overdue(std::move(tell)); }
  void drop_bench() noexcept override {}
  Trial trial(const Values& config, const Build&) override {
    return {.code = Implementation{function_.name},
            .config = config,
            .text = function_.space.describe(config)};
  }
  std::shared_ptr<Module> module_of(const Rig&) override { return nullptr; }

 private:
  const detail::FunctionDescription& function_;
  const Values problem_;
  const DeviceInfo& device_;
  WatchedBench& bench_;
};

}  // namespace kiln::runtime
