// Trials of a kernel: built by its builder, run on its device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/measure/kernel_bench.hpp"
#include "runtime/tune/trial_maker.hpp"

namespace kiln::runtime {

class KernelMaker final : public TrialMaker {
 public:
  /// @param seed of the data
  KernelMaker(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
              std::shared_ptr<Device> device, Builder& builder, std::uint64_t seed);

  detail::Tunable subject() const noexcept override { return kernel_; }
  std::span<const std::int64_t> problem() const noexcept override { return problem_; }
  const DeviceInfo& device() const noexcept override { return device_->info(); }
  void check() const override;
  bool has_reference() const noexcept override { return static_cast<bool>(kernel_.reference); }
  unsigned threads() const noexcept override { return builder_.threads(); }
  Build build(const Values& config) override;
  std::string try_to_load(const Values& config, const Build& build) override;
  TrialBench& bench() override;
  void drop_bench() noexcept override;
  Trial trial(const Values& config, const Build& build) override;
  std::shared_ptr<Module> module_of(const Rig& rig) override;

 private:
  detail::LaunchPlan plan(const Values& config) const;

  const KernelDefinition& kernel_;
  const Values problem_;
  std::shared_ptr<Device> device_;
  Builder& builder_;
  const std::uint64_t seed_;
  std::unique_ptr<DeviceWorkload> workload_;
  std::optional<KernelBench> bench_;
};

}  // namespace kiln::runtime
