// A callable in the place of a kernel: a device whose launches call it with the launched config, on
// a device underneath that gives streams and the clock. Its compiler's binaries are the configs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kiln/definition.hpp"
#include "kiln/detail/function_core.hpp"
#include "runtime/device/host_memory_device.hpp"
#include "runtime/together/rank_log.hpp"

namespace kiln::runtime {

/// Functions own their data, so the workload of a kernel is a mark that launches set, in host
/// memory; a cold cache is made here, and so is what a call has changed put back. One call is bound
/// at a time, and launched by the thread that bound it.
class FunctionDevice final : public HostMemoryDevice {
 public:
  FunctionDevice(std::shared_ptr<Device> inner, const detail::FunctionDescription& function);

  /// What tunes the function as if it were a kernel. Lives as long as the device.
  const KernelDefinition& definition() const noexcept { return definition_; }

  /// Launches are `call`s until unbind(). `log` (or null) is told of each new config.
  void bind(const detail::FunctionCall& call, bool cold_cache, RankLog* log);
  /// What the calls have changed is put back. @throws EnvironmentError when that fails.
  void unbind();

  /// One call, on what the first one found: seconds. The cache is as the call before left it: ranks
  /// that wait for each other inside would count how long the others take to flush theirs.
  /// @throws Error with the words of whatever the callable throws.
  double time_call(const LoadedKernel& kernel) const;
  /// One call, not timed; its results are then verified. @throws as time_call(), WrongResult.
  void try_call(const LoadedKernel& kernel) const;

  const DeviceInfo& info() const noexcept override { return info_; }
  std::shared_ptr<LoadedKernel> load(const codegen::Binary& binary, unsigned) override;
  void launch(const LoadedKernel& kernel, const LaunchGeometry&, Stream stream,
              void** args) const override;
  int occupancy(const LoadedKernel&, int, unsigned) const override { return 1; }
  void synchronize(Stream stream) override { inner_->synchronize(stream); }
  Stream tuning_stream() override { return stream(); }
  double time(Stream stream, const std::function<void()>& enqueue) override;
  std::unique_ptr<Replay> capture(Stream stream, const std::function<void()>& enqueue) override;
  std::shared_ptr<codegen::Compiler> compiler() const override { return compiler_; }
  bool lost() noexcept override { return inner_->lost(); }
  bool shares_cpu() const noexcept override { return inner_->shares_cpu(); }

 private:
  /// Whether each call needs something done before it.
  bool one_by_one() const noexcept;
  void put_back(Stream stream) const;
  void flush(Stream stream) const;
  Stream stream() const noexcept { return call_ ? call_->stream : Stream{}; }
  void run(const LoadedKernel& kernel, Stream stream) const;

  std::shared_ptr<Device> inner_;
  DeviceInfo info_;
  std::shared_ptr<codegen::Compiler> compiler_;
  KernelDefinition definition_;
  bool changes_state_, replays_;

  const detail::FunctionCall* call_ = nullptr;
  RankLog* log_ = nullptr;
  bool cold_ = false;
  bool timing_ = false;                           ///< inside time() or capture()
  mutable std::function<void(Stream)> put_back_;  ///< made before the first call
  mutable std::string told_;                      ///< to the log
  mutable DeviceMemory flush_;
  mutable std::byte flush_value_{0};
};

}  // namespace kiln::runtime
