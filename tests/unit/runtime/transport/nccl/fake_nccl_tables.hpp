// The fake library's and driver's functions, in the tables that Kiln calls them by.
#pragma once

#include "fake_nccl.hpp"

namespace fake {

inline std::shared_ptr<const kiln::runtime::DriverTable> driver() {
  auto t = std::make_shared<kiln::runtime::DriverTable>();
  t->GetErrorName = [](CUresult, const char** s) { return *s = "CUDA_FAKE", CUDA_SUCCESS; };
  t->GetErrorString = [](CUresult, const char** s) { return *s = "a fake error", CUDA_SUCCESS; };
  t->DeviceGetCount = [](int* n) { return *n = 8, CUDA_SUCCESS; };
  t->DeviceGet = [](CUdevice* d, int ordinal) { return *d = ordinal, CUDA_SUCCESS; };
  t->CtxGetDevice = [](CUdevice* d) { return *d = 0, CUDA_SUCCESS; };
  t->DevicePrimaryCtxRetain = [](CUcontext* c, CUdevice) {
    KILN_FAKE("cuDevicePrimaryCtxRetain", false);
    ++state().retained;
    *c = reinterpret_cast<CUcontext>(8);
    return CUDA_SUCCESS;
  };
  t->DevicePrimaryCtxRelease = [](CUdevice) {
    KILN_FAKE("cuDevicePrimaryCtxRelease", false);
    --state().retained;
    return CUDA_SUCCESS;
  };
  t->CtxGetCurrent = [](CUcontext* c) {
    KILN_FAKE("cuCtxGetCurrent", false);
    *c = context;
    return CUDA_SUCCESS;
  };
  t->CtxPushCurrent = [](CUcontext c) {
    KILN_FAKE("cuCtxPushCurrent", false);
    context = c;
    return CUDA_SUCCESS;
  };
  t->CtxPopCurrent = [](CUcontext* c) {
    return *c = std::exchange(context, nullptr), CUDA_SUCCESS;
  };
  t->ThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) {
    KILN_FAKE("cuThreadExchangeStreamCaptureMode");
    return CUDA_SUCCESS;
  };
  t->StreamCreate = [](CUstream* s, unsigned) {
    KILN_FAKE("cuStreamCreate");
    *s = reinterpret_cast<CUstream>(1);
    ++state().streams;
    return CUDA_SUCCESS;
  };
  t->StreamDestroy = [](CUstream) {
    KILN_FAKE("cuStreamDestroy");
    --state().streams;
    return CUDA_SUCCESS;
  };
  t->StreamQuery = query;
  t->MemAlloc = [](CUdeviceptr* at, size_t bytes) {
    KILN_FAKE("cuMemAlloc");
    ++state().allocations;
    state().blocks.push_back(std::make_unique<char[]>(bytes));
    *at = reinterpret_cast<CUdeviceptr>(state().blocks.back().get());
    return CUDA_SUCCESS;
  };
  t->MemFree = [](CUdeviceptr at) {
    KILN_FAKE("cuMemFree");
    --state().allocations;
    std::erase_if(state().blocks, [&](const auto& block) {
      return reinterpret_cast<CUdeviceptr>(block.get()) == at;
    });
    return CUDA_SUCCESS;
  };
  t->MemcpyHtoDAsync = [](CUdeviceptr to, const void* from, size_t bytes, CUstream) {
    KILN_FAKE("cuMemcpyHtoDAsync");
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
  };
  t->MemcpyDtoHAsync = [](void* to, CUdeviceptr from, size_t bytes, CUstream) {
    KILN_FAKE("cuMemcpyDtoHAsync");
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return CUDA_SUCCESS;
  };
  return t;
}

