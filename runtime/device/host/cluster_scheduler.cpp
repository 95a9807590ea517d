#include "runtime/device/host/cluster_scheduler.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "runtime/device/host/cluster_memory.hpp"
#include "runtime/device/host/warp_lanes.hpp"

namespace kiln::runtime {
namespace {

using codegen::HostFrame;
using codegen::HostKernel;

/// Rounds in which threads that poll are told "not yet" while nothing else happens.
constexpr unsigned kMostPolls = 10000;

// One block of a cluster.
class ClusterBlock : private WarpLanes {
 public:
  ClusterBlock(const HostKernel& kernel, HostFrame& frame, ClusterMemory& memory,
               std::uint32_t rank)
      : WarpLanes(kernel, frame),
        memory_(memory),
        rank_(rank),
        threads_(memory.threads()),
        warps_((threads_ + kWarp - 1) / kWarp) {}

  void begin() {
    std::fill(frame_.next, frame_.next + threads_, 0u);
    barriers_ = {};
    for (std::uint32_t w = 0; w < warps_.size(); ++w)
      warps_[w] = {.ready = all_lanes(first(w), last(w))};
  }

  /// Runs every warp until it waits for others; false: none could resume.
  bool advance() {
    bool moved = false;
    for (std::uint32_t w = 0; w < warps_.size() && !frame_.fault; ++w) moved |= advance_warp(w);
    return moved;
  }

  /// Takes all threads past the block's barrier if none of them is elsewhere.
  bool open_block_barrier() {
    std::uint32_t count = 0;
    bool any = false;
    for (std::uint32_t t = 0; t < threads_; ++t) {
      const std::uint32_t id = frame_.next[t];
      if (id == kExited) continue;
      if (region(id).kind > SuspendKind::block_count) return false;
      any = true;
      count += region(id).kind == SuspendKind::block_count && frame_.send32[t] != 0;
    }
    if (!any) return false;
    std::fill(frame_.receive32, frame_.receive32 + threads_, count);
    for (std::uint32_t w = 0; w < warps_.size(); ++w) warps_[w].ready = alive(w);
    return true;
  }

  /// Tells threads that ask whether a phase is over that it is not.
  bool answer_polls() {
    bool any = false;
    for (std::uint32_t t = 0; t < threads_; ++t) {
      const std::uint32_t id = frame_.next[t];
      if (id == kExited || region(id).kind != SuspendKind::mbarrier_test) continue;
      frame_.receive32[t] = 0;
      warps_[t / kWarp].ready |= 1u << t % kWarp;
      any = true;
    }
    return any;
  }

  std::string describe() const;

 private:
  struct Warp {
    std::uint32_t ready = 0;       ///< lanes that may resume where they stopped
    bool at_named = false;         ///< has arrived at a named barrier and waits there
    std::uint32_t generation = 0;  ///< of that barrier when it arrived
  };
  struct NamedBarrier {
    std::uint32_t arrived = 0, expected = 0, generation = 0;
  };

  std::uint32_t first(std::uint32_t w) const { return w * kWarp; }
  std::uint32_t last(std::uint32_t w) const { return std::min(first(w) + kWarp, threads_); }

  std::uint32_t alive(std::uint32_t w) const {
    std::uint32_t lanes = 0;
    for (std::uint32_t t = first(w); t < last(w); ++t)
      lanes |= (frame_.next[t] != kExited ? 1u : 0u) << (t - first(w));
    return lanes;
  }

  bool advance_warp(std::uint32_t w) {
    bool moved = false;
    for (;;) {
      std::uint32_t lanes = std::exchange(warps_[w].ready, 0);
      if (!lanes) lanes = released(w);
      if (!lanes) lanes = resolve_groups(first(w), last(w));
      if (!lanes || frame_.fault) return moved;
      moved = true;
      run_lanes(first(w), lanes);
      if (frame_.fault) return moved;
    }
  }

