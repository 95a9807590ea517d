// The bench for a kernel's problem: its draws, one bench each, as one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/measure/kernel_bench.hpp"

namespace kiln::runtime {

/// A trial is loaded, verified and timed on every draw; its time is their weighted mean. Most
/// kernels have one draw.
class DrawsBench final : public TrialBench {
 public:
  /// Makes the data. @throws as DeviceWorkload. @pre `kernel` outlives it
  DrawsBench(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
             std::shared_ptr<Device> device, std::uint64_t seed);

  std::size_t draws() const noexcept { return draws_.size(); }
  const KernelData& data(std::size_t draw) const noexcept { return draws_[draw]->workload.data(); }
  /// `work` is done once, before it is computed what is right.
  void before_expecting(std::function<void()> work) { before_ = std::move(work); }
  /// Has a trial define what is right, for all draws. Why it cannot, and nothing is defined then;
  /// empty: it has. @throws DeviceLost
  std::string trust(const Trial& trial);
  /// As DeviceWorkload::take_warnings, of all draws.
  std::vector<std::string> take_warnings();

  void expect() override;
  bool knows_results() const noexcept override { return first().knows_results(); }
  std::variant<std::shared_ptr<Rig>, Refusal> load(const Trial& trial) override;
  Verdict verify(Rig& rig) override;
  void keep_cold(bool cold, const TimeLimit& deadline) override;
  void let_overlap(bool overlap) override;
  std::size_t most_launches(const Rig& rig) const override;
  double time(Rig& rig, std::size_t launches) override;
  bool record(Rig& rig, std::size_t launches) override;
  void forget_recording(Rig& rig) override;
  std::string repair() override;
  bool lost() noexcept override { return device_->lost(); }
  bool shares_cpu() const noexcept override { return device_->shares_cpu(); }

  /// As KernelBench::module_of, for the first draw.
  std::shared_ptr<Module> module_of(const Rig& rig) const;

 private:
  struct Draw {
    Draw(KernelData data, const std::shared_ptr<Device>& device)
        : workload(std::move(data), device), bench(device, workload) {}
    DeviceWorkload workload;
    KernelBench bench;
  };
  struct DrawsRig;

  const KernelBench& first() const noexcept { return draws_.front()->bench; }
  std::string of_draw(std::size_t draw, std::string text) const;

  std::shared_ptr<Device> device_;
  std::vector<std::unique_ptr<Draw>> draws_;
  std::function<void()> before_;
};

}  // namespace kiln::runtime
