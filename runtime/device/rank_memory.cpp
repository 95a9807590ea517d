#include "runtime/device/rank_memory.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/device/host/shared_memory.hpp"
#include "runtime/device/peer_stalls.hpp"

namespace kiln::runtime {
namespace {

constexpr std::size_t kSymmetricAlignment = 256;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kSymmetricAlignment - 1) / kSymmetricAlignment * kSymmetricAlignment;
}

/// One table per process: ranks that are threads exchange bytes alone, which own nothing.
struct Published {
  std::mutex mutex;
  std::uint64_t next = 1;
  std::map<std::uint64_t, std::weak_ptr<const RankMemory>> memory;
};

Published& published() {
  static Published all;
  return all;
}

}  // namespace

SymmetricLayout::SymmetricLayout(int ranks, unsigned flags, std::size_t data_bytes)
    : flags_at(aligned(sizeof(Peers) + static_cast<std::size_t>(ranks) * sizeof(Peers::Peer))),
      counters_at(flags_at + aligned(static_cast<std::size_t>(ranks) * flags * sizeof(unsigned))),
      notice_at(counters_at + (counters_at - flags_at)),
      data_at(notice_at + aligned(sizeof(PeersNotice))),
      bytes(data_at + data_bytes) {}

RankMemory::RankMemory(std::shared_ptr<Device> on, std::size_t bytes, PeerScope scope)
    : device(std::move(on)),
      data(device->peer_access()->share(bytes, scope)),
      control(create_shared_memory(sizeof(RankControl), scope)) {}

void write_view(const RankMemory& own, PeersControl* control, const SymmetricLayout& layout,
                int rank, unsigned flags, std::span<const ReachedMemory> ranks) {
  auto* const base = static_cast<std::byte*>(own.data->data());
  const Peers view{rank,
                   static_cast<int>(ranks.size()),
                   flags,
                   control,
                   reinterpret_cast<const Peers::Peer*>(base + sizeof(Peers)),
                   reinterpret_cast<unsigned*>(base + layout.counters_at),
                   reinterpret_cast<PeersNotice*>(base + layout.notice_at)};
  std::vector<std::byte> bytes(sizeof view + ranks.size() * sizeof(Peers::Peer));
  std::memcpy(bytes.data(), &view, sizeof view);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::byte* const theirs = ranks[r].data_address();
    const Peers::Peer peer{theirs + layout.data_at,
                           reinterpret_cast<unsigned*>(theirs + layout.flags_at)};
    std::memcpy(bytes.data() + sizeof view + r * sizeof peer, &peer, sizeof peer);
  }
  own.device->copy_to_device(base, bytes.data(), bytes.size());
}

void clear_flags(const RankMemory& own, const SymmetricLayout& layout) {
  const Stream stream = own.device->tuning_stream();
  own.device->fill(static_cast<std::byte*>(own.data->data()) + layout.flags_at, std::byte{0},
                   layout.data_at - layout.flags_at, stream);
  own.device->synchronize(stream);
}

void clear(RankControl& control) noexcept {
  __atomic_store_n(&control.kernels.stalled, 0ull, __ATOMIC_RELAXED);
  __atomic_store_n(&control.kernels.aborted, 0u, __ATOMIC_RELAXED);
  __atomic_store_n(&control.met, 0u, __ATOMIC_RELAXED);
}

void meet(std::span<const ReachedMemory> ranks, int rank) {
  RankControl& own = *ranks[static_cast<std::size_t>(rank)].control_address();
  const unsigned count = __atomic_add_fetch(&own.met, 1u, __ATOMIC_RELEASE);
  for (const ReachedMemory& one : ranks)
    while (__atomic_load_n(&one.control_address()->met, __ATOMIC_ACQUIRE) < count &&
           given_up_by(own.kernels) == 0)
      std::this_thread::yield();
}

std::uint64_t publish(const std::shared_ptr<const RankMemory>& memory) {
  Published& all = published();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.memory, [](const auto& entry) { return entry.second.expired(); });
  all.memory.emplace(all.next, memory);
  return all.next++;
}

std::shared_ptr<const RankMemory> find_published(std::uint64_t id) {
  Published& all = published();
  const std::lock_guard lock(all.mutex);
  const auto found = all.memory.find(id);
  return found == all.memory.end() ? nullptr : found->second.lock();
}

}  // namespace kiln::runtime
