// The lanes of a warp between two suspensions: what the scheduler of blocks and that of clusters
// share.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "codegen/host_abi.hpp"

namespace kiln::runtime {

/// What threads wait for there, in the words of the kernel's source.
inline const char* name_of(codegen::SuspendKind kind) {
  using codegen::SuspendKind;
  switch (kind) {
    case SuspendKind::block_barrier:
      return "__syncthreads";
    case SuspendKind::block_count:
      return "__syncthreads_count/and/or";
    case SuspendKind::warp_barrier:
      return "__syncwarp";
    case SuspendKind::warp_exchange32:
    case SuspendKind::warp_exchange64:
      return "a shuffle";
    case SuspendKind::warp_ballot:
      return "a ballot";
    case SuspendKind::warp_active:
      return "__activemask";
    case SuspendKind::mbarrier_wait:
    case SuspendKind::mbarrier_test:
      return "an mbarrier";
    case SuspendKind::cluster_wait:
      return "the cluster's barrier";
    case SuspendKind::named_sync:
    case SuspendKind::named_arrive:
      return "a named barrier";
    case SuspendKind::warpgroup_wait:
      return "products of its warpgroup";
  }
  return "?";
}

/// Runs lanes of one block, and resolves the suspensions that concern a warp alone.
class WarpLanes {
 public:
  static constexpr std::uint32_t kWarp = 32;

  WarpLanes(const codegen::HostKernel& kernel, codegen::HostFrame& frame)
      : kernel_(kernel), frame_(frame) {}

 protected:
  using SuspendKind = codegen::SuspendKind;
  static constexpr std::uint32_t kExited = codegen::kExited, kMixedExit = codegen::kMixedExit;

  static bool is_warp(SuspendKind kind) {
    return kind >= SuspendKind::warp_barrier && kind <= SuspendKind::warp_active;
  }

  const codegen::HostRegion& region(std::uint32_t id) const { return kernel_.regions[id]; }

  std::uint32_t common_state(std::uint32_t begin, std::uint32_t end) const {
    const std::uint32_t first = frame_.next[begin];
    std::uint32_t differs = 0;
    for (std::uint32_t t = begin; t < end; ++t) differs |= frame_.next[t] ^ first;
    return differs ? kMixedExit : first;
  }

  // Runs maximal runs of threads that are at the same place.
  void run_range(std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t t = begin; t < end;) {
      const std::uint32_t id = frame_.next[t];
      std::uint32_t stop = t + 1;
      while (stop < end && frame_.next[stop] == id) ++stop;
      if (id != kExited) run_region(id, t, stop);
      t = stop;
    }
  }

  void run_region(std::uint32_t id, std::uint32_t begin, std::uint32_t end) {
    region(id).run(&frame_, begin, end);
    if (region(id).exit != kMixedExit) {
      std::fill(frame_.next + begin, frame_.next + end, region(id).exit);
    }
  }

  static std::uint32_t all_lanes(std::uint32_t begin, std::uint32_t end) {
    return end - begin == kWarp ? ~0u : (1u << (end - begin)) - 1;
  }

  bool masks_cover(std::uint32_t begin, std::uint32_t end) const {
    const std::uint32_t all = all_lanes(begin, end);
    for (std::uint32_t t = begin; t < end; ++t) {
      if (frame_.mask[t] != frame_.mask[begin]) return false;
    }
    return (frame_.mask[begin] & all) == all;
  }

