#include "runtime/device/host/block_scheduler.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <tuple>

#include <sys/mman.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/guarded_memory.hpp"
#include "runtime/device/host/cluster_scheduler.hpp"
#include "runtime/device/host/warp_lanes.hpp"
#include "runtime/support/machine.hpp"

namespace kiln::runtime {
namespace {

using codegen::HostFrame;
using codegen::HostKernel;
using codegen::kExited;
using codegen::kMixedExit;
using codegen::SuspendKind;

constexpr std::uint32_t kWarp = WarpLanes::kWarp;

// One block from its first statement to its end.
class BlockRun : private WarpLanes {
 public:
  BlockRun(const HostKernel& kernel, HostFrame& frame, std::uint32_t threads)
      : WarpLanes(kernel, frame), threads_(threads) {}

  /// False: threads are waiting, and nothing can release them.
  bool run() {
    if (kernel_.uses_warp) return run_warps();
    std::uint32_t at = run_uniform(0);
    return at == kExited || run_diverged();
  }

  std::string describe_stall() const;

 private:
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

  bool run_diverged() {
    states_known_ = true;
    for (;;) {
      bool waiting = false;
      if (!resolve_block(waiting)) return false;
      if (!waiting) return true;
      run_range(0, threads_);
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

  bool settled(std::uint32_t begin, std::uint32_t end) const {
    for (std::uint32_t t = begin; t < end; ++t) {
      const std::uint32_t id = frame_.next[t];
      if (id != kExited && is_warp(region(id).kind)) return false;
    }
    return true;
  }

  std::uint32_t threads_;
  bool states_known_ = false;  ///< `next` is valid for every thread
};

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
constexpr std::size_t kArenaPage = 2 << 20;
std::size_t alignment_for(std::size_t bytes) {
  constexpr std::size_t kMuch = 32 << 10;
  return bytes >= kMuch ? kArenaPage : codegen::kArenaAlignment;
}

}  // namespace

void BlockScratch::prepare(const BlockLaunch& launch) {
  prepare_block(launch);
  const std::uint64_t others = launch.blocks_together() - 1;
  if (peers_.size() < others) peers_.resize(others);
  for (std::uint64_t i = 0; i < others; ++i) peers_[i].prepare_block(launch);
}

void BlockScratch::prepare_block(const BlockLaunch& launch) {
  const HostKernel& kernel = *launch.kernel;
  const std::size_t granularity = codegen::kThreadGranularity;
  const std::size_t threads = (launch.block.count() + granularity - 1) / granularity * granularity;
  const auto aligned = [](std::size_t bytes) {
    return (bytes + codegen::kSharedAlignment - 1) / codegen::kSharedAlignment *
           codegen::kSharedAlignment;
  };
  const std::size_t shared_bytes = launch.shared_bytes();
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
    if (alignment == kArenaPage) ::madvise(memory_.get(), rounded, MADV_HUGEPAGE);
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
  const Extent& cluster = launch.cluster;
  frame_.cluster_dim[0] = cluster.x, frame_.cluster_dim[1] = cluster.y,
  frame_.cluster_dim[2] = cluster.z;
}

std::string BlockScratch::breach(const BlockLaunch& launch) const {
  for (std::uint64_t i = 0; i + 1 < launch.blocks_together() && i < peers_.size(); ++i)
    if (std::string words = peers_[i].breach_here(launch); !words.empty()) return words;
  return breach_here(launch);
}

std::string BlockScratch::breach_here(const BlockLaunch& launch) const {
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
  if (launch.kernel->uses_cluster) return run_clusters(launch, first, last, scratch, stop);
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
