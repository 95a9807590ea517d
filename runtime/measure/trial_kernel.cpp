#include "runtime/measure/trial_kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "runtime/device/each_entry.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// As wide as those around arrays (DeviceWorkload).
constexpr std::size_t kGuardBytes = std::size_t{64} << 10;

std::size_t bytes_of_semaphores(const WorkspaceSize& size) {
  return size.semaphores * sizeof(std::uint32_t);
}

/// The device, if it has the memory.
const std::shared_ptr<Device>& asked(const std::shared_ptr<Device>& device,
                                     const WorkspaceSize& size) {
  require_spare(*device, format("a workspace of {} bytes", size.total()),
                GuardedMemory::taken(*device, size.bytes, kGuardBytes) +
                    GuardedMemory::taken(*device, bytes_of_semaphores(size), kGuardBytes));
  return device;
}

std::string outside(const GuardedMemory& memory, const char* what) {
  const auto breach = memory.breach();
  if (!breach) return {};
  return format("wrote outside its {} bytes of {}: byte {}", memory.bytes(), what, *breach);
}

}  // namespace

TrialWorkspace::TrialWorkspace(const std::shared_ptr<Device>& device, const WorkspaceSize& size) try
    : device_(asked(device, size)),
      scratch_(device, size.bytes, kGuardBytes, GuardPattern::nan),
      semaphores_(device, bytes_of_semaphores(size), kGuardBytes, GuardPattern::bytes),
      semaphore_count_(size.semaphores),
      parameter_{scratch_.data(), static_cast<unsigned*>(semaphores_.data())} {
  if (semaphore_count_ > 0) {
    const std::vector<std::byte> zeros(semaphores_.bytes());
    device_->copy_to_device(semaphores_.data(), zeros.data(), zeros.size());
  }
} catch (const OutOfMemory&) {
  throw;
} catch (const EnvironmentError& error) {
  throw OutOfMemory(
      format("a workspace of {} bytes could not be allocated: {}", size.total(), error.what()));
}

void TrialWorkspace::poison(Stream stream) {
  // All ones is a NaN in every floating-point type, and -1.
  if (scratch_.bytes() > 0) device_->fill(scratch_.data(), value_, scratch_.bytes(), stream);
  value_ = value_ == std::byte{0xff} ? std::byte{0x5a} : std::byte{0xff};
}

std::string TrialWorkspace::repair() {
  std::string why = outside(scratch_, "scratch");
  if (!why.empty()) scratch_.repair();
  if (semaphore_count_ == 0) return why;
  if (const std::string found = outside(semaphores_, "semaphores"); !found.empty()) {
    semaphores_.repair();
    if (why.empty()) why = found;
  }
  std::vector<std::uint32_t> left(semaphore_count_);
  device_->copy_to_host(left.data(), semaphores_.data(), semaphores_.bytes());
  const auto nonzero =
      std::count_if(left.begin(), left.end(), [](auto value) { return value != 0; });
  if (nonzero == 0) return why;
  std::fill(left.begin(), left.end(), 0);
  device_->copy_to_device(semaphores_.data(), left.data(), semaphores_.bytes());
  return why.empty() ? format("left {} of {} semaphores nonzero", nonzero, semaphore_count_) : why;
}

TrialKernel::TrialKernel(std::shared_ptr<Device> device, std::shared_ptr<const Module> kernel,
                         detail::LaunchPlan plan, std::size_t arguments)
    : device_(std::move(device)),
      kernel_(std::move(kernel)),
      plan_(std::move(plan)),
      arguments_(*device_, plan_.maps, arguments) {
  if (plan_.workspace) workspace_.emplace(device_, *plan_.workspace);
}

template <class Launching>
void TrialKernel::each_entry(void* const* args, bool overlap, const Launching& launching) const {
  if (plan_.empty()) return;
  // A kernel that starts early hides its start behind another one of its own, which flatters it.
  Launch own = plan_.launch;
  own.programmatic = own.programmatic && overlap;
  arguments_.with(args, workspace_ ? &workspace_->parameter() : nullptr, [&](void** entry_args) {
    runtime::each_entry(*kernel_, own, plan_.steps, [&](const Module& entry, const Launch& launch) {
      launching(entry, launch, entry_args);
    });
  });
}

void TrialKernel::launch(Stream stream, void* const* args, bool overlap) const {
  each_entry(args, overlap, [&](const Module& entry, const Launch& launch, void** entry_args) {
    device_->launch(entry, launch, stream, entry_args);
  });
}

void TrialKernel::launch_checked(Stream stream, void* const* args) {
  if (workspace_) workspace_->poison(stream);
  each_entry(args, true, [&](const Module& entry, const Launch& launch, void** entry_args) {
    device_->launch_checked(entry, launch, stream, entry_args);
  });
  if (!workspace_) return;
  device_->synchronize(stream);
  if (const std::string why = workspace_->repair(); !why.empty()) throw WrongResult(why);
}

}  // namespace kiln::runtime