inline std::shared_ptr<kiln::runtime::ranks::NcclTable> table() {
  auto t = std::make_shared<kiln::runtime::ranks::NcclTable>();
  t->driver = driver();
  t->GetUniqueId = [](ncclUniqueId* id) {
    std::lock_guard lock(state().mutex);
    if (fails("ncclGetUniqueId", 0)) return ncclSystemError;
    const int number = ++state().ids;
    std::memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
  };
  t->CommInitRankConfig = [](ncclComm_t* out, int size, ncclUniqueId id, int rank,
                             ncclConfig_t* config) {
    if (config->blocking != 0) return ncclInvalidArgument;
    std::lock_guard lock(state().mutex);
    my_rank = rank;
    if (!context) ++state().misuse;
    if (fails("ncclCommInitRankConfig", rank)) return ncclSystemError;
    int number = 0;
    std::memcpy(&number, id.internal, sizeof number);
    auto& group = state().groups[std::to_string(number)];
    if (!group) {
      group = std::make_shared<Group>();
      group->size = size;  // once: it is read without the lock
    }
    *out =
        reinterpret_cast<ncclComm_t>(make(group, rank, patience("ncclCommInitRankConfig", rank)));
    return ncclInProgress;
  };
  t->CommGetAsyncError = [](ncclComm_t c, ncclResult_t* error) {
    std::lock_guard lock(state().mutex);
    if (!usable(of(c))) return ncclInvalidArgument;
    Comm& comm = *of(c);
    if (fails("ncclCommGetAsyncError", comm.rank)) return ncclSystemError;
    if (comm.child) finish_split(comm);
    *error = comm.group->lost                   ? ncclRemoteError
             : comm.child || comm.not_yet-- > 0 ? ncclInProgress
                                                : ncclSuccess;
    return ncclSuccess;
  };
  t->CommAbort = [](ncclComm_t c) {
    for (bool blocks = true; blocks;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::lock_guard lock(state().mutex);
      blocks = state().abort_blocks;
    }
    std::lock_guard lock(state().mutex);
    if (!usable(of(c))) return ncclInvalidArgument;
    of(c)->gone = true;
    ++state().aborts;
    return ncclSuccess;
  };
  t->CommFinalize = [](ncclComm_t c) {
    std::lock_guard lock(state().mutex);
    if (!usable(of(c))) return ncclInvalidArgument;
    if (fails("ncclCommFinalize", of(c)->rank)) return ncclSystemError;
    ++state().finalized;
    of(c)->not_yet = patience("ncclCommFinalize", of(c)->rank);
    return ncclInProgress;
  };
  t->CommDestroy = [](ncclComm_t c) {
    std::lock_guard lock(state().mutex);
    if (!usable(of(c))) return ncclInvalidArgument;
    of(c)->gone = true;
    ++state().destroyed;
    return ncclSuccess;
  };
  t->CommSplit = [](ncclComm_t c, int color, int, ncclComm_t* out, ncclConfig_t* config) {
    if (config->blocking != 0 || color < 0) return ncclInvalidArgument;
    std::lock_guard lock(state().mutex);
    if (!usable(of(c))) return ncclInvalidArgument;
    Comm& comm = *of(c);
    if (fails("ncclCommSplit", comm.rank)) return ncclSystemError;
    comm.child = reinterpret_cast<Comm**>(out);
    comm.color = color;
    comm.group->splits[++comm.splits][comm.rank] = color;
    comm.not_yet = patience("ncclCommSplit", comm.rank);
    return ncclInProgress;
  };
  t->CommCount = [](const ncclComm_t c, int* n) { return *n = of(c)->group->size, ncclSuccess; };
  t->CommUserRank = [](const ncclComm_t c, int* n) { return *n = of(c)->rank, ncclSuccess; };
  t->CommCuDevice = [](const ncclComm_t, int* n) { return *n = 0, ncclSuccess; };
  t->AllGather = [](const void* in, void* out, size_t count, ncclDataType_t, ncclComm_t c,
                    cudaStream_t) {
    return begin("ncclAllGather", c, {in, out, count, 0, 0, false});
  };
  t->AllReduce = [](const void* in, void* out, size_t count, ncclDataType_t, ncclRedOp_t op,
                    ncclComm_t c, cudaStream_t) {
    return begin("ncclAllReduce", c, {in, out, count * 4, 1, op, false});
  };
  t->Broadcast = [](const void* in, void* out, size_t count, ncclDataType_t, int root, ncclComm_t c,
                    cudaStream_t) {
    return begin("ncclBroadcast", c, {in, out, count, 2, root, false});
  };
  t->GetErrorString = [](ncclResult_t) { return "a fake error"; };
  return t;
}

#undef KILN_FAKE

}  // namespace fake
