// Internal: NCCL's and the CUDA driver's functions that a communicator needs, found at run time.
// Includes nccl.h and cuda.h; nothing of them is linked.
#pragma once

#include <memory>
#include <string>

#include <cuda.h>
#include <nccl.h>

namespace kiln::runtime::ranks {

/// Filled by `open_nccl`, or by a test. Immutable once shared.
struct NcclTable {
  decltype(&::ncclGetVersion) GetVersion = nullptr;
  decltype(&::ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&::ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&::ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&::ncclCommAbort) CommAbort = nullptr;
  decltype(&::ncclCommDestroy) CommDestroy = nullptr;
  decltype(&::ncclCommFinalize) CommFinalize = nullptr;
  decltype(&::ncclCommSplit) CommSplit = nullptr;
  decltype(&::ncclCommCount) CommCount = nullptr;
  decltype(&::ncclCommUserRank) CommUserRank = nullptr;
  decltype(&::ncclAllGather) AllGather = nullptr;
  decltype(&::ncclAllReduce) AllReduce = nullptr;
  decltype(&::ncclBroadcast) Broadcast = nullptr;
  decltype(&::ncclGetErrorString) GetErrorString = nullptr;
  // Of the driver, on the context that is current.
  decltype(&::cuStreamCreate) StreamCreate = nullptr;
  decltype(&::cuStreamDestroy) StreamDestroy = nullptr;
  decltype(&::cuStreamQuery) StreamQuery = nullptr;
  decltype(&::cuMemAlloc) MemAlloc = nullptr;
  decltype(&::cuMemFree) MemFree = nullptr;
  decltype(&::cuMemcpyHtoDAsync) MemcpyHtoDAsync = nullptr;
  decltype(&::cuMemcpyDtoHAsync) MemcpyDtoHAsync = nullptr;
};

struct NcclProbe {
  std::shared_ptr<const NcclTable> table;  ///< null when there is none
  std::string reason;                      ///< why there is none, and what to do
};

/// Opens libnccl.so.2 and the driver's library. Their absence is an ordinary outcome.
NcclProbe open_nccl();

}  // namespace kiln::runtime::ranks
