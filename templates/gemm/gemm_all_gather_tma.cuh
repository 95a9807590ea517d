// Part of gemm_all_gather.cuh: the operation as one launch with TMA, wgmma and clusters, by the roles of
// gemm_tma_block.cuh. A rank's rows are a batch; its own come first, then those of the next rank, ...
//
// Three warps of the warpgroup that copies have nothing to do there: they send this rank's rows.
#pragma once

#include "gemm_gathering.cuh"
#include "gemm_tma_block.cuh"

namespace kiln::templates {

/// As the thread that copies sees the rows of other ranks.
template <AllGather c, class T>
class ArrivedRows {
 public:
  __device__ __forceinline__ ArrivedRows(const Gathering<c, T>& gathering, int rows)
      : gathering_(gathering), rows_(rows), high_(c.chunk_rows(rows)) {}

  /// Returns when rank `from`'s rows [begin, begin + count) can be copied, or when a rank has given up.
  __device__ __forceinline__ void wait_for(int from, int begin, int count) {
    const int last = (min(begin + count, rows_) - 1) / high_;
    bool waited = false;
    for (int chunk = begin / high_; chunk <= last; ++chunk) {
      const unsigned bit = 1u << chunk;
      if (from == known_from_ && (known_ & bit) != 0) continue;
      if (from != known_from_) known_from_ = from, known_ = 0;
      if (!given_up_) given_up_ = !gathering_.wait_for(from, chunk);
      known_ |= bit;
      waited = true;
    }
    if (waited) hopper::publish_global();  // TMA reads what other threads' stores have written
  }

 private:
  const Gathering<c, T>& gathering_;
  int rows_, high_, known_from_ = -1;
  unsigned known_ = 0;     // of that rank's chunks
  bool given_up_ = false;  // C has no meaning then, but the launch must end
};

template <AllGather c, class T>
__device__ __forceinline__ void all_gather_tma_body(const hopper::TensorMap& out,
                                                    const hopper::TensorMap& own,
                                                    const hopper::TensorMap& b,
                                                    const hopper::TensorMap& all, const T* a,
                                                    const Peers& peers, const AllGatherProblem& p) {
  constexpr GemmTma t = c.gemm().tma();
  static_assert(t.persistent && t.store_tma && !t.swap, "blocks stay, and store through TMA");
  constexpr auto kLies = hopper::Lies::along_k;
  using Output = GemmTmaOutputOf<t, T, true, StoreSum>;
  using Body = GemmTmaBody<t, T, true, StoreSum, kLies, kLies>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const GemmShape<true> shape = by_rank(p);
  const StoreSum epilogue;
  const int warpgroup = hopper::uniform(static_cast<int>(threadIdx.x) / 128);
  const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
  hopper::Barrier* const barriers =
      reinterpret_cast<hopper::Barrier*>(gemm_tma_shared + t.buffer_bytes() + t.staging_bytes());
  const int rank = t.cluster() == 1 ? 0 : static_cast<int>(hopper::cluster_rank());
  const auto body_of = [&](const hopper::TensorMap& rows) {
    return Body{.rows_map = rows,
                .columns_map = b,
                .output = Output::of(epilogue, shape, gemm_tma_shared + t.buffer_bytes(), out),
                .shape = shape,
                .m = p.m,
                .n = p.n,
                .stages = gemm_tma_shared,
                .full = barriers,
                .empty = barriers + t.stages,
                .rank = rank,
                .rank_m = rank % t.cluster_m,
                .rank_n = rank / t.cluster_m,
                .first_slice = 0,
                .slices = static_cast<int>(t.tiles(p.k, t.block_k))};
  };
  Body body = body_of(own);
  const Body others = body_of(all);
  const Gathering<c, T> gathering(a, peers, p);
  if (blockIdx.x == 0 && threadIdx.x == 0) gathering.say_ready();

  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(own);
    hopper::prefetch_map(b);
    body.output.prefetch();
  }
  const auto send_rows = [&] {
    constexpr int kWarps = 3;  // that send
    const long long thread =
        (static_cast<long long>(blockIdx.x) * kWarps + warp - 1) * 32 + threadIdx.x % 32;
    const unsigned senders = gridDim.x * kWarps;
    for (int distance = 1; distance < peers.size; ++distance) {
      const int to = gathering.receiver(distance);
      const bool ready = __all_sync(0xffffffffu, gathering.wait_until_ready(to));
      for (int chunk = 0; chunk < c.chunks && ready; ++chunk) {
        gathering.send(to, chunk, thread, senders * 32ll);
        __syncwarp();
        if (threadIdx.x % 32 == 0) gathering.sent(to, chunk, senders);
      }
    }
  };
#ifdef KILN_HOST_TARGET
  // There a thread that waits for another rank leaves its block no turn.
  if (warp >= 1 && warp < 4) send_rows();
#endif
  if constexpr (t.cluster() > 1)
    hopper::cluster_meet();
  else
    __syncthreads();

  const unsigned first = blockIdx.x / t.cluster(), step = gridDim.x / t.cluster();
  const unsigned tiles =
      t.tiles_m(p.m, p.n) * t.tiles_n(p.m, p.n) * static_cast<unsigned>(peers.size);
  const auto place = [&](unsigned tile) {
    auto at = body.place(tile);
    at.batch = (at.batch + peers.rank) % peers.size;
    return at;
  };

  if (warpgroup == 0) {
    if constexpr (t.consumers > 1) hopper::fewer_registers<Body::kFewer>();
    if (warp == 0) {
      if (hopper::elect()) {
        const int bytes = body.received_bytes();
        typename Body::Stage stage{0, 0};
        ArrivedRows<c, T> arrived(gathering, p.m);
#pragma unroll 1
        for (unsigned tile = first; tile < tiles; tile += step) {
          auto at = place(tile);
          const bool mine = at.batch == peers.rank;
          if (!mine) arrived.wait_for(at.batch, at.row, t.block_m);
          if (mine) at.batch = 0;  // whose map has one
          if (mine)
            body.copy_slices(at, stage, bytes);
          else
            others.copy_slices(at, stage, bytes);
        }
      }
      __syncwarp();
    } else {
#ifndef KILN_HOST_TARGET
      send_rows();
#endif
    }
  } else {
    if constexpr (t.consumers > 1) hopper::more_registers<Body::kMore>();
    const int consumer = warpgroup - 1;
    const int first_row = Body::kPingpong ? 0 : consumer * Body::kRowTiles * 64;
    typename Body::Stage stage{0, 0};
    int buffer = 0;
    typename Body::Sums sums;
    unsigned tile = first;
    if constexpr (Body::kPingpong) {
      tile += consumer * step;
      if (consumer == 1) stage.skip(body.slices);
    }
#pragma unroll 1
    while (tile < tiles) {
      const auto at = place(tile);
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
      body.store(sums, at, first_row, buffer);
    }
    if (hopper::elect()) hopper::wait_stores_read<0>();
    __syncwarp();
  }
  // No block ends while others of its cluster may copy to it or arrive at its barriers.
  if constexpr (t.cluster() > 1)
    hopper::cluster_meet();
  else
    __syncthreads();
  if (threadIdx.x == 0 && gathering.is_last_block()) gathering.end();
}

}  // namespace kiln::templates
