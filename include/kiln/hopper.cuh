// Hopper's instructions (sm_90a) for kernels: TMA copies by tensor maps, mbarriers, clusters,
// wgmma, register hand-over, programmatic dependent launch. Everything that is PTX is in a small
// function here, so that a kernel's body is plain C++.
//
//   __global__ void kernel(const __grid_constant__ kiln::hopper::TensorMap a) {
//     extern __shared__ __align__(1024) unsigned char shared[];
//     auto& full = *reinterpret_cast<kiln::hopper::Barrier*>(shared + 8192);
//     if (threadIdx.x == 0) { full.init(1); kiln::hopper::publish_barriers(); }
//     __syncthreads();
//     if (threadIdx.x == 0) {
//       full.arrive_expect(8192);
//       kiln::hopper::load_tile(shared, a, full, 0, 64 * blockIdx.x);  // a box of 64x64x2 bytes
//     }
//     full.wait(0);  // all threads may read the tile
//   }
//
// "One thread" means that a function acts once for each thread that calls it.
#pragma once

#ifdef KILN_HOST_TARGET
#include "kiln/hopper/host.cuh"
#else
#include "kiln/hopper/barrier.cuh"
#include "kiln/hopper/copy.cuh"
#include "kiln/hopper/matrices.cuh"
#include "kiln/hopper/multiply.cuh"
#endif
