// What the blocks of a cluster share while they run: each other's shared memory, the mbarriers in
// it, and the copies and products under way.
//
// Asynchronous work takes place as late as the hardware's rules allow: a copy to shared memory when
// every thread waits; a store reads when its thread waits until it has read, and writes when its
// thread waits for the whole of it; a product takes place when a thread of its warpgroup waits. So
// a kernel that lacks a wait computes wrong results here, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/host_abi.hpp"
#include "runtime/device/host/block_scheduler.hpp"
#include "runtime/device/host/mbarrier.hpp"

namespace kiln::runtime {

/// What one thread has started, by groups; the oldest first.
template <class Work>
struct WorkGroups {
  std::vector<Work> work;
  std::vector<std::size_t> sizes;  ///< of the groups that are closed
  std::size_t open = 0;            ///< work that belongs to no group yet
  std::uint64_t closed = 0;        ///< groups so far

  void add(Work one) {
    work.push_back(std::move(one));
    ++open;
  }
  void commit() {
    sizes.push_back(open);
    open = 0;
    ++closed;
  }
  /// Does the work of all groups but the last `left`; `ended` is called behind each group.
  template <class Do, class Ended>
  void finish(std::uint64_t left, Do&& perform, Ended&& ended) {
    while (sizes.size() > left) {
      for (std::size_t i = 0; i < sizes.front(); ++i) perform(work[i]);
      work.erase(work.begin(), work.begin() + static_cast<std::ptrdiff_t>(sizes.front()));
      sizes.erase(sizes.begin());
      ended();
    }
  }
  template <class Do>
  void finish(std::uint64_t left, Do&& perform) {
    finish(left, perform, [] {});
  }
};

/// Serves the clusters that one CPU thread runs, one after the other.
class ClusterMemory {
 public:
  /// @pre `scratch` is prepared for the launch
  ClusterMemory(const BlockLaunch& launch, BlockScratch& scratch);
  ClusterMemory(const ClusterMemory&) = delete;
  ClusterMemory& operator=(const ClusterMemory&) = delete;

  /// Called before a cluster's first statement.
  void begin();
  /// Called before the first statement of block `rank`. Leaves nothing of use in its shared memory.
  void start(std::uint32_t rank);
  std::uint32_t blocks() const { return blocks_; }
  std::uint32_t threads() const { return threads_; }
  codegen::HostFrame& frame(std::uint32_t rank) { return scratch_.frame(rank); }

  /// Whether the phase that a thread of block `rank` waits for is over.
  bool passed(std::uint32_t rank, std::uint64_t address, std::uint32_t parity);
  /// Takes the thread past the cluster's barrier if all have arrived there.
  bool passed_cluster(std::uint32_t rank, std::uint32_t thread);
  /// Does the products of the thread's warpgroup, all groups but this thread's last `left`, if all
  /// of it has started them; false: it has not.
  bool finish_products(std::uint32_t rank, std::uint32_t thread, std::uint32_t left);
  /// Opens the cluster's barrier if all threads that have not exited are there; false: they are
  /// not.
  bool open_cluster_barrier();
  /// Does what was started first; false: there is nothing under way.
  bool advance_copy();
  /// Called when all threads have exited: does the stores that may still be under way then, and
  /// says what must not have been left behind; empty: nothing.
  std::string left_over();
  bool exited(std::uint32_t rank) const;

  /// How often threads have told others something. What polls in vain does not change it.
  std::uint64_t events() const { return events_; }
  /// Ends the cluster with an error; the first one counts.
  void fail(std::uint32_t rank, std::string words);
  /// "the mbarrier at byte 64: ..." for the report of a deadlock.
  std::string describe_barrier(std::uint32_t rank, std::uint64_t address,
                               std::uint32_t parity) const;

 private:
  struct Place {
    std::uint32_t rank;
    std::uint64_t offset;
  };
  struct Load {
    codegen::HostBulkCopy copy;
    std::uint32_t rank;  ///< of the block that started it
    Place to, barrier;
  };
  /// A store whose bytes in shared memory may change by now.
  struct Read {
    codegen::HostBulkCopy copy;
    std::uint64_t place;  ///< in `bytes`, as far from a swizzle's start as it was
    std::vector<std::byte> bytes;
  };
  struct Thread {
    WorkGroups<codegen::HostBulkCopy> stores;
    WorkGroups<Read> read;  ///< in front of `stores`
    WorkGroups<codegen::HostWarpgroupMma> products;
    enum : std::uint8_t { away, arrived, open } cluster = away;
  };

  /// Groups of a thread that are read and not written yet: it may never wait for more than that.
  static constexpr std::uint64_t kMostRead = 64;

  static std::uint64_t serve(codegen::HostFrame* frame, std::uint32_t thread,
                             codegen::HostService service, const void* p, std::uint64_t x);
  std::uint64_t serve_memory(std::uint32_t rank, codegen::HostService service, const void* p,
                             std::uint64_t x);
  std::uint64_t serve_barrier(std::uint32_t rank, codegen::HostService service, const void* p,
                              std::uint64_t x);
  void serve_work(std::uint32_t rank, std::uint32_t thread, codegen::HostService service,
                  const void* p, std::uint64_t x);

  Thread& at(std::uint32_t rank, std::uint32_t thread) {
    return threads_of_[std::size_t{rank} * threads_ + thread];
  }
  std::optional<Place> locate(std::uint32_t rank, const void* address) const;
  std::byte* memory(const Place& place) const { return shared_[place.rank] + place.offset; }
  /// The barrier there, for block `rank`, which does `what`; fails if there is none.
  std::optional<Place> barrier(std::uint32_t rank, const void* address, const char* what);
  Mbarrier read(const Place& place) const;
  void write(const Place& place, const Mbarrier& barrier);
  void start_load(std::uint32_t rank, const codegen::HostBulkCopy& copy);
  void start_store(std::uint32_t rank, std::uint32_t thread, const codegen::HostBulkCopy& copy);
  void do_load(const Load& load, std::uint32_t to_rank);
  /// Waits, on behalf of a thread, until at most `left` groups of its stores are under way; or,
  /// `only_read`, read shared memory.
  void finish_stores(std::uint32_t rank, Thread& thread, std::uint64_t left, bool only_read);
  Read read_store(std::uint32_t rank, const codegen::HostBulkCopy& copy) const;
  void do_store(std::uint32_t rank, const Read& store);
  /// Bytes that a copy moves; nothing: it cannot be, and the cluster has failed.
  std::optional<std::uint64_t> check(std::uint32_t rank, const codegen::HostBulkCopy& copy);

  BlockScratch& scratch_;
  const std::uint32_t blocks_, threads_;
  const std::uint64_t shared_bytes_;
  std::vector<std::byte*> shared_;  ///< by block
  std::vector<Thread> threads_of_;  ///< by block and thread
  std::vector<Load> loads_;         ///< in the order in which they were started
  std::size_t loads_done_ = 0;
  std::uint64_t events_ = 0;
  std::string fault_;
};

}  // namespace kiln::runtime
