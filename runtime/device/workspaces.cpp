#include "runtime/device/workspaces.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

std::string words(const WorkspaceSize& size) {
  return format("{} bytes and {} semaphores", size.bytes, size.semaphores);
}

}  // namespace

Workspace workspace_at(void* memory, const WorkspaceSize& size) noexcept {
  auto* const bytes = static_cast<std::byte*>(memory);
  return {size.bytes > 0 ? bytes + size.semaphore_bytes() : nullptr,
          size.semaphores > 0 ? reinterpret_cast<unsigned*>(bytes) : nullptr};
}

Workspaces::~Workspaces() {
  for (Slot* slot = slots_.load(std::memory_order_acquire); slot;) {
    delete slot->block.load(std::memory_order_acquire);
    delete std::exchange(slot, slot->next);
  }
}

Workspaces::Slot& Workspaces::slot_of(const StreamOrder& order) {
  Slot* const first = slots_.load(std::memory_order_relaxed);
  for (Slot* slot = first; slot; slot = slot->next)
    if (slot->order == order) return *slot;
  auto* const added = new Slot{.order = order, .next = first};
  slots_.store(added, std::memory_order_release);
  return *added;
}

Workspace Workspaces::grow(Stream stream, const StreamOrder& order, const WorkspaceSize& size) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slot_of(order);
  const Block* const now = slot.block.load(std::memory_order_relaxed);
  if (now && now->size.covers(size)) return now->workspace;  // another thread was faster
  if (now && now->supplied)
    throw UserError(
        format("the workspace that the program has supplied for this stream has {}, but "
               "the launch needs {}",
               words(now->size), words(size)));
  if (device_->capturing(stream))
    throw UserError(
        format("the launch needs a workspace of {}, which cannot be had while its stream "
               "is being captured: reserve it before (Bound::reserve_workspace)",
               words(size)));
  auto block = std::make_unique<Block>();
  block->size = now ? max(now->size, size) : size;
  // What is kept for graphs stays a small part of all, however often it grows.
  WorkspaceSize preferred = block->size;
  if (now && size.bytes > now->size.bytes)
    preferred.bytes = std::max(size.bytes, now->size.bytes + now->size.bytes / 2);
  block->memory = memory_for(block->size, preferred);
  block->workspace = workspace_at(block->memory.data(), block->size);
  return publish(stream, slot, std::move(block));
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
  try {
    return {device_, size.total()};
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(
        format("a workspace of {} bytes cannot be had: {}", size.total(), error.what()));
  }
}

void Workspaces::zero_semaphores(Stream stream, const Block& block) const {
  if (block.workspace.semaphores)
    device_->fill(block.workspace.semaphores, std::byte{}, block.size.semaphore_bytes(), stream);
}

Workspace Workspaces::publish(Stream stream, Slot& slot, std::unique_ptr<Block> block) {
  zero_semaphores(stream, *block);
  const Workspace workspace = block->workspace;
  block->before.reset(slot.block.load(std::memory_order_relaxed));
  slot.block.store(block.release(), std::memory_order_release);
  return workspace;
}

void Workspaces::use(Stream stream, void* memory, const WorkspaceSize& size) {
  if (reinterpret_cast<std::uintptr_t>(memory) % kWorkspaceAlignment != 0)
    throw UserError(format("the workspace that the program supplies is not aligned to {} bytes",
                           kWorkspaceAlignment));
  if (device_->capturing(stream))
    throw UserError("a workspace cannot be supplied for a stream that is being captured");
  auto block = std::make_unique<Block>();
  if (memory) {
    block->size = size;
    block->supplied = true;
    block->base = memory;
    block->workspace = workspace_at(memory, size);
  }
  const std::lock_guard lock(mutex_);
  Slot& slot = slot_of(device_->order(stream));
  const Block* const now = slot.block.load(std::memory_order_relaxed);
  if (memory && now && now->supplied && now->base == memory && now->size == size)
    zero_semaphores(stream, *now);
  else
    publish(stream, slot, std::move(block));
}

std::size_t Workspaces::clear_semaphores(Stream stream) {
  device_->synchronize(stream);
  const std::lock_guard lock(mutex_);
  const Block* const now = slot_of(device_->order(stream)).block.load(std::memory_order_relaxed);
  if (!now || !now->workspace.semaphores) return 0;
  std::vector<unsigned> left(now->size.semaphores);
  device_->copy_to_host(left.data(), now->workspace.semaphores, left.size() * sizeof(unsigned));
  const auto nonzero = std::count_if(left.begin(), left.end(), [](auto value) { return value; });
  if (nonzero == 0) return 0;
  zero_semaphores(stream, *now);
  device_->synchronize(stream);
  return static_cast<std::size_t>(nonzero);
}

}  // namespace kiln::runtime
