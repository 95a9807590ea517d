// The workspaces of one handle: one for each order of launches.
//
//   Workspaces::Turn turn = workspaces.turn(stream, size, false);
//   try {
//     launch(turn.workspace());
//   } catch (...) {
//     turn.failed();
//     throw;
//   }
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kiln/workspace.cuh"
#include "kiln/workspace.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// Memory for a workspace: the semaphores first, so that their place does not depend on the size of
/// the scratch. A view.
Workspace workspace_at(void* memory, const WorkspaceSize& size) noexcept;

/// Thread-safe. Memory of its own that was given out stays valid, and where it is, as long as this
/// object lives, or until its stream is released: a graph may have captured it. Looking up what is
/// there takes no lock and allocates nothing.
class Workspaces {
  struct Slot;

 public:
  /// The workspace of one call while its launches are put on the stream. Ends before Workspaces.
  class Turn {
   public:
    const Workspace& workspace() const noexcept { return workspace_; }
    /// A launch failed, and may have left semaphores nonzero: they are set to zero before the next
    /// launch of this order.
    void failed() noexcept {
      if (slot_) slot_->failures.fetch_add(1, std::memory_order_release);
    }

   private:
    friend Workspaces;
    Workspace workspace_{};
    Slot* slot_ = nullptr;
    std::unique_lock<std::mutex> alone_;
  };

  using BeforeAllocating = std::function<void(const WorkspaceSize&)>;
  /// @param before called before a launch gets memory for its workspace, which needs this size;
  /// what it throws, the launch throws. Empty: nothing is called.
  explicit Workspaces(std::shared_ptr<Device> device, BeforeAllocating before = {})
      : device_(std::move(device)), before_allocating_(std::move(before)) {}
  ~Workspaces();
  Workspaces(const Workspaces&) = delete;
  Workspaces& operator=(const Workspaces&) = delete;

  /// A workspace of at least this size for what is launched on `stream` next. Grows where it is too
  /// small; its semaphores are then set to zero on the stream.
  /// @throws before anything is put on the stream: UserError when no device could have this size or
  /// the program has supplied less, CaptureError when the workspace would have to grow or to be
  /// zeroed while the stream is being captured; EnvironmentError that names the bytes when they
  /// cannot be allocated
  Workspace of(Stream stream, const WorkspaceSize& size) {
    return size == WorkspaceSize{} ? Workspace{}
                                   : of(slot_of(device_->order(stream)), stream, size);
  }
  /// The same for several launches. `alone`: no other turn of this order that is alone begins
  /// before this one ends.
  Turn turn(Stream stream, const WorkspaceSize& size, bool alone);
  /// A workspace for the launches of a graph that was captured in this order, and the owner of its
  /// memory, which is null where the program has supplied that. The workspace grows as in `of`, but
  /// this puts nothing on a stream: the semaphores are 0 when it returns. @throws as `of`
  std::pair<Workspace, std::shared_ptr<const DeviceMemory>> for_graph(const StreamOrder& order,
                                                                      const WorkspaceSize& size);
  /// As Bound::reserve_workspace.
  void reserve(Stream stream, const WorkspaceSize& size);
  /// As Tuned::use_workspace.
  void use(Stream stream, void* memory, const WorkspaceSize& size);
  /// Frees the memory of the stream, for which it waits. @throws CaptureError while it is captured
  void release(Stream stream);

  /// All memory of its own that was given out, to be used longer than this object lives. Does not
  /// wait for a thread that allocates.
  std::vector<std::shared_ptr<const DeviceMemory>> memory() const;

  /// Waits for the stream, sets the semaphores of its workspace to zero, and returns how many
  /// launches have left nonzero.
  std::size_t clear_semaphores(Stream stream);

 private:
  struct Slot {
    bool is_of(const StreamOrder& order) const noexcept;
    /// Nothing: a slot without an order, which the next new order takes.
    void give_to(const std::optional<StreamOrder>& order) noexcept;

    Slot* next = nullptr;
    // Whose it is, as `version` and what follows it below.
    std::atomic<unsigned> owner_version{0};
    std::atomic<bool> has_owner{false};
    std::atomic<const void*> stream{nullptr};
    std::atomic<std::uint64_t> thread{0};

    /// What launches take; nothing while it changes, or where semaphores have to be zeroed.
    std::optional<Workspace> find(const WorkspaceSize& needed) const noexcept;
    void publish(void* memory, const WorkspaceSize& size) noexcept;
    WorkspaceSize size() const noexcept {
      return {bytes.load(std::memory_order_relaxed), semaphores.load(std::memory_order_relaxed)};
    }

    std::atomic<unsigned> failures{0};  ///< of launches
    std::atomic<unsigned> zeroed{0};    ///< how many of these the semaphores were zeroed after
    std::mutex launching;               ///< of turns that are alone

    // Written with the mutex of all slots held. A reader compares versions: odd while the others
    // are written.
    std::atomic<unsigned> version{0};
    std::atomic<void*> base{nullptr};
    std::atomic<std::size_t> bytes{0}, semaphores{0};

    // Used with that mutex held.
    bool supplied = false;  ///< `base`, by the program
    WorkspaceSize own_size;
    /// Its memory: last what it has grown to, before that what graphs may still use. Changed with
    /// the mutex of memory held, too.
    std::vector<std::shared_ptr<const DeviceMemory>> own;
  };

  Workspace of(Slot& slot, Stream stream, const WorkspaceSize& size) {
    const auto found = slot.find(size);
    return found ? *found : grow_for_launch(slot, stream, size);
  }
  Workspace grow_for_launch(Slot& slot, Stream stream, const WorkspaceSize& size);
  Workspace grow(Slot& slot, Stream stream, const WorkspaceSize& size);
  void check(const WorkspaceSize& size) const;
  void check_supplied(const Slot& slot, const WorkspaceSize& size) const;
  /// More memory than the slot has. Sets `size` to what it is for.
  std::shared_ptr<const DeviceMemory> more_memory(Slot& slot, WorkspaceSize& size);
  DeviceMemory memory_for(WorkspaceSize& size, const WorkspaceSize& preferred) const;
  void keep(Slot& slot, std::shared_ptr<const DeviceMemory> memory, const WorkspaceSize& size);
  /// Zeroes the semaphores on the stream, and publishes. The mutex is held.
  Workspace publish(Stream stream, Slot& slot, void* memory, const WorkspaceSize& size) const;
  Slot* find_slot(const StreamOrder& order) const noexcept;
  Slot& slot_of(const StreamOrder& order);

  std::shared_ptr<Device> device_;
  const BeforeAllocating before_allocating_;
  std::mutex mutex_;  ///< held by a thread that changes what is below
  std::atomic<Slot*> slots_{nullptr};
  mutable std::mutex memory_mutex_;  ///< of the slots' memory; never held while allocating
};

}  // namespace kiln::runtime