  // Lanes whose wait for others is over.
  std::uint32_t released(std::uint32_t w) {
    std::uint32_t lanes = 0, named = 0;
    const std::uint32_t begin = first(w);
    // Mostly all lanes wait for the same.
    std::uint64_t address = 0;
    std::uint32_t parity = 0;
    bool asked = false, over = false;
    for (std::uint32_t t = begin; t < last(w); ++t) {
      const std::uint32_t id = frame_.next[t];
      if (id == kExited) continue;
      const std::uint32_t lane = 1u << (t - begin);
      switch (region(id).kind) {
        case SuspendKind::mbarrier_wait:
        case SuspendKind::mbarrier_test:
          if (!asked || frame_.send64[t] != address || frame_.send32[t] != parity) {
            asked = true;
            address = frame_.send64[t], parity = frame_.send32[t];
            over = memory_.passed(rank_, address, parity);
          }
          if (!over) break;
          frame_.receive32[t] = 1;
          lanes |= lane;
          break;
        case SuspendKind::cluster_wait:
          if (memory_.passed_cluster(rank_, t)) lanes |= lane;
          break;
        case SuspendKind::warpgroup_wait:
          if (memory_.finish_products(rank_, t, frame_.send32[t])) lanes |= lane;
          break;
        case SuspendKind::named_sync:
        case SuspendKind::named_arrive:
          named |= lane;
          break;
        default:
          break;
      }
    }
    return lanes | (named ? at_named_barrier(w, named) : 0);
  }

  // A warp comes to a named barrier as a whole.
  std::uint32_t at_named_barrier(std::uint32_t w, std::uint32_t lanes) {
    if (lanes != alive(w)) return 0;
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(lanes));
    const std::uint32_t asked = frame_.send32[first(w) + lane];
    const SuspendKind kind = region(frame_.next[first(w) + lane]).kind;
    for (std::uint32_t rest = lanes; rest; rest &= rest - 1) {
      const std::uint32_t t = first(w) + static_cast<std::uint32_t>(std::countr_zero(rest));
      if (frame_.send32[t] != asked || region(frame_.next[t]).kind != kind) return 0;
    }
    const std::uint32_t id = asked & 0xff, threads = asked >> 8;
    if (id >= barriers_.size() || threads == 0 || threads % kWarp != 0) {
      memory_.fail(rank_, detail::format("named barrier {} for {} threads: there are barriers 0 to "
                                         "15, for multiples of 32 threads",
                                         id, threads));
      return 0;
    }
    NamedBarrier& barrier = barriers_[id];
    Warp& warp = warps_[w];
    if (!warp.at_named) {
      if (barrier.arrived != 0 && barrier.expected != threads) {
        memory_.fail(rank_,
                     detail::format("named barrier {} is of {} threads for some warps and of "
                                    "{} for others",
                                    id, barrier.expected, threads));
        return 0;
      }
      barrier.expected = threads;
      warp.at_named = kind == SuspendKind::named_sync;
      warp.generation = barrier.generation;
      barrier.arrived += kWarp;
      if (barrier.arrived == threads) {
        barrier.arrived = 0;
        ++barrier.generation;
      }
      if (kind == SuspendKind::named_arrive) return lanes;
    }
    if (barrier.generation == warp.generation) return 0;
    warp.at_named = false;
    return lanes;
  }

  ClusterMemory& memory_;
  const std::uint32_t rank_, threads_;
  std::vector<Warp> warps_;
  std::array<NamedBarrier, 16> barriers_{};
};

std::string ClusterBlock::describe() const {
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> waiting;
  std::uint32_t exited = 0;
  for (std::uint32_t t = 0; t < threads_; ++t) {
    const std::uint32_t id = frame_.next[t];
    if (id == kExited) {
      ++exited;
      continue;
    }
    const SuspendKind kind = region(id).kind;
    std::string what = name_of(kind);
    if (kind == SuspendKind::mbarrier_wait || kind == SuspendKind::mbarrier_test)
      what = memory_.describe_barrier(rank_, frame_.send64[t], frame_.send32[t]);
    if (kind == SuspendKind::named_sync || kind == SuspendKind::named_arrive) {
      const NamedBarrier& barrier = barriers_[frame_.send32[t] & 15];
      what = detail::format("named barrier {}, where {} of {} threads are", frame_.send32[t] & 0xff,
                            barrier.arrived, frame_.send32[t] >> 8);
    }
    ++waiting[{id, what}];
  }
  std::string text;
  for (const auto& [at, count] : waiting)
    text += detail::format("{}{} at synchronisation {} ({})", text.empty() ? "" : ", ", count,
                           at.first, at.second);
  return detail::format("{} of {} threads exited{}{}", exited, threads_,
                        text.empty() ? "" : "; waiting: ", text);
}

// A cluster from its blocks' first statements to their ends.
class ClusterRun {
 public:
  ClusterRun(const BlockLaunch& launch, BlockScratch& scratch) : memory_(launch, scratch) {
    blocks_.reserve(memory_.blocks());
    for (std::uint32_t rank = 0; rank < memory_.blocks(); ++rank)
      blocks_.emplace_back(*launch.kernel, memory_.frame(rank), memory_, rank);
  }

