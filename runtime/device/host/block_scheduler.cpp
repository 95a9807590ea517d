#include "runtime/device/host/block_scheduler.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <tuple>

#include <sys/mman.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/guarded_memory.hpp"
#include "runtime/support/machine.hpp"

namespace kiln::runtime {
namespace {

using codegen::HostFrame;
using codegen::HostKernel;
using codegen::HostRegion;
using codegen::kExited;
using codegen::kMixedExit;
using codegen::SuspendKind;

constexpr std::uint32_t kWarp = 32;

bool is_warp(SuspendKind kind) { return kind >= SuspendKind::warp_barrier; }

// One block from its first statement to its end.
class BlockRun {
 public:
  BlockRun(const HostKernel& kernel, HostFrame& frame, std::uint32_t threads)
      : kernel_(kernel), frame_(frame), threads_(threads) {}

  /// False: threads are waiting, and nothing can release them.
  bool run() {
    if (kernel_.uses_warp) return run_warps();
    std::uint32_t at = run_uniform(0);
    return at == kExited || run_diverged();
  }

  std::string describe_stall() const;

 private:
  const HostRegion& region(std::uint32_t id) const { return kernel_.regions[id]; }

  // --- kernels with block barriers only

  // Runs all threads together as long as they stay together. Returns kExited, or kMixedExit.
  std::uint32_t run_uniform(std::uint32_t id) {
    for (;;) {
      region(id).run(&frame_, 0, threads_);
      std::uint32_t at = region(id).exit;
      if (at == kMixedExit) at = common_state(0, threads_);
      if (at == kExited || at == kMixedExit) return at;
      if (region(at).kind == SuspendKind::block_count) count_block();
      id = at;
    }
  }

  std::uint32_t common_state(std::uint32_t begin, std::uint32_t end) const {
    const std::uint32_t first = frame_.next[begin];
    std::uint32_t differs = 0;
    for (std::uint32_t t = begin; t < end; ++t) differs |= frame_.next[t] ^ first;
    return differs ? kMixedExit : first;
  }

