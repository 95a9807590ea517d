// Part of gemm_grouped.cuh: grouped GEMMs with TMA, wgmma and clusters, by the roles of
// gemm_tma_block.cuh.
//
// C has no map: a tile at a group's end must leave the next group's rows alone. So a warp's rows go
// through shared memory, and from there in pieces of 16 bytes as far as they are the group's.
#pragma once

#include "../tma/gemm_tma_block.cuh"
#include "gemm_groups.cuh"

namespace kiln::templates {

template <GemmTma c, class T, class Epilogue>
struct GroupedTmaOutput : GemmTmaResults<c, T, true, Epilogue> {
  using Results = GemmTmaResults<c, T, true, Epilogue>;
  using Results::shape;
  static constexpr int kTiles = Results::kTiles;

  GemmResult<T>* out;

  /// Stores the warp's 16 rows from `row` on, and those of its other tiles of 64. Rows of C end at
  /// `end`. No loop, because compilers unroll none that has others inside, and sums must stay in
  /// registers.
  template <int i = 0, int tiles>
  __device__ __forceinline__ void store_tiles(const float (&s)[tiles][kTiles][4], int row,
                                              int column, int group, int end, int& buffer) const {
    if constexpr (i < tiles) {
      if (c.swap || row < end) store_rows(s[i], row, column, group, end, buffer);
      store_tiles<i + 1>(s, row + 64, column, group, end, buffer);
    }
  }
  /// 16 of them.
  __device__ __forceinline__ void store_rows(const float (&s)[kTiles][4], int row, int column,
                                             int group, int end, int& buffer) const {
    constexpr int kRows = c.swap ? c.block_n : 16;  // of C in a box
    constexpr int kSpan = c.store_span(), kPieces = kSpan / 16, kAll = kRows * kPieces;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    GemmResult<T>* const its = out + group * shape.stride_c;
    Results::stage_rows(
        s, row, column, group, buffer, [] { __syncwarp(); },
        [&](const unsigned char* from, int first) {
          __syncwarp();
          // A lane's pieces have the same columns.
          const int r = lane / kPieces, q = lane % kPieces;
          const int i = (c.swap ? first : row) + r, j = (c.swap ? row : first) + q * 8;
          if (j >= shape.n) return;
          GemmResult<T>* const to = its + (i * shape.ldc + j);
          const auto staged = [&](int more) { return from + swizzled<kSpan>(r + more, q); };
          if (aligned(16, out)) {
#pragma unroll
            for (int more = 0; more * kPieces < kAll; more += 32 / kPieces)
              if ((kAll % 32 == 0 || r + more < kRows) && i + more < end)
                *reinterpret_cast<uint4*>(to + more * shape.ldc) =
                    *reinterpret_cast<const uint4*>(staged(more));
          } else {
#pragma unroll 1
            for (int more = 0; r + more < kRows && i + more < end; more += 32 / kPieces)
#pragma unroll 1
              for (int e = 0; e < 8; ++e)
                to[more * shape.ldc + e] = reinterpret_cast<const GemmResult<T>*>(staged(more))[e];
          }
        });
  }
};

/// What the threads of a block do with the tiles `mine`, as `tiles` finds them, in their roles: one
/// copies a tile's operands once `arrived(place, end)` has returned; warps that multiply call
/// `stored(tile)` when they have stored their part of a tile, and `done()` in the end, while they
/// still have their registers.
template <GemmTma c, class Body, class Tiles, class Arrived, class Stored, class Done>
__device__ __forceinline__ void grouped_roles(Body& body, Tiles& tiles, const BlockTiles& mine,
                                              Arrived arrived, Stored stored, Done done) {
  const int warpgroup = hopper::uniform(static_cast<int>(threadIdx.x) / 128);
  const auto reach = [&](unsigned tile) { return tile < mine.end && tiles.reach(tile); };
  if (warpgroup == 0) {
    if constexpr (c.consumers > 1) hopper::fewer_registers<Body::kFewer>();
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) {
      const bool copies = hopper::elect();
      const int bytes = body.received_bytes();
      typename Body::Stage stage{0, 0};
#pragma unroll 1
      for (unsigned tile = mine.first; reach(tile); tile += mine.step) {
        int end;
        const auto at = tiles.place(body, tile, end);
        if (copies) {
          arrived(at, end);
          body.copy_slices(at, stage, bytes);
        }
        __syncwarp();
      }
    } else if (c.scaled() && warp == 1) {
      typename Body::Stage stage{0, 0};
#pragma unroll 1
      for (unsigned tile = mine.first; reach(tile); tile += mine.step) {
        int end;
        const auto at = tiles.place(body, tile, end);
        if constexpr (c.scaled()) body.copy_scales(at, stage);
        __syncwarp();
      }
    }
    return;
  }
  if constexpr (c.consumers > 1) hopper::more_registers<Body::kMore>();
  body.open_turns();
  const int consumer = warpgroup - 1;
  const int first_row = Body::kPingpong ? 0 : consumer * Body::kRowTiles * 64;
  typename Body::Stage stage{0, 0};
  int buffer = 0;
  typename Body::Sums sums;
  const int warp_row = first_row + hopper::uniform(static_cast<int>(threadIdx.x) / 32) % 4 * 16;
  unsigned tile = mine.first, next;
  if constexpr (Body::kPingpong) {
    tile += consumer * mine.step;
    if (consumer == 1) stage.skip(body.slices);
  }
#pragma unroll 1
  for (; reach(tile); tile = next) {
    int end;
    const auto at = tiles.place(body, tile, end);
    const auto place_of_tile = [&] { return at; };
    if constexpr (Body::kPingpong) {
      // Turns: barrier 1 + w opens for consumer w when the other has started its products.
      const bool more = reach(tile + mine.step);
      if (tile != mine.first) hopper::named_sync(1 + consumer, 256);
      body.multiply(sums, stage, first_row, place_of_tile, [&] {
        if (more) hopper::named_arrive(2 - consumer, 256);
      });
      stage.skip(body.slices);
      next = tile + 2 * mine.step;
    } else {
      body.multiply(sums, stage, first_row, place_of_tile, [] {});
      next = tile + mine.step;
    }
    body.output.store_tiles(sums, at.row + warp_row, at.column, at.batch, end, buffer);
    stored(tile);
  }
  body.close_turns();
  done();
}

