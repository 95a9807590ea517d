// Part of gemm_reduce_scatter.cuh: the operation as one launch. The rows of the next rank come
// first, a rank's own rows last: by then the others' sums of them have come.
#pragma once

#include "gemm_peers_tma.cuh"
#include "gemm_reduce_scatter.hpp"

namespace kiln::templates {

/// The sums of a tile on their way: rows of another rank to its memory, a rank's own to C, with
/// what has come from others. Sums lie in a rank's memory as warps stage them: [source][strip of 16
/// rows][box], t.store_columns() columns a box, swizzled.
template <GemmTma t, class T>
struct ScatteredRows : GemmTmaResults<t, T, true, SumOnce> {
  using Results = GemmTmaResults<t, T, true, SumOnce>;
  using Results::shape, Results::staging;
  static constexpr int kTiles = Results::kTiles;
  static constexpr int kSpan = t.store_span(), kPieces = kSpan / 16;  // of 16 bytes, in a row
  static_assert(t.store_columns() <= kPeerBoxColumns, "of which the memory holds whole ones");
  static constexpr int kRows = 32 / kPieces;  // that a warp has at a time, a piece per lane
  // A warp's boxes of 16 rows, and of all its rows of a tile, for each of which it has a buffer.
  static constexpr int kBoxes = t.block_n / t.store_columns(), kBuffers = kBoxes * t.row_tiles();
  // Whether registers are left for what has come, while a box is staged.
  static constexpr bool kEarly = t.held_sums() <= 128;

  T* out;
  const Peers& peers;

  /// Adds and stores the warp's 16 rows from `row` on, and those of its other tiles of 64. No loop,
  /// because compilers unroll none that has others inside, and sums must stay in registers.
  template <int i = 0, int tiles>
  __device__ __forceinline__ void store_own_tiles(const float (&s)[tiles][kTiles][4], int row,
                                                  int column) const {
    if constexpr (i < tiles) {
      if (row < shape.m) store_own(s[i], row, column);
      store_own_tiles<i + 1>(s, row + 64, column);
    }
  }
  /// Leaves them in the warp's buffers, one box behind the other, for send().
  template <int i = 0, int tiles>
  __device__ __forceinline__ void stage_tiles(const float (&s)[tiles][kTiles][4], int row,
                                              int column, int to) const {
    if constexpr (i < tiles) {
      int buffer = i * kBoxes;
      Results::template stage_rows<kBuffers>(
          s[i], row, column, to, buffer, [] {}, [](const unsigned char*, int) {});
      stage_tiles<i + 1>(s, row + 64, column, to);
    }
  }
  /// Sends the rows from `row` on that a warpgroup has staged, by one thread. When it returns they
  /// have left the buffers. Few copies are on their way at a time: all that a tile has would keep
  /// the slices of the next one from coming for as long as the link is busy.
  __device__ __forceinline__ void send(int consumer, int row, int column, int to) const {
    const long long across = boxes_across();
    const long long left = across - column / t.store_columns();
    if (left <= 0) return;  // of a cluster's blocks some may have no columns
    const auto bytes = static_cast<unsigned>(left < kBoxes ? left : kBoxes) * t.store_bytes();
    const unsigned char* from = staging + consumer * 4 * kBuffers * t.store_bytes();
    for (int warp = 0; warp < 4; ++warp)
      for (int i = 0; i < t.row_tiles(); ++i, from += kBoxes * t.store_bytes()) {
        const int first = row + i * 64 + warp * 16;
        if (first >= shape.m) continue;
        hopper::wait_stores_read<1>();
        hopper::store_bytes(box(peers.rank, to, first, column), from, bytes);
        hopper::commit_stores();
      }
    hopper::wait_stores_read<0>();
  }

