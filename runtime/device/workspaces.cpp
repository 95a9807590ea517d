#include "runtime/device/workspaces.hpp"

#include <algorithm>
#include <cstddef>
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

bool Workspaces::Slot::is_of(const StreamOrder& order) const noexcept {
  const unsigned seen = owner_version.load(std::memory_order_acquire);
  const bool same = has_owner.load(std::memory_order_acquire) &&
                    stream.load(std::memory_order_acquire) == order.stream &&
                    thread.load(std::memory_order_acquire) == order.thread;
  return same && seen % 2 == 0 && owner_version.load(std::memory_order_relaxed) == seen;
}

void Workspaces::Slot::give_to(const std::optional<StreamOrder>& order) noexcept {
  const unsigned before = owner_version.load(std::memory_order_relaxed);
  owner_version.store(before + 1, std::memory_order_relaxed);
  has_owner.store(order.has_value(), std::memory_order_release);
  stream.store(order ? order->stream : nullptr, std::memory_order_release);
  thread.store(order ? order->thread : 0, std::memory_order_release);
  owner_version.store(before + 2, std::memory_order_release);
}

Workspaces::~Workspaces() {
  for (Slot* slot = slots_.load(std::memory_order_acquire); slot;)
    delete std::exchange(slot, slot->next);
}

Workspaces::Slot* Workspaces::find_slot(const StreamOrder& order) const noexcept {
  Slot* slot = slots_.load(std::memory_order_acquire);
  while (slot && !slot->is_of(order)) slot = slot->next;
  return slot;
}

Workspaces::Slot& Workspaces::slot_of(const StreamOrder& order) {
  if (Slot* const slot = find_slot(order)) return *slot;
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = find_slot(order)) return *slot;
  Slot* const first = slots_.load(std::memory_order_relaxed);
  for (Slot* slot = first; slot; slot = slot->next)
    if (!slot->has_owner.load(std::memory_order_relaxed)) {
      slot->give_to(order);
      return *slot;
    }
  auto* const added = new Slot;
  added->give_to(order);
  added->next = first;
  slots_.store(added, std::memory_order_release);
  return *added;
}

Workspaces::Turn Workspaces::turn(Stream stream, const WorkspaceSize& size, bool alone) {
  Turn turn;
  if (size == WorkspaceSize{}) return turn;  // there is nothing to share
  turn.slot_ = &slot_of(device_->order(stream));
  if (alone) turn.alone_ = std::unique_lock(turn.slot_->launching);
  turn.workspace_ = of(*turn.slot_, stream, size);
  return turn;
}

void Workspaces::reserve(Stream stream, const WorkspaceSize& size) {
  if (size == WorkspaceSize{}) return;
  Slot& slot = slot_of(device_->order(stream));
  if (slot.find(size)) return;
  grow(slot, stream, size);
  device_->synchronize(stream);  // graphs with this memory may be launched on other streams
}

void Workspaces::check(const WorkspaceSize& size) const {
  if (const std::string why = workspace_obstacle(size, device_->info().limits); !why.empty())
    throw UserError(why);
}

void Workspaces::check_supplied(const Slot& slot, const WorkspaceSize& size) const {
  if (slot.supplied && !slot.size().covers(size))
    throw UserError(
        format("the workspace that the program has supplied for this stream has {}, but "
               "the launch needs {}",
               describe(slot.size()), describe(size)));
}

Workspace Workspaces::grow_for_launch(Slot& slot, Stream stream, const WorkspaceSize& size) {
  const auto allocates = [&] {
    const std::lock_guard lock(mutex_);
    return !slot.supplied && !slot.size().covers(size);
  };
  // Called without the lock, because it is the program's log that may be told.
  if (before_allocating_ && allocates() && !device_->capturing(stream)) before_allocating_(size);
  return grow(slot, stream, size);
}

Workspace Workspaces::grow(Slot& slot, Stream stream, const WorkspaceSize& size) {
  check(size);
  const std::lock_guard lock(mutex_);
  if (const auto found = slot.find(size)) return *found;  // another thread was faster
  void* const base = slot.base.load(std::memory_order_relaxed);
  const bool covers = base && slot.size().covers(size);
  check_supplied(slot, size);
  if (device_->capturing(stream))
    throw CaptureError(
        covers ? "a launch on this stream failed, and the stream is being captured, so the "
                 "semaphores of its workspace cannot be zeroed: call Bound::reserve_workspace "
                 "before the capture"
               : format("the stream is being captured, so the workspace of {} that this launch "
                        "needs cannot be allocated: call Bound::reserve_workspace, or for a choice "
                        "launch it once on this stream, before the capture",
                        describe(size)));
  if (covers) return publish(stream, slot, base, slot.size());
  WorkspaceSize grown = size;
  auto memory = more_memory(slot, grown);
  const Workspace workspace = publish(stream, slot, memory->data(), grown);
  keep(slot, std::move(memory), grown);
  return workspace;
}

