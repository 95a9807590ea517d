#include "runtime/device/peer_groups.hpp"

#include <utility>

namespace kiln::runtime {

std::uint64_t PeerGroups::add(PeerGroup group) {
  const std::lock_guard lock(mutex_);
  groups_.emplace(++last_, std::move(group));
  return last_;
}

void PeerGroups::remove(std::uint64_t number) noexcept {
  const std::lock_guard lock(mutex_);
  groups_.erase(number);
}

std::optional<PeerGroups::Found> PeerGroups::find(const void* address, int rank) const {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const auto& [number, group] : groups_) {
    if (group.shape.rank != rank) continue;
    if (address == group.peers) return Found{number, group.shape, {}};
    for (std::size_t r = 0; r < group.data.size(); ++r) {
      const auto begin = reinterpret_cast<std::uintptr_t>(group.data[r]);
      if (at >= begin && at - begin < group.shape.bytes)
        return Found{number, group.shape, {static_cast<int>(r), at - begin}};
    }
  }
  return {};
}

}  // namespace kiln::runtime
