// Part of gemm_experts_combine.cuh: the operation as one launch. Blocks that multiply come first in
// the grid: where blocks run one after the other, those that only add have what they wait for.
#pragma once

#include "../grouped/gemm_grouped_tma.cuh"
#include "../peers/gemm_peers_tma.cuh"
#include "gemm_expert_sums.cuh"
#include "gemm_experts_combine.hpp"
#include "kiln/workspace.cuh"

namespace kiln::templates {

/// The tiles of all groups in the columns of a chunk, those of the next chunk, ...
template <GemmTma c>
class ChunkTiles {
 public:
  /// `shape`: of a chunk.
  __device__ __forceinline__ ChunkTiles(const int* ends, const GemmShape<true>& shape)
      : shape_(shape), of_chunk_(Groups(ends, shape).count()), groups_(ends, shape) {}

  __device__ __forceinline__ unsigned of_chunk() const { return of_chunk_; }
  __device__ __forceinline__ bool reach(unsigned tile) {
    if (of_chunk_ == 0) return false;
    while (tile - before_ >= of_chunk_) {
      before_ += of_chunk_;
      column_ += shape_.n;
      groups_.restart();
    }
    return groups_.reach(tile - before_);
  }
  template <class Body>
  __device__ __forceinline__ auto place(const Body& body, unsigned tile, int& end) const {
    Body in_chunk = body;
    in_chunk.n = shape_.n;
    auto at = groups_.place(in_chunk, tile - before_, end);
    at.column += column_;
    return at;
  }

 private:
  using Groups = GroupTiles<c, GroupLayout::contiguous>;

  const GemmShape<true>& shape_;
  const unsigned of_chunk_;
  Groups groups_;
  unsigned before_ = 0;  // tiles of earlier chunks
  int column_ = 0;       // the chunk's first
};

/// Adds chunks of columns, each when it has been multiplied, and exchanges the sums with other
/// ranks.
template <PeerGemm c, class T>
struct ExpertAdder {
  using Operation = PeerOperation<c.chunks, kExpertChunks>;

  T* out;
  const Peers& peers;
  const ExpertsProblem& p;
  const Operation& operation;
  ExpertSums<T> sums;
  const unsigned* stored;  // parts of tiles, by chunk
  unsigned parts;          // of a chunk
  // Those that add: `of_block` of each of `blocks` blocks, the first being thread `first`.
  WorkingThreads threads;
  int of_block, first;
  unsigned blocks;

