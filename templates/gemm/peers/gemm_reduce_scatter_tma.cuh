// Part of gemm_reduce_scatter.cuh: the operation as one launch. The rows of the next rank come
// first, a rank's own rows last: by then the others' sums of them have come.
#pragma once

#include "gemm_peers_tma.cuh"

namespace kiln::templates {

/// The sums of a tile on their way: rows of another rank to its memory, a rank's own to C, with
/// what has come from others. Sums lie in a rank's memory as warps stage them: [source][strip of 16
/// rows][box], t.store_columns() columns a box, swizzled.
template <GemmTma t, class T>
struct ScatteredRows : GemmTmaResults<t, T, true, SumOnce> {
  using Results = GemmTmaResults<t, T, true, SumOnce>;
  using Results::shape;
  static constexpr int kTiles = Results::kTiles;
  static constexpr int kSpan = t.store_span(), kPieces = kSpan / 16;  // of 16 bytes, in a row
  static_assert(t.store_columns() <= kPeerBoxColumns, "of which the memory holds whole ones");
  static constexpr int kRows = 32 / kPieces;  // that a warp has at a time, a piece per lane
  // Whether registers are left for what has come, while a box is staged.
  static constexpr bool kEarly = t.held_sums() <= 128;

  T* out;
  const Peers& peers;

  /// Stores the warp's 16 rows from `row` on, and those of its other tiles of 64. No loop, because
  /// compilers unroll none that has others inside, and sums must stay in registers.
  template <int i = 0, int tiles>
  __device__ __forceinline__ void store_tiles(const float (&s)[tiles][kTiles][4], int row,
                                              int column, int batch, int& buffer) const {
    if constexpr (i < tiles) {
      if (row < shape.m) {
        if (batch == peers.rank)
          store_own(s[i], row, column, buffer);
        else
          send(s[i], row, column, batch, buffer);
      }
      store_tiles<i + 1>(s, row + 64, column, batch, buffer);
    }
  }

 private:
  /// Where the box at (row, column) lies that `from` has computed, in the memory of `at`.
  __device__ __forceinline__ unsigned char* box(int from, int at, int row, int column) const {
    constexpr int kColumns = t.store_columns();
    const long long strips = (shape.m + 15) / 16, across = (shape.n + kColumns - 1) / kColumns;
    const long long index = (from * strips + row / 16) * across + column / kColumns;
    return static_cast<unsigned char*>(peer_data(peers, at)) + index * t.store_bytes();
  }
  /// By bulk copies, which the elected thread of the warp commits.
  __device__ __forceinline__ void send(const float (&s)[kTiles][4], int row, int column, int to,
                                       int& buffer) const {
    Results::stage_rows(
        s, row, column, to, buffer,
        [] {
          if (hopper::elect()) hopper::wait_stores_read<1>();
          __syncwarp();
        },
        [&](const unsigned char* from, int first) {
          hopper::publish_shared();
          __syncwarp();
          if (hopper::elect()) {
            if (first < shape.n)
              hopper::store_bytes(box(peers.rank, to, row, first), from, t.store_bytes());
            hopper::commit_stores();
          }
        });
  }
  /// A lane has the same columns of rows kRows apart.
  __device__ __forceinline__ void store_own(const float (&s)[kTiles][4], int row, int column,
                                            int& buffer) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, q = lane % kPieces, top = lane / kPieces;
    const bool wide = aligned(16, out);
    int next = column;  // of the box that is staged next
    Pack<T, 8> parts[kPieces / 2];
    Results::stage_rows(
        s, row, column, peers.rank, buffer,
        [&] {
          __syncwarp();
          // Begun before the box is staged, so that they come meanwhile.
          if (kEarly && peers.size > 1 && next < shape.n) {
            const unsigned char* const at = box(rank_after(peers, 1), peers.rank, row, next);
#pragma unroll
            for (int i = 0; i < kPieces / 2; ++i)
              parts[i] = load_uncached(at + swizzled<kSpan>(top + i * kRows, q));
          }
          next += t.store_columns();
        },
        [&](const unsigned char* from, int first) {
          __syncwarp();
          const int j = first + q * 8;
          if (j >= shape.n) return;
#pragma unroll
          for (int i = 0; i < kPieces / 2; ++i) {
            const int r = top + i * kRows, in_box = swizzled<kSpan>(r, q);
            float sums[8] = {};
            add(sums, load_pack<8>(reinterpret_cast<const T*>(from + in_box)));
            if (kEarly && peers.size > 1) add(sums, parts[i]);
#pragma unroll 1
            for (int distance = kEarly ? 2 : 1; distance < peers.size; ++distance)
              add(sums,
                  load_uncached(box(rank_after(peers, distance), peers.rank, row, first) + in_box));
            if (row + r < shape.m) store_sums(out + (row + r) * shape.ldc + j, sums, wide);
          }
        });
  }
  __device__ __forceinline__ static void add(float (&sums)[8], const Pack<T, 8>& part) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[e] += to_float(part.value[e]);
  }
  __device__ __forceinline__ static void store_sums(T* to, const float (&sums)[8], bool wide) {
    Pack<T, 8> piece;
#pragma unroll
    for (int e = 0; e < 8; ++e) piece.value[e] = from_float<T>(sums[e]);
    if (wide)
      store_pack(to, piece);
    else
#pragma unroll
      for (int e = 0; e < 8; ++e) to[e] = piece.value[e];
  }
  /// Past the L1 cache, which does not see what other GPUs store.
  __device__ __forceinline__ static Pack<T, 8> load_uncached(const void* address) {
    const uint4 word = __ldcg(static_cast<const uint4*>(address));
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
  using Output = ScatteredRows<t, T>;
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
  // The tile whose sums are on their way, from this warp: they are waited for when the next tile
  // has been multiplied, but for the last one's, because other ranks may wait for them already.
  int sent_to = -1, sent_row = 0;
  const auto tell = [&] {
    if (sent_to < 0) return;
    if (hopper::elect()) {
      hopper::wait_stores<0>();
      hopper::publish_global();
      const int chunk = sent_row / high;
      const auto rows = static_cast<int>(t.tiles_m(p.m, p.n)) - chunk * tiles_down;
      const unsigned tiles = static_cast<unsigned>(min(rows, tiles_down)) * t.tiles_n(p.m, p.n);
      operation.sent(sent_to, chunk, tiles * (t.cluster() * 4 * Body::kTileThreads));
    }
    __syncwarp();
    sent_to = -1;
  };
  const unsigned of_others =
      t.tiles_m(p.m, p.n) * t.tiles_n(p.m, p.n) * static_cast<unsigned>(peers.size - 1);
  const auto store = [&](const auto& sums, const auto& at, int first_row, int& buffer,
                         unsigned next) {
    tell();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool mine = at.batch == peers.rank;
    if (lane == 0) {
      if (mine) {
        for (int i = 1; i < peers.size; ++i)
          known.wait_for(operation, rank_after(peers, i), at.row, t.block_m, p.m, high);
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
    sent_to = at.batch;
    sent_row = at.row;
    if (next >= of_others) tell();
  };
  peer_roles<t>(
      body, block.all_tiles(body),
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
