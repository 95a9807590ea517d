// What the operations of several ranks share that are one launch with TMA, wgmma and clusters, by
// the roles of gemm_tma_block.cuh. A rank's rows are a batch.
#pragma once

#include "../tma/gemm_tma_block.cuh"
#include "gemm_peers.cuh"

namespace kiln::templates {

/// The sum as it is; no tile overlaps another one.
struct SumOnce {
  static constexpr bool kNothing = true;
};

/// Where a block of a cluster has its barriers and stages, with `more_staging` bytes of staging
/// beyond those that a GEMM has.
template <GemmTma t, int more_staging = 0>
struct PeerBlock {
  static_assert(t.persistent && t.store_tma && !t.swap && t.split_k == 1 && t.parts == 1,
                "blocks stay, and stage what they store");
  unsigned char* shared;
  hopper::Barrier* barriers;
  int rank;  // in the cluster

  __device__ __forceinline__ explicit PeerBlock(unsigned char* memory)
      : shared(memory),
        barriers(reinterpret_cast<hopper::Barrier*>(memory + t.buffer_bytes() + t.staging_bytes() +
                                                    more_staging)),
        rank(t.cluster() == 1 ? 0 : static_cast<int>(hopper::cluster_rank())) {}
  __device__ __forceinline__ unsigned char* staging() const { return shared + t.buffer_bytes(); }

  template <class Body, class Output>
  __device__ __forceinline__ Body body(const hopper::TensorMap& rows,
                                       const hopper::TensorMap& columns, const Output& output,
                                       const GemmShape<true>& shape) const {
    return {.rows_map = rows,
            .columns_map = columns,
            .output = output,
            .shape = shape,
            .m = shape.m,
            .n = shape.n,
            .stages = shared,
            .full = barriers,
            .empty = barriers + t.stages,
            .rank = rank,
            .rank_m = rank % t.cluster_m,
            .rank_n = rank / t.cluster_m,
            .first_slice = 0,
            .slices = static_cast<int>(t.tiles(shape.k, t.block_k))};
  }
  template <class Body>
  __device__ __forceinline__ static unsigned tiles(const Body& body) {
    return t.tiles_m(body.m, body.n) * t.tiles_n(body.m, body.n) *
           static_cast<unsigned>(body.shape.batch);
  }
  /// This block's of all tiles, where all blocks have as many.
  template <class Body>
  __device__ __forceinline__ static BlockTiles all_tiles(const Body& body) {
    return {blockIdx.x / t.cluster(), gridDim.x / t.cluster(), tiles(body)};
  }
  /// The same where the first c.senders blocks, which are whole clusters, send before they multiply
  /// the last tiles (PeerGemm::late), at most `most_late`.
  __device__ __forceinline__ static BlockTiles tiles_beside_senders(const PeerGemm& c,
                                                                    unsigned tiles,
                                                                    unsigned most_late) {
    const unsigned senders = static_cast<unsigned>(c.senders) / t.cluster();
    const unsigned others = gridDim.x / t.cluster() - senders, cluster = blockIdx.x / t.cluster();
    const unsigned late = c.late ? min(late_tiles(tiles, others, senders), most_late) : 0;
    return cluster < senders ? BlockTiles{tiles - late + cluster, senders, tiles}
                             : BlockTiles{cluster - senders, others, tiles - late};
  }
  __device__ __forceinline__ static void meet() {
    if constexpr (t.cluster() > 1)
      hopper::cluster_meet();
    else
      __syncthreads();
  }
};

/// The tiles `mine` of a block. Of the first four warps one copies a tile's operands with
/// `copy(place, stage)`, and the others, which have nothing to do there, call `beside(warp)`, 1 to
/// 3. Those behind them multiply, and call `store(sums, place, first_row, buffer)`.
template <GemmTma t, class Body, class PlaceOf, class Copy, class Beside, class Store>
__device__ __forceinline__ void peer_roles(Body& body, const BlockTiles& mine, PlaceOf place_of,
                                           Copy copy, Beside beside, Store store) {
  static_assert(!Body::kTurns, "its named barriers are the turns', and nobody opens them");
  const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
  const auto [first, step, tiles] = mine;
  typename Body::Stage stage{0, 0};
  if (warp < 4) {
    if constexpr (t.consumers > 1) hopper::fewer_registers<Body::kFewer>();
    if (warp == 0) {
      if (hopper::elect())
#pragma unroll 1
        for (unsigned tile = first; tile < tiles; tile += step) copy(place_of(tile), stage);
      __syncwarp();
    } else {
      beside(warp);
    }
    return;
  }
  if constexpr (t.consumers > 1) hopper::more_registers<Body::kMore>();
  const int consumer = warp / 4 - 1;
  const int first_row = Body::kPingpong ? 0 : consumer * Body::kRowTiles * 64;
  int buffer = 0;
  typename Body::Sums sums;
  unsigned tile = first;
  if constexpr (Body::kPingpong) {
    tile += consumer * step;
    if (consumer == 1) stage.skip(body.slices);
  }
#pragma unroll 1
  while (tile < tiles) {
    const auto at = place_of(tile);
    const auto place_of_tile = [&] { return at; };
    if constexpr (Body::kPingpong) {
      // Turns: barrier 1 + w opens for consumer w when the other has started its products.
      const bool more = tile + step < tiles;
      if (tile != first) hopper::named_sync(1 + consumer, 256);
      body.multiply(sums, stage, first_row, place_of_tile, [&] {
        if (more) hopper::named_arrive(2 - consumer, 256);
      });
      stage.skip(body.slices);
      tile += 2 * step;
    } else {
      body.multiply(sums, stage, first_row, place_of_tile, [] {});
      tile += step;
    }
    store(sums, at, first_row, buffer);
  }
}

}  // namespace kiln::templates
