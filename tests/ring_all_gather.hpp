// A kernel that communicates while it runs: an all-gather by a ring, in chunks. Its source, for
// both kernel compilers.
#pragma once

namespace kiln::test {

inline constexpr const char* kRingAllGather = R"(
#include <kiln/peers.cuh>

// Value i of a rank in an epoch.
__device__ inline int value_of(int rank, int i, unsigned epoch) { return int(epoch * 31u) + rank * 1000 + i; }

// One block. A chunk goes to the next rank as soon as it has come. Two buffers in turn, so that a
// rank that is an epoch ahead writes where nobody reads any more. `odd` rank does its part of this
// epoch only until its first signal, and then says so in `out`.
template <int threads>
__global__ void ring(const kiln::Peers* peers, int* out, int chunk, int chunks, unsigned epoch, int odd) {
  const kiln::Peers& p = *peers;
  const int next = (p.rank + 1) % p.size, before = (p.rank + p.size - 1) % p.size;
  const int shard = chunk * chunks, buffer = int(epoch % 2) * shard * p.size;
  int* const own = static_cast<int*>(kiln::peer_data(p, p.rank)) + buffer;
  int* const theirs = static_cast<int*>(kiln::peer_data(p, next)) + buffer;
  for (int i = threadIdx.x; i < shard; i += threads) own[p.rank * shard + i] = value_of(p.rank, i, epoch);
  __syncthreads();
  for (int step = 0; step + 1 < p.size; ++step) {
    for (int c = 0; c < chunks; ++c) {
      const unsigned flag = step * chunks + c + 1;
      int gone = 0;
      if (step > 0 && threadIdx.x == 0) gone = !kiln::wait(p, before, flag - chunks, epoch);
      if (__syncthreads_or(gone)) return;
      const int at = (p.rank + p.size - step) % p.size * shard + c * chunk;
      for (int i = threadIdx.x; i < chunk; i += threads) theirs[at + i] = own[at + i];
      __syncthreads();
      if (threadIdx.x == 0) kiln::signal(p, next, flag, epoch);
      if (p.rank == odd) {
        if (threadIdx.x == 0) atomicExch_system(out, -1);
        // Nobody ever sends this: it waits until it is given up, or its process ends.
        if (threadIdx.x == 0) gone = !kiln::wait(p, before, 0, epoch + 1000);
        if (__syncthreads_or(gone)) return;
      }
    }
  }
  for (int c = 0; c < chunks && p.size > 1; ++c) {
    int gone = 0;
    if (threadIdx.x == 0) gone = !kiln::wait(p, before, (p.size - 2) * chunks + c + 1, epoch);
    if (__syncthreads_or(gone)) return;
  }
  for (int i = threadIdx.x; i < p.size * shard; i += threads) out[i] = own[i];
  __syncthreads();
  // Nobody begins the epoch after next before all have read.
  if (threadIdx.x == 0) (void)kiln::peer_barrier(p, 0, epoch);
}
)";

}  // namespace kiln::test
