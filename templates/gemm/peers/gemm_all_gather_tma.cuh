// Part of gemm_all_gather.cuh: the operation as one launch. A rank's own rows come first, then
// those of the next rank, ... A warp that has nothing else to do, or the first c.senders blocks,
// send this rank's rows.
#pragma once

#include "gemm_all_gather.hpp"
#include "gemm_peers_tma.cuh"
#include "gemm_send_ring.cuh"

namespace kiln::templates {

/// One thread of each of the first `senders` blocks sends the block's part of this rank's rows.
template <PeerGemm c, class T, class Sender>
__device__ __forceinline__ void send_rows(Sender& sender, const PeerOperation<c.chunks>& operation,
                                          const Peers& peers, const T* a, const PeerGemmProblem& p,
                                          unsigned senders) {
  const long long high = c.chunk_rows(p.m), all = static_cast<long long>(p.m) * p.k;
  for (int distance = 1; distance < peers.size; ++distance) {
    const int to = rank_before(peers, distance);
    if (!operation.wait_until_ready(to)) return;
    T* const shard = static_cast<T*>(peer_data(peers, to)) + peers.rank * all;
    for (int chunk = 0; chunk < c.chunks; ++chunk) {
      const long long begin = chunk * high, rows = min(high, p.m - begin);
      sender.send(shard + begin * p.k, a + begin * p.k, rows * p.k * static_cast<int>(sizeof(T)),
                  senders, blockIdx.x);
      operation.sent(to, chunk, senders);
    }
  }
}

template <PeerGemm c, class T>
__device__ __forceinline__ void all_gather_tma_body(const hopper::TensorMap& out,
                                                    const hopper::TensorMap& own,
                                                    const hopper::TensorMap& b,
                                                    const hopper::TensorMap& all, const T* a,
                                                    const Peers& peers, const PeerGemmProblem& p) {
  constexpr GemmTma t = gathering_gemm(c);
  constexpr auto kLies = hopper::Lies::along_k;
  using Output = GemmTmaOutputOf<t, T, true, StoreSum>;
  using Body = GemmTmaBody<t, T, true, StoreSum, kLies, kLies>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const PeerOperation<c.chunks> operation(peers);
  if (blockIdx.x == 0 && threadIdx.x == 0) operation.say_ready();
  const GemmShape<true> shape = by_rank(p);
  const StoreSum epilogue;
  const PeerBlock<t> block(gemm_tma_shared);
  const auto output = Output::of(epilogue, shape, block.staging(), out);
  Body body = block.template body<Body>(own, b, output, shape);
  const Body others = block.template body<Body>(all, b, output, shape);

  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(own);
    hopper::prefetch_map(b);
    output.prefetch();
  }
  constexpr bool kFirst = c.senders > 0;  // some blocks send before they may multiply
  static_assert(
      !kFirst || (c.senders % t.cluster() == 0 && t.buffer_bytes() >= send_ring(c).data_bytes()),
      "clusters send, with the memory of their stages");
#ifdef KILN_HOST_TARGET
  constexpr bool kBefore = true;  // there a thread that waits for a rank leaves its block no turn
#else
  constexpr bool kBefore = kFirst;
#endif
  const bool sends = !kFirst || blockIdx.x < c.senders;
  unsigned char* const behind = gemm_tma_shared + t.shared_bytes();
  BlockSender<send_ring(c)> sender(kFirst ? gemm_tma_shared : behind,
                                   kFirst ? behind : behind + send_ring(c).data_bytes());
  const auto send = [&] {
    send_rows<c>(sender, operation, peers, a, p, kFirst ? c.senders : gridDim.x);
  };
  if (sends && threadIdx.x / 32 == 1 && hopper::elect()) {
    sender.init_barriers();
    if constexpr (kBefore) send();
  }
  __syncwarp();
  block.meet();

  BlockTiles mine = block.all_tiles(body);
  if constexpr (kFirst) mine = block.tiles_beside_senders(c, mine.end, mine.end);
  const int bytes = body.received_bytes();
  KnownChunks<c.chunks> known;
  peer_roles<t>(
      body, mine,
      [&](unsigned tile) {
        auto at = body.place(tile);
        at.batch = (at.batch + peers.rank) % peers.size;
        return at;
      },
      [&](auto at, auto& stage) {
        if (at.batch == peers.rank) {
          at.batch = 0;  // whose map has one
          return body.copy_slices(at, stage, bytes);
        }
        if (known.wait_for(operation, at.batch, at.row, t.block_m, p.m, c.chunk_rows(p.m)))
          hopper::publish_global();  // TMA reads what others have written
        others.copy_slices(at, stage, bytes);
      },
      [&](int warp) {
        if (!kBefore && warp == 1 && hopper::elect()) send();
        __syncwarp();
      },
      [&](const auto& sums, const auto& at, int first_row, int& buffer) {
        body.store_tile(sums, at, first_row, buffer);
      });
  if (threadIdx.x >= 128) {
    if (hopper::elect()) hopper::wait_stores_read<0>();
    __syncwarp();
  }
  // No block ends while others of its cluster may copy to it or arrive at its barriers.
  block.meet();
  if (threadIdx.x == 0 && operation.is_last_block()) operation.end();
}

}  // namespace kiln::templates