 private:
  __device__ __forceinline__ long long boxes_across() const {
    return (shape.n + t.store_columns() - 1) / t.store_columns();
  }
  /// Where the box at (row, column) lies that `from` has computed, in the memory of `at`.
  __device__ __forceinline__ unsigned char* box(int from, int at, int row, int column) const {
    const long long strips = (shape.m + 15) / 16;
    const long long index =
        (from * strips + row / 16) * boxes_across() + column / t.store_columns();
    return static_cast<unsigned char*>(peer_data(peers, at)) + index * t.store_bytes();
  }
  /// A lane has the same columns of rows kRows apart.
  __device__ __forceinline__ void store_own(const float (&s)[kTiles][4], int row,
                                            int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, q = lane % kPieces, top = lane / kPieces;
    const bool wide = aligned(16, out);
    int next = column;  // of the box that is staged next
    Pack<T, 8> parts[kPieces / 2];
    int buffer = 0;
    Results::template stage_rows<kBuffers>(
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
  constexpr auto kLies = hopper::Lies::along_k;
  constexpr GemmTma t = scatter_tma(c);
  using Output = ScatteredRows<t, T>;
  using Body = GemmTmaBody<t, T, true, SumOnce, kLies, kLies, Output>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const GemmShape<true> shape = by_rank(p);
  const SumOnce epilogue;
  const PeerBlock<t, scatter_staging_bytes(t)> block(gemm_tma_shared);
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
  const BlockTiles mine = block.all_tiles(body);
  const auto place_of = [&](unsigned tile) {
    auto at = body.place(tile);
    at.batch = (at.batch + 1 + peers.rank) % peers.size;
    return at;
  };
  // A consumer and the warp that sends its tiles meet twice: when it has staged one, and, if it has
  // another one to store, when that has left.
  constexpr int kStaged = 4, kLeft = 8, kMeeting = 128 + 32;
  constexpr unsigned kStep = Body::kPingpong ? 2 : 1;
  const unsigned of_others =
      t.tiles_m(p.m, p.n) * t.tiles_n(p.m, p.n) * static_cast<unsigned>(peers.size - 1);
  const auto send = [&](int warp) {
    const int consumer = warp - 1;
    if (consumer >= t.consumers) return;
    const bool sends = threadIdx.x % 32 == 0;
    const int first_row = Body::kPingpong ? 0 : consumer * Body::kRowTiles * 64;
    int ready = -1;  // the rank that is known to be
    bool given_up = false;
    const unsigned step = kStep * mine.step;
#pragma unroll 1
    for (unsigned tile = mine.first + (Body::kPingpong ? consumer * mine.step : 0);
         tile < of_others; tile += step) {
      const auto at = place_of(tile);
      hopper::named_sync(kStaged + consumer, kMeeting);
      if (sends) {
        if (ready != at.batch) {
          given_up = given_up || !operation.wait_until_ready(at.batch);
          ready = at.batch;
        }
        if (!given_up) body.output.send(consumer, at.row + first_row, at.column, at.batch);
      }
      __syncwarp();
      if (tile + step < mine.end) hopper::named_arrive(kLeft + consumer, kMeeting);
      if (sends) {
        hopper::wait_stores<0>();
        hopper::publish_global();
        const int chunk = at.row / high;
        const auto rows = static_cast<int>(t.tiles_m(p.m, p.n)) - chunk * tiles_down;
        const unsigned tiles = static_cast<unsigned>(min(rows, tiles_down)) * t.tiles_n(p.m, p.n);
        operation.sent(at.batch, chunk, tiles * (t.cluster() * Body::kTileThreads));
      }
      __syncwarp();
    }
  };
  KnownChunks<c.chunks> known;
  bool leaving = false;  // a tile of this warpgroup is on its way
  const auto store = [&](const auto& sums, const auto& at, int first_row, int&) {
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
    const int consumer = warp / 4 - 1, row = at.row + first_row + warp % 4 * 16;
    if (leaving) hopper::named_sync(kLeft + consumer, kMeeting);
    leaving = at.batch != peers.rank;
    if (leaving) {
      body.output.stage_tiles(sums, row, at.column, at.batch);
      hopper::publish_shared();
      hopper::named_arrive(kStaged + consumer, kMeeting);
      return;
    }
    if (threadIdx.x % 32 == 0)
      for (int i = 1; i < peers.size; ++i)
        known.wait_for(operation, rank_after(peers, i), at.row, t.block_m, p.m, high);
    __syncwarp();
    body.output.store_own_tiles(sums, row, at.column);
  };
  peer_roles<t>(
      body, mine, place_of,
      [&](const auto& at, auto& stage) { body.copy_slices(at, stage, bytes); }, send, store);
  // No block ends while others of its cluster may copy to it or arrive at its barriers.
  block.meet();
  if (threadIdx.x == 0 && operation.is_last_block()) operation.end();
}

}  // namespace kiln::templates
