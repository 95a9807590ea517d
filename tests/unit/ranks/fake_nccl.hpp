// A libnccl and a driver that run nowhere but here: collectives of threads, begun and asked after
// as the real ones are, over memory that is the host's.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/ranks/nccl/nccl_table.hpp"

namespace fake {

struct Part {
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t bytes = 0;
  int kind = 0, detail = 0;  ///< 0 gather, 1 reduce, 2 broadcast
  bool done = false;
  std::vector<char> sent = {};  ///< of `in`: its owner may use the memory again once it is done
};

struct Group {
  int size = 0;
  std::vector<std::map<int, Part>> rounds;  ///< by number and rank
  bool lost = false;
};

struct Comm {
  std::shared_ptr<Group> group;
  int rank = 0;
  std::size_t next = 0;
  int not_yet = 3;  ///< so often it is "in progress" first
  bool aborted = false;
};

struct State {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Group>> groups;
  int ids = 0, aborts = 0, allocations = 0, finalized = 0;
};
inline State& state() {
  static State s;
  return s;
}
/// The stream is the communicator that last worked on it.
inline thread_local Comm* on_stream = nullptr;

inline Comm* of(ncclComm_t comm) { return reinterpret_cast<Comm*>(comm); }

inline ncclResult_t begin(ncclComm_t c, Part part) {
  std::lock_guard lock(state().mutex);
  Comm& comm = *of(c);
  Group& group = *comm.group;
  if (group.rounds.size() <= comm.next) group.rounds.resize(comm.next + 1);
  const char* in = static_cast<const char*>(part.in);
  part.sent.assign(in, in + part.bytes);
  group.rounds[comm.next][comm.rank] = part;
  ++comm.next;
  comm.not_yet = 3;
  on_stream = &comm;
  return ncclInProgress;
}

inline void finish(Group& group, std::map<int, Part>& round, Part& mine) {
  if (mine.kind == 2) {
    std::memcpy(mine.out, round[mine.detail].sent.data(), mine.bytes);
  } else if (mine.kind == 0) {
    for (int r = 0; r < group.size; ++r)
      std::memcpy(static_cast<char*>(mine.out) + static_cast<std::size_t>(r) * mine.bytes,
                  round[r].sent.data(), mine.bytes);
  } else {
    for (std::size_t i = 0; i < mine.bytes / 4; ++i) {
      float total = reinterpret_cast<const float*>(round[0].sent.data())[i];
      for (int r = 1; r < group.size; ++r) {
        const float more = reinterpret_cast<const float*>(round[r].sent.data())[i];
        total = mine.detail == ncclMax ? std::max(total, more) : total + more;
      }
      static_cast<float*>(mine.out)[i] = total;
    }
  }
  mine.done = true;
}

inline CUresult query(CUstream) {
  std::lock_guard lock(state().mutex);
  Comm* comm = on_stream;
  if (!comm || comm->next == 0) return CUDA_SUCCESS;
  auto& round = comm->group->rounds[comm->next - 1];
  Part& mine = round[comm->rank];
  if (mine.done || comm->aborted) return CUDA_SUCCESS;
  if (static_cast<int>(round.size()) < comm->group->size) return CUDA_ERROR_NOT_READY;
  finish(*comm->group, round, mine);
  return CUDA_SUCCESS;
}

inline std::shared_ptr<kiln::runtime::ranks::NcclTable> table() {
  auto t = std::make_shared<kiln::runtime::ranks::NcclTable>();
  t->GetUniqueId = [](ncclUniqueId* id) {
    std::lock_guard lock(state().mutex);
    const int number = ++state().ids;
    std::memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
  };
  t->CommInitRankConfig = [](ncclComm_t* out, int size, ncclUniqueId id, int rank,
                             ncclConfig_t* config) {
    if (config->blocking != 0) return ncclInvalidArgument;
    std::lock_guard lock(state().mutex);
    int number = 0;
    std::memcpy(&number, id.internal, sizeof number);
    auto& group = state().groups[number];
    if (!group) group = std::make_shared<Group>();
    group->size = size;
    *out = reinterpret_cast<ncclComm_t>(new Comm{group, rank, 0, 3, false});
    return ncclInProgress;
  };
  t->CommGetAsyncError = [](ncclComm_t c, ncclResult_t* error) {
    std::lock_guard lock(state().mutex);
    *error = of(c)->group->lost     ? ncclRemoteError
             : of(c)->not_yet-- > 0 ? ncclInProgress
                                    : ncclSuccess;
    return ncclSuccess;
  };
  t->CommAbort = [](ncclComm_t c) {
    std::lock_guard lock(state().mutex);
    of(c)->aborted = true;
    ++state().aborts;
    return ncclSuccess;
  };
  t->CommFinalize = [](ncclComm_t) {
    std::lock_guard lock(state().mutex);
    ++state().finalized;
    return ncclInProgress;
  };
  t->CommDestroy = [](ncclComm_t c) {
    if (on_stream == of(c)) on_stream = nullptr;
    delete of(c);
    return ncclSuccess;
  };
  t->CommCount = [](const ncclComm_t c, int* n) { return *n = of(c)->group->size, ncclSuccess; };
  t->CommUserRank = [](const ncclComm_t c, int* n) { return *n = of(c)->rank, ncclSuccess; };
  t->AllGather = [](const void* in, void* out, size_t count, ncclDataType_t, ncclComm_t c,
                    cudaStream_t) { return begin(c, {in, out, count, 0, 0, false}); };
  t->AllReduce = [](const void* in, void* out, size_t count, ncclDataType_t, ncclRedOp_t op,
                    ncclComm_t c,
                    cudaStream_t) { return begin(c, {in, out, count * 4, 1, op, false}); };
  t->Broadcast = [](const void* in, void* out, size_t count, ncclDataType_t, int root, ncclComm_t c,
                    cudaStream_t) { return begin(c, {in, out, count, 2, root, false}); };
  t->GetErrorString = [](ncclResult_t) { return "a fake error"; };
  t->StreamCreate = [](CUstream* s, unsigned) {
    *s = reinterpret_cast<CUstream>(1);
    return CUDA_SUCCESS;
  };
  t->StreamDestroy = [](CUstream) { return CUDA_SUCCESS; };
  t->StreamQuery = query;
  t->MemAlloc = [](CUdeviceptr* at, size_t bytes) {
    std::lock_guard lock(state().mutex);
    ++state().allocations;
    *at = reinterpret_cast<CUdeviceptr>(std::malloc(bytes));
    return CUDA_SUCCESS;
  };
  t->MemFree = [](CUdeviceptr at) {
    std::lock_guard lock(state().mutex);
    --state().allocations;
    std::free(reinterpret_cast<void*>(at));
    return CUDA_SUCCESS;
  };
  t->MemcpyHtoDAsync = [](CUdeviceptr to, const void* from, size_t bytes, CUstream) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
  };
  t->MemcpyDtoHAsync = [](void* to, CUdeviceptr from, size_t bytes, CUstream) {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return CUDA_SUCCESS;
  };
  return t;
}

}  // namespace fake
