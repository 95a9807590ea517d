// What a rank shares with the others, and what it has reached of theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kiln/peers.cuh"
#include "runtime/device/device.hpp"
#include "runtime/device/peer_access.hpp"

namespace kiln::runtime {

/// Where things lie in a rank's memory: its view of all ranks, its flags, its counters, its
/// notice, the data.
struct SymmetricLayout {
  std::size_t flags_at = 0, counters_at = 0, notice_at = 0, data_at = 0, bytes = 0;

  /// @pre the sum is no more than a std::size_t holds
  SymmetricLayout(int ranks, unsigned flags, std::size_t data_bytes);
};

/// What the hosts of ranks tell each other, and at its beginning what kernels see of that.
struct RankControl {
  PeersControl kernels;
  alignas(64) unsigned met;  ///< meetings that this rank's host has come to
};

/// A rank's own. Shared by all ranks of its process that reach it, so that none of them loses it.
/// Immutable; thread-safe.
struct RankMemory {
  /// @throws UserError, EnvironmentError
  RankMemory(std::shared_ptr<Device> device, std::size_t bytes, PeerScope scope);

  const std::shared_ptr<Device> device;
  const std::unique_ptr<PeerMemory> data;
  const std::unique_ptr<PeerMemory> control;  ///< a RankControl, in the host's memory
};

struct ReachedMemory;

/// Writes what kernels read of all ranks (kiln::Peers) to the beginning of `own`.
/// @param control as kernels of the device see it
void write_view(const RankMemory& own, PeersControl* control, const SymmetricLayout& layout,
                int rank, unsigned flags, std::span<const ReachedMemory> ranks);
/// All flags, counters and the notice of `own` are 0 again. Waits for the device.
void clear_flags(const RankMemory& own, const SymmetricLayout& layout);

/// Nobody has given up, and no meeting was held.
void clear(RankControl& control) noexcept;
/// Returns when the hosts of all ranks have called it as often as `rank`'s, or when one has given
/// up. @pre clear(), between two exchanges of all ranks
void meet(std::span<const ReachedMemory> ranks, int rank);

/// Ranks of one process find each other's memory by a number.
std::uint64_t publish(const std::shared_ptr<const RankMemory>& memory);
/// Null when its owner is gone.
std::shared_ptr<const RankMemory> find_published(std::uint64_t id);

/// Another rank's, or one's own, as this rank's kernels and host reach it.
struct ReachedMemory {
  std::shared_ptr<const RankMemory> shared;   ///< of this process
  std::unique_ptr<PeerMemory> data, control;  ///< of another one

  std::byte* data_address() const noexcept {
    return static_cast<std::byte*>((shared ? *shared->data : *data).data());
  }
  RankControl* control_address() const noexcept {
    return static_cast<RankControl*>((shared ? *shared->control : *control).data());
  }
};

}  // namespace kiln::runtime
