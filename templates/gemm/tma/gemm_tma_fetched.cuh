// Part of gemm_tma.cuh: what an epilogue adds to each element (epilogue::EveryElement) comes by TMA
// to stages behind the slices of the tile that it belongs to, while those are multiplied. In a
// stage lie c.boxes_per_stage() boxes one after the other.
#pragma once

#include "../../device/mma.cuh"
#include "../shared/gemm_epilogue.cuh"
#include "gemm_tma_parts.cuh"
#include "kiln/hopper.cuh"

namespace kiln::templates {

template <class T>
struct EntryArgumentOf<true, Fetched<T>> {
  using Type = hopper::TensorMap;
};
__device__ __forceinline__ FetchedBy<hopper::TensorMap> given(const hopper::TensorMap& map) {
  return {map};
}

/// Stages of a tile that have what its epilogue's array has there.
template <GemmTma c, class Epilogue>
constexpr int gemm_fetched_stages() {
  if constexpr (kFetches<Epilogue>) {
    static_assert(c.fetches(), "an array is fetched by configs that store by TMA");
    return c.fetched_stages();
  } else {
    return 0;
  }
}

/// One thread copies the boxes of C's rows and columns from (row, column) of the product on, as
/// soon as the stages are empty.
template <GemmTma c, bool batched>
__device__ __forceinline__ void fetch_tile(const hopper::TensorMap& map, unsigned char* stages,
                                           hopper::Barrier* full, hopper::Barrier* empty,
                                           GemmTmaStage<c.stages>& stage, int m, int row,
                                           int column, int batch) {
  const int box_bytes = min(c.fetched_rows(), m) * c.fetched_columns() * c.kResult;
#pragma unroll
  for (int box = 0; box < c.fetched_boxes(); box += c.boxes_per_stage()) {
    constexpr int kBoxes = c.boxes_per_stage();
    const int end = box + kBoxes < c.fetched_boxes() ? box + kBoxes : c.fetched_boxes();
    hopper::Barrier& barrier = full[stage.index];
    empty[stage.index].wait(stage.parity ^ 1);
    barrier.arrive_expect((end - box) * box_bytes);
    unsigned char* const to = stages + stage.index * c.stage_bytes();
    for (int i = box; i < end; ++i) {
      const int x = (c.swap ? row : column) + i * c.fetched_columns(), y = c.swap ? column : row;
      if constexpr (batched)
        hopper::load_tile(to + (i - box) * c.fetched_bytes(), map, barrier, x, y, batch);
      else
        hopper::load_tile(to + (i - box) * c.fetched_bytes(), map, barrier, x, y);
    }
    stage.next();
  }
}

/// A warp sees to it that what the epilogue reads for the tile at (row, column) of the product is
/// in the L2 cache.
template <GemmTma c, bool batched, class Epilogue>
__device__ __forceinline__ void prefetch_for_epilogue(const Epilogue& epilogue,
                                                      const GemmShape<batched>& shape, int row,
                                                      int column, int batch) {
  prefetch_arguments(epilogue,
                     c.swap ? GemmPlaces{column, c.block_n, row, c.block_m}
                            : GemmPlaces{row, c.block_m, column, c.block_n},
                     shape.m, shape.n);
  if constexpr (kFetches<Epilogue>)
    if (hopper::elect())
      for (int box = 0; box < c.fetched_boxes(); ++box) {
        const int x = (c.swap ? row : column) + box * c.fetched_columns();
        const int y = c.swap ? column : row;
        if constexpr (batched)
          hopper::prefetch_tile(epilogue.map, x, y, batch);
        else
          hopper::prefetch_tile(epilogue.map, x, y);
      }
}

/// A warp's part of a tile that has been fetched, from `first` on.
template <GemmTma c>
struct GemmTmaFetched {
  const unsigned char* stages;
  GemmTmaStage<c.stages> first;
  int row;  // of the tile, the warp's first

  /// What lies at the 16 rows and at the columns of the tiles j and j + 1 of 8: pairs of columns,
  /// as a warp has sums.
  __device__ __forceinline__ void load(unsigned (&four)[4], int j) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, q = lane / 8, r = lane % 8;
    constexpr int kSpan = c.fetched_columns() * c.kResult;
    if constexpr (c.swap) {
      const int tile = min(j + q / 2, c.block_n / 8 - 1);  // there may be no next one
      load_matrices<true>(four, at(row / 64, swizzled<kSpan>(tile * 8 + r, row % 64 / 8 + q % 2)));
    } else {
      constexpr int kTiles = c.fetched_columns() / 8;  // of a box
      load_matrices(four, at(j / kTiles, swizzled<kSpan>(row + q % 2 * 8 + r, j % kTiles + q / 2)));
    }
  }

 private:
  __device__ __forceinline__ const unsigned short* at(int box, int offset) const {
    GemmTmaStage<c.stages> stage = first;
    stage.skip(box / c.boxes_per_stage());
    return reinterpret_cast<const unsigned short*>(stages + stage.index * c.stage_bytes() +
                                                   box % c.boxes_per_stage() * c.fetched_bytes() +
                                                   offset);
  }
};

}  // namespace kiln::templates
