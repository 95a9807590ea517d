// Memory that the kernels of other ranks reach: ranks are devices of this process, or of other
// processes of this machine.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "runtime/device/peer_groups.hpp"

namespace kiln::runtime {

/// How another process opens memory; opaque, and worth nothing once its owner has withdrawn it.
using PeerHandle = std::array<std::byte, 64>;

/// Memory of a device, its own or another rank's. Unmapped or released when it is destroyed, which
/// never throws.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// As kernels of the device that shared or opened it see it.
  virtual void* data() const noexcept = 0;
  /// @pre it was shared with other processes. @throws EnvironmentError
  virtual PeerHandle handle() const = 0;
  /// From now on no process can open it by its handle any more; those that have opened it keep it.
  /// Where a handle cannot be taken back, nothing happens.
  virtual void withdraw() noexcept {}
  /// It must never be released: another process may still use it, and would be hurt.
  virtual void keep_forever() noexcept {}
};

/// Which ranks may reach a rank's memory.
enum class PeerScope {
  process,  ///< ranks of this process alone
  machine   ///< other processes as well
};

/// A device's ways to reach other ranks. Thread-safe. All functions throw EnvironmentError when the
/// system or the driver refuses.
class PeerAccess {
 public:
  virtual ~PeerAccess() = default;

  /// `bytes` zero bytes, aligned to a page. @pre bytes > 0. @throws UserError too when they are
  /// more than there is memory
  virtual std::unique_ptr<PeerMemory> share(std::size_t bytes, PeerScope scope) = 0;
  /// What another process has shared with as many bytes.
  virtual std::unique_ptr<PeerMemory> open(const PeerHandle& handle, std::size_t bytes) = 0;
  /// From now on this device's kernels reach what `theirs`, of this process, has shared.
  virtual void reach(PeerAccess& theirs) = 0;
  /// Lets kernels of this device reach host memory, as long as what is returned lives; its data()
  /// is their address of it.
  virtual std::unique_ptr<PeerMemory> map_host(void* memory, std::size_t bytes) = 0;

  /// The symmetric memory that this device has.
  PeerGroups& groups() noexcept { return groups_; }

 private:
  PeerGroups groups_;
};

}  // namespace kiln::runtime
