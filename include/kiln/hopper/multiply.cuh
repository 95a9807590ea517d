// Part of kiln/hopper.cuh: wgmma, products of 64 x K and K x N by a warpgroup (four warps, the
// first a multiple of four), with operands in shared memory and sums in registers.
#pragma once

#include "kiln/hopper/barrier.cuh"
#include "kiln/hopper/operand.cuh"
#include "kiln/hopper/wgmma.cuh"

namespace kiln::hopper {

/// Before the first product, and after other code has touched the sums.
__device__ __forceinline__ void multiply_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Ends a group of products.
__device__ __forceinline__ void multiply_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kPending` groups are at work; their operands and sums are not to be
/// touched.
template <int kPending>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Behind multiply_wait(): the compiler reads a sum only from here on.
__device__ __forceinline__ void multiplied(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }

/// Starts d += a * b, or d = a * b if not `adding`, for a 64xK `a` and a KxN `b` of T (__half or
/// __nv_bfloat16: K = 16; __nv_fp8_e4m3, operands along k: K = 32), N = 8 kTiles, up to 256. Sums
/// of 8-bit products have about 14 bits (DeepSeek-V3 technical report, 3.3.2): add those of some
/// 128 k in float. Warp w of the four holds rows 16 w ... 16 w + 15; with g = lane / 4, t = lane %
/// 4, d[j][0..1] are row g and d[j][2..3] row g + 8 of those, columns 8 j + 2 t and 8 j + 2 t + 1.
/// The warpgroup calls it, between multiply_fence() and multiply_commit(); a phase of a barrier
/// that it has waited for, or publish_shared() and a barrier, comes before.
template <class T, Lies rows_lie = Lies::along_k, Lies columns_lie = Lies::along_k, int kTiles>
__device__ __forceinline__ void multiply(float (&d)[kTiles][4], Operand rows, Operand columns,
                                         bool adding) {
  static_assert(kTiles >= 1 && kTiles <= 32, "N: 8 to 256 columns");
  detail::wgmma<T, rows_lie, columns_lie>(d, rows, columns, adding);
}

}  // namespace kiln::hopper