  /// Sends the sums of other ranks' tokens.
  __device__ __forceinline__ void send(int chunk) const {
    bool there = true;
    if (threadIdx.x % 32 == 0) {
      while (there && *static_cast<const volatile unsigned*>(stored + chunk) < parts) {
        there = !kiln::detail::has_given_up(peers);
        __nanosleep(64);
      }
      for (int i = 1; i < peers.size && there; ++i)
        there = operation.wait_until_ready(rank_after(peers, i));
    }
    __threadfence();
    there = __all_sync(kAll, there) != 0;
    for (int i = 1; i < peers.size && there; ++i) {
      const int to = rank_after(peers, i);
      T* const its =
          static_cast<T*>(peer_data(peers, to)) + static_cast<long long>(peers.rank) * p.m * p.n;
      sums.template add<8>(
          to * p.m, columns(chunk), threads, [&](int row, int column, const auto& sum) {
            store_pack(its + static_cast<long long>(row) * p.n + column, rounded<T>(sum));
          });
    }
    hopper::named_sync(3, of_block);
    if (static_cast<int>(threadIdx.x) == first) operation.sent_to_all(chunk, blocks);
    __syncwarp();
#ifdef KILN_HOST_TARGET
    hopper::named_sync(3, of_block);  // there a thread that waits for a rank leaves others no turn
#endif
  }
  /// Adds the sums of the rank's own tokens to what others have sent. @pre send(chunk)
  __device__ __forceinline__ void add(int chunk) const {
    bool there = true;
    if (threadIdx.x % 32 == 0)
      for (int i = 1; i < peers.size && there; ++i)
        there = operation.wait_for(rank_after(peers, i), chunk);
    if (__all_sync(kAll, there) == 0) return;
    const T* const sent = static_cast<const T*>(peer_data(peers, peers.rank));
    const bool aligned_out = aligned(16, out);
    sums.template add<8>(
        peers.rank * p.m, columns(chunk), threads, [&](int row, int column, const auto& sum) {
          const long long at = static_cast<long long>(row) * p.n + column;
          float all[8] = {};
          add_pack(all, rounded<T>(sum));
          for (int i = 1; i < peers.size; ++i)
            add_pack(all,
                     load_past_l1<8>(
                         sent + static_cast<long long>(rank_after(peers, i)) * p.m * p.n + at));
          const Pack<T, 8> pack = rounded<T>(all);
          if (aligned_out)
            store_pack(out + at, pack);
          else
#pragma unroll
            for (int e = 0; e < 8; ++e) out[at + e] = pack.value[e];
        });
  }
  /// Chunks [begin, end). What others send of a chunk comes while the next one is added here.
  __device__ __forceinline__ void exchange(int begin, int end) const {
    for (int chunk = begin; chunk < end; ++chunk) {
      send(chunk);
      if (chunk > begin) add(chunk - 1);
    }
    if (end > begin) add(end - 1);
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ __forceinline__ Columns columns(int chunk) const {
    const int wide = expert_chunk_columns(c, p);
    return {min(chunk * wide, p.n), min(chunk * wide + wide, p.n)};
  }
};

/// `workspace`: [rows][n] of T, and a semaphore for each chunk.
template <PeerGemm c, class T>
__device__ __forceinline__ void experts_combine_tma_body(T* out, const hopper::TensorMap& a,
                                                         const hopper::TensorMap& b,
                                                         const int* ends, const int* places,
                                                         const float* weights, const Peers& peers,
                                                         const ExpertsProblem& p,
                                                         const Workspace& workspace) {
  constexpr GemmTma t = c.gemm().tma();
  static_assert(c.senders % t.cluster() == 0 && (c.senders == 0 || c.chunks > 1),
                "whole clusters add, all chunks but the last");
  constexpr auto kLies = hopper::Lies::along_k;
  using Output = GroupedTmaOutput<t, T, StoreSum>;
  using Body = GemmTmaBody<t, T, true, StoreSum, kLies, kLies, Output>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const PeerOperation<c.chunks, kExpertChunks> operation(peers);
  if (blockIdx.x == 0 && threadIdx.x == 0) operation.say_ready();
  T* const products = static_cast<T*>(workspace.scratch);
  const GemmShape<true> shape = experts_shape(p);
  GemmShape<true> of_chunk = shape;
  of_chunk.n = expert_chunk_columns(c, p);
  const StoreSum epilogue;
  const PeerBlock<t> block(gemm_tma_shared);
  Body body =
      block.template body<Body>(a, b, Output{{epilogue, shape, block.staging()}, products}, shape);
  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(a);
    hopper::prefetch_map(b);
  }
  ChunkTiles<t> tiles(ends, of_chunk);
  block.meet();

  constexpr unsigned kWarpsOfTile = 4u * Body::kTileThreads * t.cluster();
  const unsigned multiply = gridDim.x - c.senders;
  const auto exchange = [&](int begin, int end, const WorkingThreads& threads, int of_block,
                            int first, unsigned blocks) {
    ExpertAdder<c, T>{out,
                      peers,
                      p,
                      operation,
                      {products, places, weights, p},
                      workspace.semaphores,
                      tiles.of_chunk() * kWarpsOfTile,
                      threads,
                      of_block,
                      first,
                      blocks}
        .exchange(begin, end);
  };
  if (blockIdx.x < multiply) {
    const unsigned all = tiles.of_chunk() * static_cast<unsigned>(c.chunks);
    grouped_roles<t>(
        body, tiles, {blockIdx.x / t.cluster(), multiply / t.cluster(), all},
        [](const auto&, int) {},
        [&](unsigned tile) {
          __threadfence();
          __syncwarp();
          if (threadIdx.x % 32 == 0) atomicAdd(workspace.semaphores + tile / tiles.of_chunk(), 1u);
        },
        [&] {
          constexpr unsigned kAdding = t.threads() - 128;
          // Their own tiles are stored behind this: what is waited for is other blocks'.
          hopper::named_sync(3, kAdding);
          exchange(c.senders > 0 ? c.chunks - 1 : 0, c.chunks,
                   {blockIdx.x * kAdding + threadIdx.x - 128, multiply * kAdding}, kAdding, 128,
                   multiply);
        });
  } else {
    exchange(0, c.chunks - 1,
             {(blockIdx.x - multiply) * t.threads() + threadIdx.x,
              static_cast<unsigned>(c.senders * t.threads())},
             t.threads(), 0, c.senders);
  }
  // No block ends while others of its cluster may copy to it or arrive at its barriers.
  block.meet();
  if (threadIdx.x == 0 && operation.is_last_block()) {
    for (int chunk = 0; chunk < c.chunks; ++chunk) workspace.semaphores[chunk] = 0;
    operation.end();
  }
}

}  // namespace kiln::templates
