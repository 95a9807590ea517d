// The bench for kernels, in this process: a device, and a workload on it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/measure/device_workload.hpp"

namespace kiln::runtime {

class TrialKernel;

/// Calls an implementation with the bench's own arguments, as Device::launch takes them.
using ImplementationCall = std::function<void(Stream, void** args)>;
/// Finds the call of a trial that is an implementation. @throws Error where it cannot be made
using FindCall = std::function<ImplementationCall(const Values& config)>;

/// A trial's module is loaded when the bench takes it.
class KernelBench final : public TrialBench {
 public:
  /// The workload must outlive the bench, and be on its device. Without `find_call` all trials are
  /// binaries.
  KernelBench(std::shared_ptr<Device> device, DeviceWorkload& workload, FindCall find_call = {});

  void expect() override { workload_.expect(); }
  bool knows_results() const noexcept override { return workload_.knows_results(); }
  std::variant<std::shared_ptr<Rig>, Refusal> load(const Trial& trial) override;
  Verdict verify(Rig& rig) override;
  /// As DeviceWorkload::define.
  Verdict define(Rig& rig);
  void keep_cold(bool cold, const TimeLimit& deadline) override;
  void let_overlap(bool overlap) override { overlap_ = overlap; }
  void keep_in_step(GuardedLaunches* launches) override { in_step_ = launches; }
  std::size_t most_launches(const Rig& rig) const override;
  double time(Rig& rig, std::size_t launches) override;
  bool record(Rig& rig, std::size_t launches) override;
  void forget_recording(Rig& rig) override;
  /// Not known where launches compute on the host.
  double host_seconds(Rig& rig) override;
  std::string repair() override;
  bool lost() noexcept override { return device_->lost(); }
  bool shares_cpu() const noexcept override { return device_->shares_cpu(); }

  /// The module of a rig that is as a fresh one would be: nothing was written to its variables.
  /// Null: it has some.
  std::shared_ptr<Module> module_of(const Rig& rig) const;

 private:
  struct KernelRig;

  std::uint64_t own_bytes(const codegen::Binary& binary) const;
  void hold_to_class(const KernelRig& rig, Verdict& verdict);
  void launch(const KernelRig& rig, std::size_t first, std::size_t launches);
  /// One launch that is verified, not timed.
  void launch_checked(const KernelRig& rig);
  double sample(const KernelRig& rig, std::size_t launches);

  std::shared_ptr<Device> device_;
  DeviceWorkload& workload_;
  const FindCall find_call_;
  Stream stream_;
  bool overlap_ = false;
  GuardedLaunches* in_step_ = nullptr;  ///< null: no other rank launches at the same time
  std::vector<std::weak_ptr<TrialKernel>> loaded_;  ///< with workspaces
  struct OfClass {
    std::string first;  ///< trial that was right
    std::vector<std::uint64_t> digests;
  };
  std::map<std::string, OfClass> classes_;  ///< by Implementation::numerics
};

}  // namespace kiln::runtime
