// A worker's symmetric memory: what a kernel of its rank takes in the place of the program's.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "runtime/device/peer_groups.hpp"
#include "runtime/device/rank_memory.hpp"

namespace kiln::runtime {

/// How other processes open a rank's memory.
struct PeerOffer {
  PeerHandle data{}, control{};
};

/// The ranks are workers of one machine, which never speak to each other: their programs carry the
/// offers. Not thread-safe.
class PeerPart {
 public:
  /// Makes the rank's own, of zeros. @throws UserError, EnvironmentError
  PeerPart(const std::shared_ptr<Device>& device, const PeerShape& shape);

  PeerOffer offer() const;
  /// Opens that of all others. @throws EnvironmentError
  void reach(std::span<const PeerOffer> ranks);
  /// All flags are 0, and nobody has given up. From now on nobody else can open it.
  /// @pre all ranks have reached it, and no kernel of any rank runs
  void reset();
  /// As runtime::meet(). @pre reset() by all ranks
  void meet() const { runtime::meet(reached_, shape_.rank); }
  /// @pre reach()
  const void* address(const PeerPlace& place) const;

 private:
  std::shared_ptr<Device> device_;
  PeerShape shape_;
  SymmetricLayout layout_;
  std::shared_ptr<const RankMemory> own_;
  std::unique_ptr<PeerMemory> own_control_;  ///< as kernels see it
  std::vector<ReachedMemory> reached_;       ///< by rank
};

}  // namespace kiln::runtime
