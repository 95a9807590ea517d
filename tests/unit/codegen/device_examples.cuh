// The examples of headers that kernels read, line for line (tests/header_examples.py compares them).
// test_device_examples.cpp compiles them; none of them runs.
#include "device/stage_ring.cuh"
#include "kiln/hopper.cuh"
#include "kiln/peers.cuh"
#include "kiln/workspace.cuh"

// clang-format off
using kiln::hopper::Argument, kiln::templates::StageRing;

__global__ void kernel(const __grid_constant__ kiln::hopper::TensorMap a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& full = *reinterpret_cast<kiln::hopper::Barrier*>(shared + 8192);
  if (threadIdx.x == 0) { full.init(1); kiln::hopper::publish_barriers(); }
  __syncthreads();
  if (threadIdx.x == 0) {
    full.arrive_expect(8192);
    kiln::hopper::load_tile(shared, a, full, 0, 64 * blockIdx.x);  // a box of 64x64x2 bytes
  }
  full.wait(0);  // all threads may read the tile
}

__global__ void exchange(const kiln::Peers* peers, unsigned epoch) {
  const int next = (peers->rank + 1) % peers->size;
  static_cast<float*>(kiln::peer_data(*peers, next))[threadIdx.x] = 1;
  __syncthreads();  // all threads have stored
  if (threadIdx.x == 0) kiln::signal(*peers, next, 0, epoch);
  const int before = (peers->rank + peers->size - 1) % peers->size;
  if (!kiln::wait(*peers, before, 0, epoch)) return;  // given up: leave
  // what that rank has stored is here
}

struct SplitK {
  bool tensor_map;
  constexpr bool tma() const { return tensor_map; }
};

template <SplitK c, class T>
__global__ void gemm(T* out, const T* a, const T* b, int n, kiln::Workspace workspace) {
  float* partial = static_cast<float*>(workspace.scratch);
  partial[threadIdx.x] = a[threadIdx.x] * b[threadIdx.x];
}

template <SplitK c, class T>
__global__ void copy(
    const __grid_constant__ Argument<c.tma(), const T*> a
) {}

template <class Copy>
__device__ void stages(kiln::hopper::Barrier* barriers, unsigned char* memory, unsigned bytes, bool leads, Copy copy) {
  StageRing<4> ring(barriers, memory, bytes);
  if (leads) ring.init();
  // the team meets; then the leader fills each stage once
  for (;;) {
    const unsigned char* data = ring.wait();
    // the team reads, computes, and meets
    if (leads) ring.fill(ring.stage(), bytes, copy);
    ring.next();
  }
}

struct NoCopy {
  __device__ void operator()(unsigned char*, kiln::hopper::Barrier&) const {}
};

__global__ void staged(kiln::hopper::Barrier* barriers, unsigned char* memory) {
  stages(barriers, memory, 16, threadIdx.x == 0, NoCopy{});
}
