#include "runtime/device/peer_stalls.hpp"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// How long a rank that gives up listens for what the other ranks wait for.
constexpr std::chrono::milliseconds kListens{100}, kListenPause{2};

}  // namespace

void give_up_at(PeersControl& control, int rank) noexcept {
  unsigned none = 0;
  __atomic_compare_exchange_n(&control.aborted, &none, static_cast<unsigned>(rank) + 1, false,
                              __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

unsigned given_up_by(const PeersControl& control) noexcept {
  return __atomic_load_n(&control.aborted, __ATOMIC_RELAXED);
}

std::optional<Stall> stall_of(const PeersControl& control, unsigned flags) noexcept {
  const unsigned long long what = __atomic_load_n(&control.stalled, __ATOMIC_RELAXED);
  if (what == 0) return {};
  const auto index = static_cast<unsigned>((what >> 32) - 1);
  return Stall{static_cast<int>(index / flags), index % flags, static_cast<unsigned>(what)};
}

std::string why_given_up(const std::function<PeersControl(int rank)>& control, int rank, int ranks,
                         unsigned flags) {
  const unsigned by = given_up_by(control(rank));
  if (by == 0) return {};
  if (by > static_cast<unsigned>(ranks)) return "symmetric memory: a kernel has written over it";
  const int first = static_cast<int>(by) - 1;
  // The rank that gave up waited for one that may wait for another. The kernels of live ranks say
  // so as soon as they hear of it.
  std::vector<std::pair<int, Stall>> chain;
  for (const auto until = std::chrono::steady_clock::now() + kListens;;
       std::this_thread::sleep_for(kListenPause)) {
    chain.clear();
    for (int r = first; static_cast<int>(chain.size()) < ranks;) {
      const auto stall = stall_of(control(r), flags);
      // A notice that a kernel has overwritten by mistake names no rank.
      if (!stall || stall->rank < 0 || stall->rank >= ranks) break;
      chain.emplace_back(r, *stall);
      r = stall->rank;
    }
    if (static_cast<int>(chain.size()) == ranks || std::chrono::steady_clock::now() >= until) break;
  }
  std::string text = format("symmetric memory: rank {} gave up", first);
  for (const auto& [r, stall] : chain) {
    if (r != first) text += format("; rank {} was", r);
    text += format(" waiting for rank {}, which has not set flag {} to epoch {}", stall.rank,
                   stall.flag, stall.epoch);
    if (stall.rank == first) break;
  }
  return text;
}

}  // namespace kiln::runtime
