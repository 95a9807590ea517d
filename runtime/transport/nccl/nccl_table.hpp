// Internal: NCCL's functions that a communicator needs, found at run time. Includes nccl.h and
// cuda.h; nothing of them is linked.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <nccl.h>

#include "runtime/device/cuda/driver.hpp"

namespace kiln::runtime::ranks {

/// Filled by `open_nccl`, or by a test. Immutable once shared.
struct NcclTable {
  decltype(&::ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&::ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&::ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&::ncclCommAbort) CommAbort = nullptr;
  decltype(&::ncclCommDestroy) CommDestroy = nullptr;
  decltype(&::ncclCommFinalize) CommFinalize = nullptr;
  decltype(&::ncclCommSplit) CommSplit = nullptr;
  decltype(&::ncclCommCount) CommCount = nullptr;
  decltype(&::ncclCommUserRank) CommUserRank = nullptr;
  decltype(&::ncclCommCuDevice) CommCuDevice = nullptr;
  decltype(&::ncclAllGather) AllGather = nullptr;
  decltype(&::ncclAllReduce) AllReduce = nullptr;
  decltype(&::ncclBroadcast) Broadcast = nullptr;
  decltype(&::ncclGetErrorString) GetErrorString = nullptr;
  std::shared_ptr<const DriverTable> driver;
};

struct NcclProbe {
  std::shared_ptr<const NcclTable> table;  ///< null when there is none
  std::string reason;                      ///< why there is none, and what to do
};

/// Opens libnccl.so.2 and the driver. Their absence is an ordinary outcome.
NcclProbe open_nccl();

/// `2.28.9` of 22809.
std::string nccl_version_text(int code);

}  // namespace kiln::runtime::ranks