  HostFrame& frame(std::uint32_t rank) { return memory_.frame(rank); }
  std::uint32_t blocks() const { return memory_.blocks(); }

  /// Blocks start as late as they may: each when all that have started wait for something. So what
  /// a block does with the shared memory of one that may not have started is lost, as on a GPU.
  /// Returns an empty text, or what went wrong; `rank` is then the block where it did.
  /// @param first the block that starts first
  std::string run(std::uint32_t first, std::uint32_t& rank) {
    memory_.begin();
    for (ClusterBlock& block : blocks_) block.begin();
    std::uint32_t started = 0;
    unsigned polls = 0;
    std::uint64_t events = memory_.events();
    for (;;) {
      bool moved = false;
      for (std::uint32_t i = 0; i < started; ++i) {
        rank = (first + i) % blocks();
        moved |= blocks_[rank].advance();
        if (frame(rank).fault) return frame(rank).fault;
      }
      if (moved) continue;
      for (std::uint32_t i = 0; i < started; ++i)
        moved |= blocks_[(first + i) % blocks()].open_block_barrier();
      if (moved || memory_.open_cluster_barrier()) continue;
      if (memory_.advance_copy()) {
        for (rank = 0; rank < blocks(); ++rank)
          if (frame(rank).fault) return frame(rank).fault;
        continue;
      }
      if (started < blocks()) {
        memory_.start((first + started) % blocks());
        ++started;
        continue;
      }
      if (std::exchange(events, memory_.events()) != memory_.events()) polls = 0;
      if (++polls > kMostPolls) break;
      for (ClusterBlock& block : blocks_) moved |= block.answer_polls();
      if (!moved) break;
    }
    bool all = true;
    for (std::uint32_t i = blocks(); i-- > 0;)
      if (!memory_.exited(i)) rank = i, all = false;
    if (all) {
      rank = 0;
      return memory_.left_over();
    }
    std::string text = "deadlock: ";
    for (std::uint32_t i = 0; i < blocks(); ++i) {
      if (blocks() > 1) text += detail::format("{}block {} of the cluster: ", i ? "; " : "", i);
      text += blocks_[i].describe();
    }
    return text;
  }

 private:
  ClusterMemory memory_;
  std::vector<ClusterBlock> blocks_;
};

}  // namespace

std::string run_clusters(const BlockLaunch& launch, std::uint64_t first, std::uint64_t last,
                         BlockScratch& scratch, const std::atomic<bool>& stop) {
  ClusterRun run(launch, scratch);
  const Extent& size = launch.cluster;
  const std::uint64_t columns = launch.grid.x / size.x, rows = launch.grid.y / size.y;
  for (std::uint64_t i = first; i < last && !stop.load(std::memory_order_relaxed); ++i) {
    const std::uint64_t at[3] = {i % columns * size.x, i / columns % rows * size.y,
                                 i / columns / rows * size.z};
    for (std::uint32_t rank = 0; rank < run.blocks(); ++rank) {
      HostFrame& frame = run.frame(rank);
      for (unsigned d = 0; d < 3; ++d)
        frame.block_index[d] = static_cast<std::uint32_t>(at[d]) + frame.cluster_index[d];
    }
    std::uint32_t rank = 0;
    const std::string wrong = run.run(static_cast<std::uint32_t>(i % run.blocks()), rank);
    if (wrong.empty()) continue;
    const auto& [x, y, z] = run.frame(rank).block_index;
    return detail::format("kernel {}, block ({}, {}, {}): {}", launch.kernel->name, x, y, z, wrong);
  }
  return {};
}

}  // namespace kiln::runtime
