// The workspaces of one handle: one for each order of launches.
//
//   const Workspace workspace = workspaces.of(stream, size);  // of a launch
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

#include "kiln/workspace.cuh"
#include "kiln/workspace.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// Memory for a workspace: the semaphores first, so that their place does not depend on the size of
/// the scratch. A view.
Workspace workspace_at(void* memory, const WorkspaceSize& size) noexcept;

/// Thread-safe. Memory that was given out stays valid, and where it is, as long as this object lives:
/// a graph may have captured it. Looking up what is there takes no lock and allocates nothing.
class Workspaces {
 public:
  explicit Workspaces(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~Workspaces();
  Workspaces(const Workspaces&) = delete;
  Workspaces& operator=(const Workspaces&) = delete;

  /// A workspace of at least this size for what is launched on `stream` next. Grows where it is too
  /// small; its semaphores are then set to zero on the stream.
  /// @throws UserError, before anything is put on the stream, when it would have to grow while the
  /// stream is being captured, or when the program has supplied less; EnvironmentError that names the
  /// bytes when they cannot be had
  Workspace of(Stream stream, const WorkspaceSize& size) {
    if (size == WorkspaceSize{}) return {};
    const StreamOrder order = device_->order(stream);
    for (const Slot* slot = slots_.load(std::memory_order_acquire); slot; slot = slot->next)
      if (slot->order == order) {
        const Block* const block = slot->block.load(std::memory_order_acquire);
        if (block && block->size.covers(size)) return block->workspace;
        break;
      }
    return grow(stream, order, size);
  }

  /// As Tuned::use_workspace.
  void use(Stream stream, void* memory, const WorkspaceSize& size);

  /// Waits for the stream, sets the semaphores of its workspace to zero, and returns how many
  /// launches have left nonzero.
  std::size_t clear_semaphores(Stream stream);

 private:
  /// Never changed once published.
  struct Block {
    WorkspaceSize size;
    Workspace workspace{};
    bool supplied = false;          ///< by the program
    void* base = nullptr;           ///< then: where it is
    DeviceMemory memory;            ///< unless it was supplied
    std::unique_ptr<Block> before;  ///< what graphs may still use
  };
  struct Slot {
    StreamOrder order;
    std::atomic<Block*> block{nullptr};  ///< null: the handle's own, which is not there yet
    Slot* next = nullptr;
  };

  Workspace grow(Stream stream, const StreamOrder& order, const WorkspaceSize& size);
  DeviceMemory memory_for(WorkspaceSize& size, const WorkspaceSize& preferred) const;
  void zero_semaphores(Stream stream, const Block& block) const;
  /// Zeroes the semaphores on the stream and publishes the block. The mutex is held.
  Workspace publish(Stream stream, Slot& slot, std::unique_ptr<Block> block);
  /// The mutex is held.
  Slot& slot_of(const StreamOrder& order);

  std::shared_ptr<Device> device_;
  std::mutex mutex_;  ///< of whoever adds to what is below
  std::atomic<Slot*> slots_{nullptr};
};

}  // namespace kiln::runtime
