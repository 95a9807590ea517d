// A loaded kernel, launched on data that are not the program's: with its steps, its maps, and a
// workspace of its own that shows what a launch does to it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "kiln/detail/launch_plan.hpp"
#include "kiln/error.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/entry_arguments.hpp"
#include "runtime/device/guarded_memory.hpp"
#include "runtime/device/spare_memory.hpp"

namespace kiln::runtime {

/// Scratch and semaphores between guard zones. Not thread-safe.
class TrialWorkspace {
 public:
  /// @throws OutOfMemory that names the bytes
  TrialWorkspace(const std::shared_ptr<Device>& device, const WorkspaceSize& size);

  const Workspace& parameter() const noexcept { return parameter_; }
  /// Gives the scratch contents that no kernel wants, other ones at each call. Does not wait.
  void poison(Stream stream);
  /// What launches, which must have ended, have done to it that they may not; puts it right. Empty:
  /// nothing.
  std::string repair();

 private:
  std::shared_ptr<Device> device_;
  GuardedMemory scratch_, semaphores_;
  std::size_t semaphore_count_;
  Workspace parameter_{};
  std::byte value_{0xff};
};

/// Not thread-safe.
class TrialKernel {
 public:
  /// @param kernel loaded for this plan
  /// @param arguments how many the kernel has for its callers
  /// @throws OutOfMemory as TrialWorkspace
  TrialKernel(std::shared_ptr<Device> device, std::shared_ptr<const Module> kernel,
              detail::LaunchPlan plan, std::size_t arguments);

  const Module& module() const noexcept { return *kernel_; }
  /// The entry, then the steps; nothing of an empty problem. `overlap`: whether the entry may begin
  /// before what is in front of it has ended, where its launch is programmatic.
  void launch(Stream stream, void* const* args, bool overlap) const;
  /// The same for a launch that is verified. With a workspace it waits for the stream.
  /// @throws WrongResult if it leaves the workspace in a forbidden state; also what
  /// Device::launch_checked throws
  void launch_checked(Stream stream, void* const* args);
  /// What launches have done to the workspace. They must have ended.
  std::string repair() { return workspace_ ? workspace_->repair() : std::string(); }

 private:
  template <class Launching>
  void each_entry(void* const* args, bool overlap, const Launching& launching) const;

  std::shared_ptr<Device> device_;
  std::shared_ptr<const Module> kernel_;
  detail::LaunchPlan plan_;
  EntryArguments arguments_;
  std::optional<TrialWorkspace> workspace_;
};

}  // namespace kiln::runtime