  // Resolves every group of lanes that is complete; returns the lanes released.
  std::uint32_t resolve_groups(std::uint32_t begin, std::uint32_t end) {
    std::uint32_t alive = 0, waiting = 0;
    for (std::uint32_t t = begin; t < end; ++t) {
      const std::uint32_t id = frame_.next[t];
      if (id == kExited) continue;
      alive |= 1u << (t - begin);
      if (!is_warp(region(id).kind)) continue;
      waiting |= 1u << (t - begin);
      if (region(id).full_mask) frame_.mask[t] = ~0u;
    }
    std::uint32_t released = 0, active = 0;
    for (std::uint32_t rest = waiting; rest;) {
      const std::uint32_t lane = static_cast<std::uint32_t>(std::countr_zero(rest));
      const std::uint32_t mask = frame_.mask[begin + lane];
      const SuspendKind kind = region(frame_.next[begin + lane]).kind;
      rest &= rest - 1;
      if (kind == SuspendKind::warp_active) {
        active |= 1u << lane;
        continue;
      }
      const std::uint32_t group = mask & alive;
      if (!(group >> lane & 1) || (group & ~waiting)) continue;
      bool together = true;
      for (std::uint32_t others = group; others; others &= others - 1) {
        const std::uint32_t t = begin + static_cast<std::uint32_t>(std::countr_zero(others));
        together = together && frame_.mask[t] == mask && region(frame_.next[t]).kind == kind;
      }
      if (!together) continue;
      resolve(kind, begin, group);
      released |= group;
      rest &= ~group;
    }
    if (released) return released;
    // __activemask does not wait for other lanes, so it is resolved when nothing else can be: for
    // the lanes at one place.
    for (std::uint32_t rest = active; rest;) {
      const std::uint32_t id =
          frame_.next[begin + static_cast<std::uint32_t>(std::countr_zero(rest))];
      std::uint32_t group = 0;
      for (std::uint32_t others = rest; others; others &= others - 1) {
        const std::uint32_t lane = static_cast<std::uint32_t>(std::countr_zero(others));
        if (frame_.next[begin + lane] == id) group |= 1u << lane;
      }
      resolve(SuspendKind::warp_active, begin, group);
      released |= group;
      rest &= ~group;
    }
    return released;
  }

  void resolve(SuspendKind kind, std::uint32_t begin, std::uint32_t group) {
    const auto for_lanes = [&](auto action) {
      for (std::uint32_t rest = group; rest; rest &= rest - 1) {
        action(static_cast<std::uint32_t>(std::countr_zero(rest)));
      }
    };
    switch (kind) {
      case SuspendKind::warp_exchange32:
        if (group == ~0u) {
          std::memcpy(frame_.receive32 + begin, frame_.send32 + begin,
                      kWarp * sizeof(std::uint32_t));
        } else {
          for_lanes(
              [&](auto lane) { frame_.receive32[begin + lane] = frame_.send32[begin + lane]; });
        }
        break;
      case SuspendKind::warp_exchange64:
        for_lanes([&](auto lane) { frame_.receive64[begin + lane] = frame_.send64[begin + lane]; });
        break;
      case SuspendKind::warp_ballot: {
        std::uint32_t ballot = 0;
        for_lanes(
            [&](auto lane) { ballot |= (frame_.send32[begin + lane] != 0 ? 1u : 0u) << lane; });
        for_lanes([&](auto lane) { frame_.receive32[begin + lane] = ballot; });
        break;
      }
      case SuspendKind::warp_active:
        for_lanes([&](auto lane) { frame_.receive32[begin + lane] = group; });
        break;
      default:
        break;
    }
  }

  void run_lanes(std::uint32_t begin, std::uint32_t lanes) {
    // States are read before any lane runs on: a run may not swallow a lane that is not released.
    std::uint32_t at[kWarp];
    for (std::uint32_t rest = lanes; rest; rest &= rest - 1) {
      const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
      at[lane] = frame_.next[begin + lane];
    }
    for (std::uint32_t lane = 0; lane < kWarp;) {
      if (!(lanes >> lane & 1)) {
        ++lane;
        continue;
      }
      std::uint32_t stop = lane + 1;
      while (stop < kWarp && (lanes >> stop & 1) && at[stop] == at[lane]) ++stop;
      run_region(at[lane], begin + lane, begin + stop);
      lane = stop;
    }
  }

  const codegen::HostKernel& kernel_;
  codegen::HostFrame& frame_;
};

}  // namespace kiln::runtime
