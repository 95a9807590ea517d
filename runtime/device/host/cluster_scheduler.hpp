// Runs the blocks of a cluster together on one CPU thread, warp by warp in turn: for kernels that
// use clusters, mbarriers, named barriers or asynchronous copies (cluster_memory.hpp).
//
// A suspended thread resumes as soon as what it waits for has happened. When no thread can resume
// and no copy or product is pending, the kernel is in a deadlock: an error that says which thread
// waits for what.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/device/host/block_scheduler.hpp"

namespace kiln::runtime {

/// run_blocks() for such kernels. `first` and `last` are clusters.
std::string run_clusters(const BlockLaunch& launch, std::uint64_t first, std::uint64_t last,
                         BlockScratch& scratch, const std::atomic<bool>& stop);

}  // namespace kiln::runtime
