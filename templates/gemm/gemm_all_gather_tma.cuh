// Part of gemm_all_gather.cuh: the operation as one launch. A rank's own rows come first, then those of the
// next rank, ... Warps that have nothing to do send this rank's rows.
#pragma once

#include "gemm_gathering.cuh"
#include "gemm_peers_tma.cuh"

namespace kiln::templates {

template <PeerGemm c, class T>
__device__ __forceinline__ void all_gather_tma_body(const hopper::TensorMap& out,
                                                    const hopper::TensorMap& own,
                                                    const hopper::TensorMap& b,
                                                    const hopper::TensorMap& all, const T* a,
                                                    const Peers& peers, const PeerGemmProblem& p) {
  constexpr GemmTma t = c.gemm().tma();
  constexpr auto kLies = hopper::Lies::along_k;
  using Output = GemmTmaOutputOf<t, T, true, StoreSum>;
  using Body = GemmTmaBody<t, T, true, StoreSum, kLies, kLies>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const GemmShape<true> shape = by_rank(p);
  const StoreSum epilogue;
  const PeerBlock<t> block(gemm_tma_shared);
  const auto output = Output::of(epilogue, shape, block.staging(), out);
  Body body = block.template body<Body>(own, b, output, shape);
  const Body others = block.template body<Body>(all, b, output, shape);
  const PeerOperation<c.chunks> operation(peers);
  if (blockIdx.x == 0 && threadIdx.x == 0) operation.say_ready();

  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(own);
    hopper::prefetch_map(b);
    output.prefetch();
  }
  const auto send_rows = [&](int warp) {
    constexpr int kWarps = 3;  // that send
    const long long thread =
        (static_cast<long long>(blockIdx.x) * kWarps + warp - 1) * 32 + threadIdx.x % 32;
    const unsigned senders = gridDim.x * kWarps;
    const RowsToSend<T> rows(a, peers, p.m, p.k);
    for (int distance = 1; distance < peers.size; ++distance) {
      const int to = rows.receiver(distance);
      const bool ready = __all_sync(0xffffffffu, operation.wait_until_ready(to));
      for (int chunk = 0; chunk < c.chunks && ready; ++chunk) {
        rows.send(to, chunk, c.chunk_rows(p.m), thread, senders * 32ll);
        __syncwarp();
        if (threadIdx.x % 32 == 0) operation.sent(to, chunk, senders);
      }
    }
  };
#ifdef KILN_HOST_TARGET
  // There a thread that waits for another rank leaves its block no turn.
  if (threadIdx.x / 32 >= 1 && threadIdx.x / 32 < 4) send_rows(static_cast<int>(threadIdx.x / 32));
#endif
  block.meet();

  const int bytes = body.received_bytes();
  KnownChunks<c.chunks> known;
  peer_roles<t>(
      body,
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
          hopper::publish_global();  // TMA reads what other threads' stores have written
        others.copy_slices(at, stage, bytes);
      },
      [&](int warp) {
#ifndef KILN_HOST_TARGET
        send_rows(warp);
#endif
      },
      [&](const auto& sums, const auto& at, int first_row, int& buffer) {
        body.store(sums, at, first_row, buffer);
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
