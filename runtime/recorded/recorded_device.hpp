// A measured space in the place of hardware: a compiler that refuses what did not compile, and a
// device whose launches take one of the config's own raw repeats. Nothing waits: time is virtual.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.hpp"
#include "kiln/recorded.hpp"
#include "runtime/device/host_memory_device.hpp"

namespace kiln::runtime {

/// Seconds that all launches so far would have taken.
using VirtualClock = std::atomic<double>;

/// Knows the instances of `recorded_kernel(space)`, and no others. Device memory is the host's.
class RecordedDevice final : public HostMemoryDevice {
 public:
  /// Which repeat a config's n-th launch takes depends on `seed`, the config and n alone.
  RecordedDevice(RecordedSpace space, std::uint64_t seed);

  std::shared_ptr<codegen::Compiler> compiler() const override { return compiler_; }

  const DeviceInfo& info() const noexcept override { return info_; }
  std::shared_ptr<Module> load(const codegen::Binary& binary, const Launch&,
                               std::span<const Launch> steps = {}) override;
  void launch(const Module& kernel, const Launch&, Stream, void** args) const override;
  int occupancy(const Module&, int, unsigned) const override { return 1; }
  void synchronize(Stream) override {}
  Stream tuning_stream() override { return {}; }
  double time(Stream, const std::function<void()>& enqueue) override;
  std::unique_ptr<Stopwatch> stopwatch() override;
  bool shares_cpu() const noexcept override { return false; }

 private:
  RecordedSpace space_;
  std::uint64_t seed_;
  std::shared_ptr<VirtualClock> clock_;
  std::shared_ptr<codegen::Compiler> compiler_;
  mutable std::vector<std::atomic<std::uint32_t>> launches_;  ///< by config
  DeviceInfo info_;
};

/// The device `recorded:FILE`. @throws UserError as RecordedSpace does.
std::shared_ptr<RecordedDevice> make_recorded_device(const std::string& file);

}  // namespace kiln::runtime
