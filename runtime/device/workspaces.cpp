#include "runtime/device/workspaces.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/device/spare_memory.hpp"

namespace kiln::runtime {

using kiln::detail::format;

Workspace workspace_at(void* memory, const WorkspaceSize& size) noexcept {
  auto* const bytes = static_cast<std::byte*>(memory);
  return {size.bytes > 0 ? bytes + size.semaphore_bytes() : nullptr,
          size.semaphores > 0 ? reinterpret_cast<unsigned*>(bytes) : nullptr};
}

// The loads acquire, so that a thread that reads a value of a later version sees the later version,
// too.
std::optional<Workspace> Workspaces::Slot::find(const WorkspaceSize& needed) const noexcept {
  const unsigned seen = version.load(std::memory_order_acquire);
  void* const memory = base.load(std::memory_order_acquire);
  const WorkspaceSize size{bytes.load(std::memory_order_acquire),
                           semaphores.load(std::memory_order_acquire)};
  const bool whole = seen % 2 == 0 && version.load(std::memory_order_relaxed) == seen;
  const bool zero =
      failures.load(std::memory_order_acquire) == zeroed.load(std::memory_order_acquire);
  if (!whole || !zero || !memory || !size.covers(needed)) return {};
  return workspace_at(memory, size);
}

void Workspaces::Slot::publish(void* memory, const WorkspaceSize& size) noexcept {
  const unsigned before = version.load(std::memory_order_relaxed);
  version.store(before + 1, std::memory_order_relaxed);
  base.store(memory, std::memory_order_release);
  bytes.store(size.bytes, std::memory_order_release);
  semaphores.store(size.semaphores, std::memory_order_release);
  version.store(before + 2, std::memory_order_release);
}

Workspaces::~Workspaces() {
  for (Slot* slot = slots_.load(std::memory_order_acquire); slot;)
    delete std::exchange(slot, slot->next);
}

Workspaces::Slot& Workspaces::slot_of(Stream stream) {
  const StreamOrder order = device_->order(stream);
  const auto found = [&](Slot* slot) {
    while (slot && slot->order != order) slot = slot->next;
    return slot;
  };
  if (Slot* const slot = found(slots_.load(std::memory_order_acquire))) return *slot;
  const std::lock_guard lock(mutex_);
  Slot* const first = slots_.load(std::memory_order_relaxed);
  if (Slot* const slot = found(first)) return *slot;
  auto* const added = new Slot;
  added->order = order;
  added->next = first;
  slots_.store(added, std::memory_order_release);
  return *added;
}

Workspaces::Turn Workspaces::turn(Stream stream, const WorkspaceSize& size, bool alone) {
  Turn turn;
  if (size == WorkspaceSize{}) return turn;  // there is nothing to share
  turn.slot_ = &slot_of(stream);
  if (alone) turn.alone_ = std::unique_lock(turn.slot_->launching);
  turn.workspace_ = of(*turn.slot_, stream, size);
  return turn;
}

void Workspaces::reserve(Stream stream, const WorkspaceSize& size) {
  if (size == WorkspaceSize{}) return;
  Slot& slot = slot_of(stream);
  if (slot.find(size)) return;
  grow(slot, stream, size);
  device_->synchronize(stream);  // graphs with this memory may be launched on other streams
}

void Workspaces::check(const WorkspaceSize& size) const {
  if (const std::string why = workspace_obstacle(size, device_->info().limits); !why.empty())
    throw UserError(why);
}

Workspace Workspaces::grow(Slot& slot, Stream stream, const WorkspaceSize& size) {
  check(size);
  const std::lock_guard lock(mutex_);
  if (const auto found = slot.find(size)) return *found;  // another thread was faster
  void* const base = slot.base.load(std::memory_order_relaxed);
  const WorkspaceSize now{slot.bytes.load(std::memory_order_relaxed),
                          slot.semaphores.load(std::memory_order_relaxed)};
  const bool covers = base && now.covers(size);
  if (slot.supplied && !covers)
    throw UserError(
        format("the workspace that the program has supplied for this stream has {}, but "
               "the launch needs {}",
               describe(now), describe(size)));
  if (device_->capturing(stream))
    throw CaptureError(
        covers ? "a launch on this stream failed, and the stream is being captured, so the "
                 "semaphores of its workspace cannot be zeroed: call Bound::reserve_workspace "
                 "before the capture"
               : format("the stream is being captured, so the workspace of {} that this launch "
                        "needs cannot be allocated: call Bound::reserve_workspace, or for a choice "
                        "launch it once on this stream, before the capture",
                        describe(size)));
  if (covers) return publish(stream, slot, base, now);
  WorkspaceSize grown = max(now, size);
  // What is kept for graphs stays a small part of all, however often it grows.
  WorkspaceSize preferred = grown;
  if (base && size.bytes > now.bytes)
    preferred.bytes = std::max(size.bytes, now.bytes + now.bytes / 2);
  auto memory = std::make_shared<const DeviceMemory>(memory_for(grown, preferred));
  {
    const std::lock_guard lock_memory(memory_mutex_);
    memory_.reserve(memory_.size() + 1);
  }
  const Workspace workspace = publish(stream, slot, memory->data(), grown);
  slot.own = memory;
  const std::lock_guard lock_memory(memory_mutex_);
  memory_.push_back(std::move(memory));
  slot.own_size = grown;
  return workspace;
}

/// Sets `size` to what the memory is for.
DeviceMemory Workspaces::memory_for(WorkspaceSize& size, const WorkspaceSize& preferred) const {
  if (preferred != size) {
    try {
      DeviceMemory memory(device_, preferred.total());
      size = preferred;
      return memory;
    } catch (const EnvironmentError&) {
      // Then only what is needed.
    }
  }
  const auto why = [&](const EnvironmentError& error) {
    return format("a workspace of {} bytes could not be allocated: {}", size.total(), error.what());
  };
  try {
    return {device_, size.total()};
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(why(error));
  } catch (const DeviceLost& error) {
    throw DeviceLost(why(error));
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(why(error));
  }
}

Workspace Workspaces::publish(Stream stream, Slot& slot, void* memory,
                              const WorkspaceSize& size) const {
  const unsigned failures = slot.failures.load(std::memory_order_acquire);
  if (size.semaphores > 0) device_->fill(memory, std::byte{}, size.semaphore_bytes(), stream);
  slot.publish(memory, size);
  slot.zeroed.store(failures, std::memory_order_release);
  return workspace_at(memory, size);
}

void Workspaces::use(Stream stream, void* memory, const WorkspaceSize& size) {
  if (reinterpret_cast<std::uintptr_t>(memory) % kWorkspaceAlignment != 0)
    throw UserError(format("the workspace that the program supplies is not aligned to {} bytes",
                           kWorkspaceAlignment));
  if (memory) check(size);
  if (device_->capturing(stream))
    throw CaptureError("a workspace cannot be supplied for a stream that is being captured");
  Slot& slot = slot_of(stream);
  const std::lock_guard lock(mutex_);
  if (memory)
    publish(stream, slot, memory, size);
  else if (slot.own)
    publish(stream, slot, slot.own->data(), slot.own_size);
  else
    slot.publish(nullptr, {});
  slot.supplied = memory != nullptr;
}

std::vector<std::shared_ptr<const DeviceMemory>> Workspaces::memory() const {
  const std::lock_guard lock(memory_mutex_);
  return memory_;
}

std::size_t Workspaces::clear_semaphores(Stream stream) {
  device_->synchronize(stream);
  Slot& slot = slot_of(stream);
  const std::lock_guard lock(mutex_);
  void* const base = slot.base.load(std::memory_order_relaxed);
  const WorkspaceSize size{slot.bytes.load(std::memory_order_relaxed),
                           slot.semaphores.load(std::memory_order_relaxed)};
  if (!base || size.semaphores == 0) return 0;
  std::vector<std::uint32_t> left(size.semaphores);
  device_->copy_to_host(left.data(), base, left.size() * sizeof left[0]);
  const auto zeros = static_cast<std::size_t>(std::count(left.begin(), left.end(), 0u));
  if (zeros == left.size()) return 0;
  publish(stream, slot, base, size);
  device_->synchronize(stream);
  return left.size() - zeros;
}

}  // namespace kiln::runtime