std::pair<Workspace, std::shared_ptr<const DeviceMemory>> Workspaces::for_graph(
    const StreamOrder& order, const WorkspaceSize& size) {
  if (size == WorkspaceSize{}) return {};
  check(size);
  Slot& slot = slot_of(order);
  const std::lock_guard lock(mutex_);
  check_supplied(slot, size);
  if (const auto found = slot.find(size))
    return {*found, slot.supplied ? nullptr : slot.own.back()};
  if (slot.supplied)
    throw EnvironmentError(
        "a launch with the workspace that the program has supplied failed, so its semaphores must "
        "be zeroed first: launch on its stream, or call Bound::reserve_workspace");
  // Where semaphores must be zeroed, launches may still use them: so this takes other memory, too.
  const unsigned failures = slot.failures.load(std::memory_order_acquire);
  WorkspaceSize grown = size;
  auto memory = more_memory(slot, grown);
  const std::vector<std::byte> zeros(grown.semaphore_bytes());
  if (!zeros.empty()) device_->copy_to_device(memory->data(), zeros.data(), zeros.size());
  slot.publish(memory->data(), grown);
  slot.zeroed.store(failures, std::memory_order_release);
  keep(slot, memory, grown);
  return {workspace_at(memory->data(), grown), std::move(memory)};
}

std::shared_ptr<const DeviceMemory> Workspaces::more_memory(Slot& slot, WorkspaceSize& size) {
  const WorkspaceSize now = slot.size();
  // What is kept for graphs stays a small part of all, however often it grows.
  WorkspaceSize preferred = max(now, size);
  if (slot.base.load(std::memory_order_relaxed) && size.bytes > now.bytes)
    preferred.bytes = std::max(size.bytes, now.bytes + now.bytes / 2);
  size = max(now, size);
  auto memory = std::make_shared<const DeviceMemory>(memory_for(size, preferred));
  const std::lock_guard lock(memory_mutex_);
  slot.own.reserve(slot.own.size() + 1);
  return memory;
}

void Workspaces::keep(Slot& slot, std::shared_ptr<const DeviceMemory> memory,
                      const WorkspaceSize& size) {
  const std::lock_guard lock(memory_mutex_);
  slot.own.push_back(std::move(memory));
  slot.own_size = size;
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
  Slot& slot = slot_of(device_->order(stream));
  const std::lock_guard lock(mutex_);
  if (memory)
    publish(stream, slot, memory, size);
  else if (!slot.own.empty())
    publish(stream, slot, slot.own.back()->data(), slot.own_size);
  else
    slot.publish(nullptr, {});
  slot.supplied = memory != nullptr;
}

void Workspaces::release(Stream stream) {
  if (device_->capturing(stream))
    throw CaptureError("the workspace of a stream that is being captured cannot be released");
  Slot* const slot = find_slot(device_->order(stream));
  if (!slot) return;
  device_->synchronize(stream);
  std::vector<std::shared_ptr<const DeviceMemory>> released;  // ends without the locks
  const std::lock_guard lock(mutex_);
  slot->publish(nullptr, {});
  slot->supplied = false;
  slot->own_size = {};
  {
    const std::lock_guard lock_memory(memory_mutex_);
    released.swap(slot->own);
  }
  slot->give_to(std::nullopt);
}

std::vector<std::shared_ptr<const DeviceMemory>> Workspaces::memory() const {
  std::vector<std::shared_ptr<const DeviceMemory>> all;
  const std::lock_guard lock(memory_mutex_);
  for (const Slot* slot = slots_.load(std::memory_order_acquire); slot; slot = slot->next)
    all.insert(all.end(), slot->own.begin(), slot->own.end());
  return all;
}

std::size_t Workspaces::clear_semaphores(Stream stream) {
  device_->synchronize(stream);
  Slot& slot = slot_of(device_->order(stream));
  const std::lock_guard lock(mutex_);
  void* const base = slot.base.load(std::memory_order_relaxed);
  const WorkspaceSize size = slot.size();
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
