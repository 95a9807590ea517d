// Runs the blocks of a host kernel: exact block semantics on one CPU thread per block.
//
// A thread of a block that suspends waits until the scheduler resolves what it waits for: a block
// barrier when all threads that have not exited are there, a warp suspension when all lanes of its
// mask that have not exited are there with the same mask. When nothing can be resolved and threads
// still wait, the barrier is divergent, which is an error, not a hang.
//
// Kernels that use clusters, mbarriers or asynchronous copies are run by cluster_scheduler.hpp.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/host_abi.hpp"

namespace kiln::runtime {

struct Extent {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

/// One launch, without the block it is at.
struct BlockLaunch {
  const codegen::HostKernel* kernel;
  Extent grid, block;
  std::uint32_t dynamic_shared;  ///< bytes
  void* const* arguments;
  bool guarded = false;  ///< guard zones around shared memory, see BlockScratch::breach
  Extent cluster = {};   ///< blocks; divides the grid

  /// Blocks that run together on one CPU thread: what a CPU thread takes at a time.
  std::uint64_t blocks_together() const { return kernel->uses_cluster ? cluster.count() : 1; }
  std::uint64_t shared_bytes() const {
    return std::uint64_t{kernel->static_shared} + dynamic_shared;
  }
};

/// Memory for one block in flight, or for those of one cluster. Grows to what the largest block
/// needed and is reused from block to block and launch to launch; for one CPU thread at a time.
class BlockScratch {
 public:
  /// Fits the launch; allocates only if no earlier launch needed as much.
  /// @throws UserError when that is more memory than there is
  void prepare(const BlockLaunch& launch);
  codegen::HostFrame& frame(std::uint32_t rank = 0) {
    return rank == 0 ? frame_ : peers_[rank - 1].frame_;
  }
  /// What blocks of a guarded launch have written outside their shared memory, in words; empty:
  /// nothing. @pre the last launch that it was prepared for was guarded, as all before it
  std::string breach(const BlockLaunch& launch) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  void prepare_block(const BlockLaunch& launch);
  std::string breach_here(const BlockLaunch& launch) const;

  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t capacity_ = 0;
  bool guards_filled_ = false;
  codegen::HostFrame frame_{};
  std::vector<BlockScratch> peers_;  ///< for the other blocks of a cluster
};

/// Runs the blocks `first` to `last` - 1 (linear, x fastest) of a launch that `scratch` was
/// prepared for, until `stop`; where blocks run together, these are numbers of clusters. Returns an
/// empty text, or what went wrong in the block after which it ended: a divergent barrier, a failed
/// assert.
std::string run_blocks(const BlockLaunch& launch, std::uint64_t first, std::uint64_t last,
                       BlockScratch& scratch, const std::atomic<bool>& stop);

}  // namespace kiln::runtime