  bool run_diverged() {
    states_known_ = true;
    for (;;) {
      bool waiting = false;
      if (!resolve_block(waiting)) return false;
      if (!waiting) return true;
      run_range(0, threads_);
    }
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

  // All threads have stopped at block barriers or exited. Within a warp the barrier must be the
  // same one, as on the GPU; warps may meet from different places.
  bool resolve_block(bool& waiting) {
    bool counts = false;
    for (std::uint32_t base = 0; base < threads_; base += kWarp) {
      std::uint32_t at = kExited;
      for (std::uint32_t t = base; t < std::min(base + kWarp, threads_); ++t) {
        const std::uint32_t id = frame_.next[t];
        if (id == kExited) continue;
        if (at != kExited && id != at) return false;
        at = id;
      }
      if (at == kExited) continue;
      waiting = true;
      counts |= region(at).kind == SuspendKind::block_count;
    }
    if (counts) count_block();
    return true;
  }

  void count_block() {
    std::uint32_t count = 0;
    for (std::uint32_t t = 0; t < threads_; ++t) {
      const bool present = !states_known_ || frame_.next[t] != kExited;
      count += present && frame_.send32[t] != 0;
    }
    std::fill(frame_.receive32, frame_.receive32 + threads_, count);
  }

  // --- kernels with warp suspensions

  bool run_warps() {
    states_known_ = true;
    std::fill(frame_.next, frame_.next + threads_, 0u);
    for (;;) {
      for (std::uint32_t base = 0; base < threads_; base += kWarp) {
        if (!run_warp(base, std::min(base + kWarp, threads_))) return false;
      }
      bool waiting = false;
      if (!resolve_block(waiting)) return false;
      if (!waiting) return true;
    }
  }

  // Until all lanes have exited or wait at a block barrier.
  bool run_warp(std::uint32_t begin, std::uint32_t end) {
    std::uint32_t id = common_state(begin, end);
    if (id == kMixedExit) {
      run_range(begin, end);
      id = common_state(begin, end);
    } else if (id != kExited) {
      run_region(id, begin, end);
      id = common_state(begin, end);
    }
    for (;;) {
      // Together, and the suspension names all lanes: nothing to look up.
      while (id != kMixedExit) {
        if (id == kExited || !is_warp(region(id).kind)) return true;
        if (!region(id).full_mask && !masks_cover(begin, end)) break;
        resolve(region(id).kind, begin, all_lanes(begin, end));
        region(id).run(&frame_, begin, end);
        const std::uint32_t exit = region(id).exit;
        if (exit != kMixedExit) {
          std::fill(frame_.next + begin, frame_.next + end, exit);
          id = exit;
        } else {
          id = common_state(begin, end);
        }
      }
      const std::uint32_t released = resolve_groups(begin, end);
      if (!released) return settled(begin, end);
      // All released lanes run before anything else is resolved: they read their mailboxes first.
      run_lanes(begin, released);
      id = common_state(begin, end);
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

  bool settled(std::uint32_t begin, std::uint32_t end) const {
    for (std::uint32_t t = begin; t < end; ++t) {
      const std::uint32_t id = frame_.next[t];
      if (id != kExited && is_warp(region(id).kind)) return false;
    }
    return true;
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

  const HostKernel& kernel_;
  HostFrame& frame_;
  std::uint32_t threads_;
  bool states_known_ = false;  ///< `next` is valid for every thread
};

const char* name_of(SuspendKind kind) {
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
  }
  return "?";
}

std::string BlockRun::describe_stall() const {
  std::map<std::uint32_t, std::uint32_t> waiting;
  std::uint32_t exited = 0;
  for (std::uint32_t t = 0; t < threads_; ++t) {
    frame_.next[t] == kExited ? void(++exited) : void(++waiting[frame_.next[t]]);
  }
  std::string text;
  for (auto [id, count] : waiting) {
    text += detail::format("{}{} at synchronisation {} ({})", text.empty() ? "" : ", ", count, id,
                           name_of(region(id).kind));
  }
  return detail::format("divergent barrier: {} of {} threads exited; waiting: {}", exited, threads_,
                        text);
}

}  // namespace

void BlockScratch::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

namespace {

/// The guard zone behind it: as much as a kernel may ever ask for, so that a kernel that forgot to
/// ask harms nothing else.
constexpr std::size_t kGuardBefore = 4096, kGuardAfter = kMostGuardBytes;

/// Memory of a block that is a good part of a core's cache lies in huge pages: which small pages a
/// process happens to get decides which of its lines displace each other, and made the same kernel
/// 5 % slower in one process than in another.
std::size_t alignment_for(std::size_t bytes) {
  constexpr std::size_t kMuch = 32 << 10, kHugePage = 2 << 20;
  return bytes >= kMuch ? kHugePage : codegen::kSharedAlignment;
}

}  // namespace

void BlockScratch::prepare(const BlockLaunch& launch) {
  const HostKernel& kernel = *launch.kernel;
  const std::size_t granularity = codegen::kThreadGranularity;
  const std::size_t threads = (launch.block.count() + granularity - 1) / granularity * granularity;
  const auto aligned = [](std::size_t bytes) {
    return (bytes + codegen::kSharedAlignment - 1) / codegen::kSharedAlignment *
           codegen::kSharedAlignment;
  };
  const std::size_t shared_bytes = std::size_t{kernel.static_shared} + launch.dynamic_shared;
  const std::size_t before = launch.guarded ? kGuardBefore : 0;
  const std::size_t shared = aligned(shared_bytes + (launch.guarded ? kGuardAfter : 0));
  const std::size_t slots = aligned(kernel.slot_bytes * threads);
  const std::size_t words = aligned(4 * threads), doubles = aligned(8 * threads);
  const bool states = kernel.region_count > 1;
  const std::size_t bytes = before + shared + slots + (states ? 4 * words + 2 * doubles : words);
  if (bytes > capacity_) {
    memory_.reset();
    capacity_ = 0;
    const std::size_t alignment = alignment_for(bytes);
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    // Every CPU thread is about to take as much.
    const std::uint64_t takers = std::min<std::uint64_t>(
        std::max(1u, std::thread::hardware_concurrency()), launch.grid.count());
    require_memory(detail::format("{}: shared and local memory of blocks of {} threads",
                                  kernel.name, launch.block.count())
                       .c_str(),
                   rounded * takers);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
    if (!memory_)
      throw EnvironmentError(detail::format(
          "{}: {} bytes of memory for a block cannot be allocated", kernel.name, rounded));
    if (alignment > codegen::kSharedAlignment) ::madvise(memory_.get(), rounded, MADV_HUGEPAGE);
    capacity_ = rounded;
    guards_filled_ = false;
  }
  std::byte* at = memory_.get() + before;
  const auto take = [&](std::size_t size) {
    std::byte* start = at;
    at += size;
    return start;
  };
  frame_.shared = take(shared);
  if (launch.guarded && !guards_filled_) {
    const std::byte* const pattern = guard_pattern(GuardPattern::bytes).data();
    std::memcpy(frame_.shared - kGuardBefore, pattern, kGuardBefore);
    std::memcpy(frame_.shared + shared_bytes, pattern, kGuardAfter);
    guards_filled_ = true;
  }
  frame_.slots = take(slots);
  frame_.next = reinterpret_cast<std::uint32_t*>(take(words));
  if (states) {
    frame_.mask = reinterpret_cast<std::uint32_t*>(take(words));
    frame_.send32 = reinterpret_cast<std::uint32_t*>(take(words));
    frame_.receive32 = reinterpret_cast<std::uint32_t*>(take(words));
    frame_.send64 = reinterpret_cast<std::uint64_t*>(take(doubles));
    frame_.receive64 = reinterpret_cast<std::uint64_t*>(take(doubles));
  }
  frame_.arguments = launch.arguments;
  frame_.slot_stride = static_cast<std::uint32_t>(threads);
  const Extent &block = launch.block, &grid = launch.grid;
  frame_.block_dim[0] = block.x, frame_.block_dim[1] = block.y, frame_.block_dim[2] = block.z;
  frame_.grid_dim[0] = grid.x, frame_.grid_dim[1] = grid.y, frame_.grid_dim[2] = grid.z;
}

std::string BlockScratch::breach(const BlockLaunch& launch) const {
  const std::size_t fixed = launch.kernel->static_shared, dynamic = launch.dynamic_shared;
  const std::byte* const pattern = guard_pattern(GuardPattern::bytes).data();
  const std::byte *const before = frame_.shared - kGuardBefore, *const after =
                                                                    frame_.shared + fixed + dynamic;
  const auto tell = [&](const char* side, std::ptrdiff_t byte) {
    return detail::format(
        "kernel {} wrote outside the shared memory of a block, {} its {} bytes ({} static, {} "
        "dynamic): byte {}",
        launch.kernel->name, side, fixed + dynamic, fixed, dynamic, byte);
  };
  if (std::memcmp(before, pattern, kGuardBefore) != 0) {
    std::ptrdiff_t last = -1;
    while (frame_.shared[last] == pattern[static_cast<std::ptrdiff_t>(kGuardBefore) + last]) --last;
    return tell("before", last);
  }
  if (std::memcmp(after, pattern, kGuardAfter) == 0) return {};
  const std::byte* const first = std::mismatch(after, after + kGuardAfter, pattern).first;
  return tell("after", first - frame_.shared);
}

std::string run_blocks(const BlockLaunch& launch, std::uint64_t first, std::uint64_t last,
                       BlockScratch& scratch, const std::atomic<bool>& stop) {
  HostFrame& frame = scratch.frame();
  const HostKernel& kernel = *launch.kernel;
  const auto threads = static_cast<std::uint32_t>(launch.block.count());
  // Small blocks take as long as a few divisions: only the first one's place is divided out.
  auto& [x, y, z] = frame.block_index;
  const std::uint64_t row = first / launch.grid.x;
  x = static_cast<std::uint32_t>(first % launch.grid.x);
  y = static_cast<std::uint32_t>(row % launch.grid.y);
  z = static_cast<std::uint32_t>(row / launch.grid.y);
  frame.fault = nullptr;
  for (std::uint64_t i = first; i < last && !stop.load(std::memory_order_relaxed); ++i) {
    std::string stall;
    if (kernel.region_count == 1) {
      kernel.regions[0].run(&frame, 0, threads);
    } else {
      BlockRun run(kernel, frame, threads);
      if (!run.run()) stall = run.describe_stall();
    }
    if (frame.fault || !stall.empty())
      return detail::format("kernel {}, block ({}, {}, {}): {}", kernel.name, x, y, z,
                            frame.fault ? frame.fault : stall);
    if (++x == launch.grid.x) {
      x = 0;
      if (++y == launch.grid.y) y = 0, ++z;
    }
  }
  return {};
}

}  // namespace kiln::runtime
