// Parts of gemm_tma.cuh: what a config must satisfy, the ring of stages, and how results are
// packed.
#pragma once

#include "../../device/elements.cuh"
#include "gemm_tma.hpp"
#include "kiln/hopper.cuh"

namespace kiln::templates {

/// Always true: a config that does not fit fails an assertion that names the field.
template <GemmTma c, class T, hopper::Lies rows_lie, hopper::Lies columns_lie>
constexpr bool gemm_tma_fits() {
  constexpr bool kPingpong = c.schedule == GemmSchedule::pingpong;
  using Result = GemmResult<T>;
  static_assert(kIsHalf<Result> || kIsBfloat16<Result>,
                "T: __half, __nv_bfloat16 or Fp8 with a result of these");
  static_assert(c.operands == GemmTypes<T>::kOperands, "operands: those of T");
  static_assert(!GemmTypes<T>::kFp8 ||
                    (rows_lie == hopper::Lies::along_k && columns_lie == hopper::Lies::along_k),
                "8-bit operands lie along k");
  static_assert(c.consumers >= 1 && c.consumers <= 3, "consumers: 1 to 3 warpgroups");
  static_assert(!kPingpong || (c.consumers == 2 && c.persistent),
                "pingpong: 2 consumers, and blocks that stay");
  static_assert(
      c.block_m >= 64 && c.block_m <= 256 && c.block_m % (kPingpong ? 64 : 64 * c.consumers) == 0,
      "block_m: 64 rows, or a multiple, for each consumer of a tile; at most 256");
  static_assert(c.block_n >= 8 && c.block_n <= 256 && c.block_n % 8 == 0,
                "block_n: 8 to 256 columns, a multiple of 8");
  static_assert(c.parted_columns() % 8 == 0,
                "block_n: a multiple of 16 columns where half of them have sums of their own");
  static_assert(c.held_sums() <= c.most_sums(), "a thread's sums: at most 208; 3 consumers: 96");
  static_assert(c.block_k == c.box_k() || (c.block_k == 2 * c.box_k() && c.parted_tiles() == 0),
                "block_k: 128 bytes or, unless sums are exact, 256");
  static_assert(c.stages >= 2 && c.stages <= c.threads(), "stages: at least 2 buffers");
  static_assert(c.shared_bytes() <= 227 * 1024, "shared memory: at most 227 KiB");
  static_assert(!c.few_scales || (c.scaled() && c.stages >= 4 && c.stages % 2 == 0),
                "few_scales: half of the stages, of which there are at least 4");
  static_assert(c.group >= 1, "group: at least 1 tile");
  static_assert(c.copied_m() % 8 == 0 && c.copied_n() % 8 == 0,
                "cluster: each block copies a multiple of 8 rows and of 8 columns");
  static_assert(c.cluster() <= 8, "cluster: at most 8 blocks");
  static_assert(c.split_k == 1 || (!c.persistent && !c.store_tma && c.cluster_m * c.cluster_n == 1),
                "split_k: its blocks are the cluster, compute one tile and store from registers");
  static_assert(c.parts == 1 || (!c.persistent && !c.store_tma && c.cluster() == 1),
                "parts: blocks without clusters, which compute one tile and store from registers");
  static_assert(!c.store_tma || c.swap || c.block_n % 16 == 0,
                "store_tma: block_n is a multiple of 16 columns");
  static_assert(c.copies(rows_lie == hopper::Lies::across, columns_lie == hopper::Lies::across),
                "rows or columns that lie across k are copied 64 at a time");
  return true;
}
template <GemmTma c, class T, hopper::Lies rows_lie, hopper::Lies columns_lie>
inline constexpr bool kGemmTmaFits = gemm_tma_fits<c, T, rows_lie, columns_lie>();

/// Tiles of a cluster that stays: first, first + step, ..., below `end`.
struct BlockTiles {
  unsigned first, step, end;
};

/// A place in the ring of `stages` buffers, and the parity of its turn.
template <int stages>
struct GemmTmaStage {
  int index;
  unsigned parity;
  __device__ __forceinline__ void next() {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int slices) {
    const int to = index + slices;
    parity ^= to / stages & 1;
    index = to % stages;
  }
};

/// Copies a box to `to`, with `count` blocks to the same place of each in `blocks`.
template <int count, class... At>
__device__ __forceinline__ void load_box(unsigned blocks, void* to, const hopper::TensorMap& map,
                                         hopper::Barrier& barrier, At... at) {
  if constexpr (count == 1)
    hopper::load_tile(to, map, barrier, at...);
  else
    hopper::load_tile_to(blocks, to, map, barrier, at...);
}

/// Called by the block's `threads` that multiply, of which 128 is the first: whether as many blocks
/// as there are parts have called it, which is true in one of them; that one resets the semaphore.
/// `before`: a word in shared memory.
__device__ __forceinline__ bool comes_last(unsigned* semaphore, unsigned parts, int threads,
                                           unsigned* before) {
  __threadfence();
  hopper::named_sync(1, threads);
  if (threadIdx.x == 128) {
    __threadfence();  // behind what the others have written, and before what they read
    *before = atomicAdd(semaphore, 1u);
    if (*before == parts - 1) *semaphore = 0;
    __threadfence();
  }
  hopper::named_sync(1, threads);
  __threadfence();
  return *before == parts - 1;
}

__device__ __forceinline__ unsigned pack_pair(float first, float second, __half) {
  const __half2 pair = __floats2half2_rn(first, second);
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ unsigned pack_pair(float first, float second, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ __forceinline__ float2 unpack_pair(unsigned pair, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
__device__ __forceinline__ float2 unpack_pair(unsigned pair, __nv_bfloat16) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

/// Where TMA puts the 16 bytes `unit` of a row of kSpan bytes (its swizzle) in a box.
template <int kSpan>
__device__ __forceinline__ int swizzled(int row, int unit) {
  const int place = row * kSpan + unit * 16;
  return place ^ ((place >> 7 & (kSpan / 16 - 1)) << 4);
}

}  // namespace kiln::templates
