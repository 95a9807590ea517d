// Part of gemm_reduce_scatter.cuh: the operation as one launch. The rows of the next rank come first, a
// rank's own rows last: by then the others' sums of them have come.
#pragma once

#include "gemm_peers_tma.cuh"

namespace kiln::templates {

/// The sums of a tile on their way: rows of another rank to its memory, a rank's own to C, with what has
/// come from others.
template <GemmTma t, int chunks, class T>
struct ScatteredRows : GemmTmaResults<t, T, true, SumOnce> {
  using Results = GemmTmaResults<t, T, true, SumOnce>;
  using Results::shape;
  static constexpr int kTiles = Results::kTiles;

  T* out;
  const Peers& peers;

  /// [m][n] of what `from` has computed, in the memory of `at`.
  __device__ __forceinline__ T* sums_of(int from, int at) const {
    return static_cast<T*>(peer_data(peers, at)) + from * shape.stride_c;
  }
  /// Stores the warp's 16 rows from `row` on, and those of its other tiles of 64. No loop, because
  /// compilers unroll none that has others inside, and sums must stay in registers.
  template <int i = 0, int tiles>
  __device__ __forceinline__ void store_tiles(const float (&s)[tiles][kTiles][4], int row,
                                              int column, int batch, int& buffer) const {
    if constexpr (i < tiles) {
      if (row < shape.m) store_rows(s[i], row, column, batch, buffer);
      store_tiles<i + 1>(s, row + 64, column, batch, buffer);
    }
  }

 private:
  __device__ __forceinline__ void store_rows(const float (&s)[kTiles][4], int row, int column,
                                             int batch, int& buffer) const {
    constexpr int kSpan = t.store_span(), kPieces = kSpan / 16;
    const bool mine = batch == peers.rank;
    T* const to = mine ? out : sums_of(peers.rank, batch);
    const bool wide = aligned(16, to);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Results::stage_rows(
        s, row, column, batch, buffer, [] { __syncwarp(); },
        [&](const unsigned char* from, int first) {
          __syncwarp();
          const int q = lane % kPieces, j = first + q * 8;  // a lane's pieces have the same columns
          if (j >= shape.n) return;
#pragma unroll
          for (int r = lane / kPieces; r < 16; r += 32 / kPieces) {
            if (row + r >= shape.m) break;
            const long long element = (row + r) * shape.ldc + j;
            Pack<T, 8> piece =
                load_pack<8>(reinterpret_cast<const T*>(from + swizzled<kSpan>(r, q)));
            if (mine) add_others(piece, element);
            if (wide)
              store_pack(to + element, piece);
            else
#pragma unroll
              for (int e = 0; e < 8; ++e) to[element + e] = piece.value[e];
          }
        });
  }
  __device__ __forceinline__ void add_others(Pack<T, 8>& piece, long long element) const {
    float sums[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[e] = to_float(piece.value[e]);
#pragma unroll 1
    for (int i = 1; i < peers.size; ++i) {
      const auto part = load_uncached(sums_of((peers.rank + i) % peers.size, peers.rank) + element);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[e] += to_float(part.value[e]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) piece.value[e] = from_float<T>(sums[e]);
  }
  /// Past the L1 cache, which does not see what other GPUs store.
  __device__ __forceinline__ static Pack<T, 8> load_uncached(const T* address) {
    const uint4 word = __ldcg(reinterpret_cast<const uint4*>(address));
    return reinterpret_cast<const Pack<T, 8>&>(word);
  }
};

template <PeerGemm c, class T>
__device__ __forceinline__ void reduce_scatter_tma_body(T* out, const hopper::TensorMap& a,
                                                        const hopper::TensorMap& b,
                                                        const Peers& peers,
                                                        const PeerGemmProblem& p) {
  constexpr GemmTma t = c.gemm().tma();
  constexpr auto kLies = hopper::Lies::along_k;
  using Output = ScatteredRows<t, c.chunks, T>;
  using Body = GemmTmaBody<t, T, true, SumOnce, kLies, kLies, Output>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const GemmShape<true> shape = by_rank(p);
  const SumOnce epilogue;
  const PeerBlock<t> block(gemm_tma_shared);
  Body body = block.template body<Body>(
      a, b, Output{{epilogue, shape, block.staging()}, out, peers}, shape);
  const PeerOperation<c.chunks> operation(peers);
  if (blockIdx.x == 0 && threadIdx.x == 0) operation.say_ready();
  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(a);
    hopper::prefetch_map(b);
  }
  block.meet();

  const int bytes = body.received_bytes(), tiles_down = c.chunk_tiles(p.m);
  const int high = c.chunk_rows(p.m);
  KnownChunks<c.chunks> known;
  int ready = -1;  // the rank that this lane knows to be
  bool given_up = false;
  const auto store = [&](const auto& sums, const auto& at, int first_row, int& buffer) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool mine = at.batch == peers.rank;
    if (lane == 0) {
      if (mine) {
        for (int i = 1; i < peers.size; ++i)
          known.wait_for(operation, (peers.rank + i) % peers.size, at.row, t.block_m, p.m, high);
      } else if (ready != at.batch) {
        given_up = given_up || !operation.wait_until_ready(at.batch);
        ready = at.batch;
      }
    }
    const bool stores = __any_sync(0xffffffffu, given_up) == 0;
    const int warp_row = first_row + hopper::uniform(static_cast<int>(threadIdx.x) / 32) % 4 * 16;
    if (mine || stores)
      body.output.store_tiles(sums, at.row + warp_row, at.column, at.batch, buffer);
    if (mine) return;
    __syncwarp();
    if (lane != 0) return;
    const int chunk = at.row / high;
    const auto rows = static_cast<int>(t.tiles_m(p.m, p.n)) - chunk * tiles_down;
    const unsigned tiles = static_cast<unsigned>(min(rows, tiles_down)) * t.tiles_n(p.m, p.n);
    operation.sent(at.batch, chunk, tiles * (t.cluster() * 4 * Body::kTileThreads));
  };
  peer_roles<t>(
      body,
      [&](unsigned tile) {
        auto at = body.place(tile);
        at.batch = (at.batch + 1 + peers.rank) % peers.size;
        return at;
      },
      [&](const auto& at, auto& stage) { body.copy_slices(at, stage, bytes); }, [](int) {}, store);
  // No block ends while others of its cluster may copy to it or arrive at its barriers.
  block.meet();
  if (threadIdx.x == 0 && operation.is_last_block()) operation.end();
}

}  // namespace kiln::templates