/// The body of a kernel with c.threads() threads in clusters of c.cluster() blocks and
/// c.shared_bytes() bytes of dynamic shared memory. `sizes`: ends or counts; `row_alignment`: of
/// groups with padding. Maps of A and B as for gemm_tma.cuh with batches; n is a multiple of 8.
template <GemmTma c, class T, GroupLayout layout, class Epilogue>
__device__ __forceinline__ void gemm_grouped_tma_body(GemmResult<T>* out,
                                                      const hopper::TensorMap& a,
                                                      const hopper::TensorMap& b, const int* sizes,
                                                      const GemmShape<true>& shape,
                                                      const Epilogue& epilogue, int row_alignment) {
  static_assert(c.persistent && c.store_tma && c.split_k == 1 && c.parts == 1 && !c.programmatic,
                "a grouped GEMM's blocks stay, share no k and stage what they store");
  constexpr auto kLies = hopper::Lies::along_k;
  using Output = GroupedTmaOutput<c, T, Epilogue>;
  using Body = GemmTmaBody<c, T, true, Epilogue, kLies, kLies, Output>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  hopper::Barrier* const barriers =
      reinterpret_cast<hopper::Barrier*>(gemm_tma_shared + c.barriers_at());
  const int rank = c.cluster() == 1 ? 0 : static_cast<int>(hopper::cluster_rank());
  Body body{.rows_map = c.swap ? b : a,
            .columns_map = c.swap ? a : b,
            .output = {{epilogue, shape, gemm_tma_shared + c.buffer_bytes()}, out},
            .shape = shape,
            .m = shape.m,
            .n = shape.n,
            .stages = gemm_tma_shared,
            .full = barriers,
            .empty = barriers + c.stages,
            .rank = rank,
            .rank_m = rank % c.cluster_m,
            .rank_n = rank / c.cluster_m,
            .first_slice = 0,
            .slices = static_cast<int>(c.tiles(shape.k, c.block_k))};
  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(a);
    hopper::prefetch_map(b);
  }
  GroupTiles<c, layout> tiles(sizes, shape, row_alignment);
  if constexpr (c.cluster() > 1)
    hopper::cluster_meet();
  else
    __syncthreads();
  constexpr unsigned kAll = 0xffffffffu;
  grouped_roles<c>(
      body, tiles, {blockIdx.x / c.cluster(), gridDim.x / c.cluster(), kAll},
      [](const auto&, int) {}, [](unsigned) {}, [] {});
  // No block ends while others of its cluster may copy to it or arrive at its barriers.
  if constexpr (c.cluster() > 1) hopper::cluster_meet();
}

/// The body as a kernel of its own. P: what the epilogue's arguments are.
template <GemmTma c, class T, GroupLayout layout, class Epilogue, class... P>
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_grouped_tma(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
                     const __grid_constant__ hopper::TensorMap b, const int* sizes, int m, int n,
                     int k, int groups, int row_alignment, P... parameters) {
  gemm_grouped_tma_body<c, T, layout>(out, a, b, sizes,
                                      grouped_shape(m, n, k, groups, layout == GroupLayout::masked),
                                      with_arguments<Epilogue>(parameters...), row_alignment);
}

}  // namespace kiln::templates
