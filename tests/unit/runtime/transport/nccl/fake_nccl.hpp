// A libnccl and a driver that run nowhere but here: collectives of threads, begun and asked after
// as the real ones are, over memory that is the host's. Each call can be made to fail, to stay in
// progress, or not to come back; what is used after its end is counted.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/transport/nccl/nccl_table.hpp"

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
  std::map<int, std::map<int, int>> splits;  ///< of the n-th split: group by rank
};

/// Never freed: what is used after its end is to be found out.
struct Comm {
  std::shared_ptr<Group> group;
  int rank = 0;
  std::size_t next = 0;
  int not_yet = 3;  ///< so often it is "in progress" first
  bool gone = false;
  int splits = 0;
  Comm** child = nullptr;  ///< where one is written once all have split
  int color = 0;
};

struct State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Group>> groups;
  std::vector<std::unique_ptr<Comm>> comms;
  std::vector<std::unique_ptr<char[]>> blocks;  ///< of device memory
  int ids = 0, aborts = 0, destroyed = 0, allocations = 0, finalized = 0, streams = 0, retained = 0;
  int misuse = 0;       ///< uses of what was aborted or destroyed, work without a context
  std::string fail;     ///< the call that fails
  std::string forever;  ///< the call that stays in progress
  std::string last;     ///< the call that was last told to fail or stay
  int of_rank = -1;     ///< whose calls; -1: everyone's
  bool shut_down = false;
  bool abort_blocks = false;
};
inline State& state() {
  static State s;
  return s;
}
/// Resets all settings and counts; nothing that was made before may be used any more.
inline void renew() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.groups.clear();
  s.aborts = s.destroyed = s.allocations = s.finalized = s.streams = s.retained = s.misuse = 0;
  s.fail.clear(), s.forever.clear(), s.last.clear();
  s.of_rank = -1;
  s.shut_down = s.abort_blocks = false;
}

/// The stream is the communicator that last worked on it.
inline thread_local Comm* on_stream = nullptr;
inline thread_local CUcontext context = nullptr;
inline thread_local int my_rank = -1;  ///< known once a communicator is made

inline Comm* of(ncclComm_t comm) { return reinterpret_cast<Comm*>(comm); }

// With the mutex held.
inline bool told(const std::string& what, const std::string& call, int rank) {
  State& s = state();
  if (what.empty() || what != call || (s.of_rank >= 0 && s.of_rank != rank)) return false;
  s.last = call;
  return true;
}
inline bool fails(const std::string& call, int rank) { return told(state().fail, call, rank); }
inline int patience(const std::string& call, int rank) {
  return told(state().forever, call, rank) ? 1 << 30 : 3;
}
inline bool usable(const Comm* comm) {
  if (!comm || comm->gone || !context) ++state().misuse;
  return comm && !comm->gone;
}
inline Comm* make(std::shared_ptr<Group> group, int rank, int not_yet) {
  auto comm = std::make_unique<Comm>();
  comm->group = std::move(group), comm->rank = rank, comm->not_yet = not_yet;
  state().comms.push_back(std::move(comm));
  return state().comms.back().get();
}

inline ncclResult_t begin(const char* name, ncclComm_t c, Part part) {
  std::lock_guard lock(state().mutex);
  if (!usable(of(c))) return ncclInvalidArgument;
  Comm& comm = *of(c);
  if (fails(name, comm.rank)) return ncclSystemError;
  Group& group = *comm.group;
  if (group.rounds.size() <= comm.next) group.rounds.resize(comm.next + 1);
  const char* in = static_cast<const char*>(part.in);
  part.sent.assign(in, in + part.bytes);
  group.rounds[comm.next][comm.rank] = part;
  ++comm.next;
  comm.not_yet = patience(name, comm.rank);
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

/// Once all ranks of a communicator have split it, each is given its part.
inline void finish_split(Comm& comm) {
  const std::map<int, int>& colors = comm.group->splits[comm.splits];
  if (static_cast<int>(colors.size()) < comm.group->size) return;
  std::string name = "split " + std::to_string(reinterpret_cast<std::uintptr_t>(comm.group.get())) +
                     " " + std::to_string(comm.splits) + " " + std::to_string(comm.color);
  int rank = 0, size = 0;
  for (const auto& [r, color] : colors) {
    if (color != comm.color) continue;
    if (r == comm.rank) rank = size;
    ++size;
  }
  auto& group = state().groups[name];
  if (!group) {  // later ranks find it in use
    group = std::make_shared<Group>();
    group->size = size;
  }
  *comm.child = make(group, rank, 3);
  comm.child = nullptr;
}

inline CUresult query(CUstream) {
  std::lock_guard lock(state().mutex);
  if (state().shut_down) return CUDA_ERROR_DEINITIALIZED;
  if (!context) ++state().misuse;
  if (fails("cuStreamQuery", my_rank)) return CUDA_ERROR_UNKNOWN;
  Comm* comm = on_stream;
  if (!comm || comm->next == 0) return CUDA_SUCCESS;
  auto& round = comm->group->rounds[comm->next - 1];
  Part& mine = round[comm->rank];
  if (mine.done || comm->gone) return CUDA_SUCCESS;
  if (static_cast<int>(round.size()) < comm->group->size) return CUDA_ERROR_NOT_READY;
  finish(*comm->group, round, mine);
  return CUDA_SUCCESS;
}

inline CUresult refusal(const char* call, bool needs_context = true) {
  if (state().shut_down) return CUDA_ERROR_DEINITIALIZED;
  if (needs_context && !context) ++state().misuse;
  return fails(call, my_rank) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

#define KILN_FAKE(...)                 \
  std::lock_guard lock(state().mutex); \
  if (const CUresult refused = refusal(__VA_ARGS__); refused != CUDA_SUCCESS) return refused

}  // namespace fake
