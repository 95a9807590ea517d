// The bench for a kernel's problem in this process: its draws, one bench each, as one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/measure/kernel_bench.hpp"
#include "runtime/measure/problem_bench.hpp"

namespace kiln::runtime {

class DrawsBench final : public ProblemBench {
 public:
  /// Makes the data and uploads them. @throws as DeviceWorkload. @pre `kernel` outlives it
  DrawsBench(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
             std::shared_ptr<Device> device, std::uint64_t seed, const FindCall& find_call = {});
  /// Uploads data that were made. @throws as DeviceWorkload; OutOfMemory where the draws do not fit
  /// together. @pre one draw at least
  DrawsBench(std::vector<KernelData> draws, std::shared_ptr<Device> device,
             const FindCall& find_call = {});

  std::size_t draws() const noexcept override { return draws_.size(); }
  const KernelData& data(std::size_t draw) const noexcept override {
    return draws_[draw]->workload.data();
  }
  std::string trust(const Trial& trial) override;
  /// verify() and trust() for one draw of a trial that is loaded.
  Verdict verify(Rig& rig, std::size_t draw);
  Verdict define(Rig& rig, std::size_t draw);
  /// Takes trust() back.
  void forget();
  /// As DeviceWorkload::take_warnings, of all draws.
  std::vector<std::string> take_warnings() override;

  void expect() override;
  bool knows_results() const noexcept override { return first().knows_results(); }
  std::variant<std::shared_ptr<Rig>, Refusal> load(const Trial& trial) override;
  Verdict verify(Rig& rig) override;
  void keep_cold(bool cold, const TimeLimit& deadline) override;
  void let_overlap(bool overlap) override;
  void keep_in_step(GuardedLaunches* launches) override;
  std::size_t most_launches(const Rig& rig) const override;
  double time(Rig& rig, std::size_t launches) override;
  bool record(Rig& rig, std::size_t launches) override;
  void forget_recording(Rig& rig) override;
  double host_seconds(Rig& rig) override {  // the host does the same for each draw
    return draws_.front()->bench.host_seconds(first_of(rig));
  }
  std::string repair() override;
  bool lost() noexcept override { return device_->lost(); }
  bool shares_cpu() const noexcept override { return device_->shares_cpu(); }

  std::shared_ptr<Module> module_of(const Rig& rig) const override;

 private:
  struct Draw {
    Draw(KernelData data, const std::shared_ptr<Device>& device, const FindCall& find_call)
        : workload(std::move(data), device), bench(device, workload, find_call) {}
    DeviceWorkload workload;
    KernelBench bench;
  };
  struct DrawsRig;

  static Rig& first_of(Rig& rig);
  const KernelBench& first() const noexcept { return draws_.front()->bench; }

  std::shared_ptr<Device> device_;
  std::vector<std::unique_ptr<Draw>> draws_;
};

}  // namespace kiln::runtime
