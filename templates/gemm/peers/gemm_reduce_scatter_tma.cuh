// Part of gemm_reduce_scatter.cuh: the operation as one launch. The rows of the next rank come
// first, a rank's own rows last: by then the others' sums of them have come. Each block sends its
// tiles itself, or the first c.senders blocks send those of all others.
#pragma once

#include "gemm_peers_tma.cuh"
#include "gemm_reduce_scatter.hpp"
#include "gemm_send_ring.cuh"

namespace kiln::templates {

/// The sums of a tile on their way: rows of another rank to its memory, a rank's own to C, with
/// what has come from others. Sums lie in a rank's memory as warps stage them: [part][strip of 16
/// rows][box], t.store_columns() columns a box, swizzled. `waiting`: sums for other ranks wait in
/// this rank's memory.
template <GemmTma t, class T, bool waiting>
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
        hopper::store_bytes(destination(to, first, column), from, bytes);
        hopper::commit_stores();
      }
    hopper::wait_stores_read<0>();
  }
  /// Where the rows from `row` on lie that wait to be sent to a rank, and where they come to there.
  __device__ __forceinline__ unsigned char* waiting_rows(int to, int row) const {
    const int distance = (to - peers.rank + peers.size) % peers.size;
    return box(waiting_part(peers.rank, peers.size, distance), peers.rank, row, 0);
  }
  __device__ __forceinline__ unsigned char* sent_rows(int to, int row) const {
    return box(peers.rank, to, row, 0);
  }
  __device__ __forceinline__ long long strip_bytes() const {
    return boxes_across() * t.store_bytes();
  }

 private:
  __device__ __forceinline__ unsigned char* destination(int to, int row, int column) const {
    const auto across = static_cast<long long>(column / t.store_columns()) * t.store_bytes();
    return (waiting ? waiting_rows(to, row) : sent_rows(to, row)) + across;
  }
  __device__ __forceinline__ long long boxes_across() const {
    return (shape.n + t.store_columns() - 1) / t.store_columns();
  }
  /// Where the box at (row, column) of a part lies in the memory of `at`.
  __device__ __forceinline__ unsigned char* box(int part, int at, int row, int column) const {
    const long long strips = (shape.m + 15) / 16;
    const long long index =
        (part * strips + row / 16) * boxes_across() + column / t.store_columns();
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

/// Threads that say that a chunk's tiles have been stored: `of_tile` of each.
template <PeerGemm c, GemmTma t>
__device__ __forceinline__ unsigned storing_threads(const PeerGemmProblem& p, int chunk,
                                                    unsigned of_tile) {
  const int tiles_down = c.chunk_tiles(p.m);
  const int rows = static_cast<int>(t.tiles_m(p.m, p.n)) - chunk * tiles_down;
  return static_cast<unsigned>(min(rows, tiles_down)) * t.tiles_n(p.m, p.n) * of_tile;
}

/// One thread of each sender sends its part of what waits, a chunk when all of its tiles are there.
template <PeerGemm c, GemmTma t, class Output, class Sender>
__device__ __forceinline__ void send_sums(Sender& sender, const PeerOperation<c.chunks>& operation,
                                          const Output& output, const PeerGemmProblem& p,
                                          unsigned of_tile, unsigned index) {
  const int high = c.chunk_rows(p.m);
  for (int distance = 1; distance < output.peers.size; ++distance) {
    const int to = rank_after(output.peers, distance);
    if (!operation.wait_until_ready(to)) return;
    for (int chunk = 0; chunk < c.chunks && chunk * high < p.m; ++chunk) {
      const int begin = chunk * high, rows = min(high, p.m - begin);
      const unsigned threads = storing_threads<c, t>(p, chunk, of_tile);
      if (!operation.wait_until_stored(to, chunk, threads)) return;
      hopper::publish_global();  // bulk copies read what others have written
      sender.send(output.sent_rows(to, begin), output.waiting_rows(to, begin),
                  (rows + 15) / 16 * output.strip_bytes(), c.senders, index);
      operation.sent(to, chunk, threads + c.senders);
    }
  }
}

template <PeerGemm c, class T>
__device__ __forceinline__ void reduce_scatter_tma_body(T* out, const hopper::TensorMap& a,
                                                        const hopper::TensorMap& b,
                                                        const Peers& peers,
                                                        const PeerGemmProblem& p) {
  constexpr auto kLies = hopper::Lies::along_k;
  constexpr GemmTma t = scatter_tma(c);
  constexpr bool kSenders = c.senders > 0;
  using Output = ScatteredRows<t, T, kSenders>;
  using Body = GemmTmaBody<t, T, true, SumOnce, kLies, kLies, Output>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const GemmShape<true> shape = by_rank(p);
  const SumOnce epilogue;
  const PeerBlock<t, scatter_staging_bytes(t)> block(gemm_tma_shared);
  Body body = block.template body<Body>(
      a, b, Output{{epilogue, shape, block.staging()}, out, peers}, shape);
  const PeerOperation<c.chunks> operation(peers);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    operation.say_ready();
    // Where m is less than what was tuned, no tile says so of the last chunks.
    for (int chunk = 0; chunk < c.chunks; ++chunk)
      for (int i = 1; i < peers.size && chunk * c.chunk_rows(p.m) >= p.m; ++i)
        operation.say_sent(rank_after(peers, i), chunk);
  }
  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(a);
    hopper::prefetch_map(b);
  }
  constexpr unsigned kOfTile = t.cluster() * Body::kTileThreads;
  static_assert(
      !kSenders || (c.senders % t.cluster() == 0 && t.buffer_bytes() >= kSendersRing.data_bytes()),
      "clusters send, with the memory of their stages");
  unsigned char* const behind = gemm_tma_shared + t.shared_bytes() + scatter_staging_bytes(t);
#ifdef KILN_HOST_TARGET
  // There a block that waits for others leaves them no turn: the one that multiplies sends, too,
  // through 2 KiB more of shared memory.
  constexpr bool kBeside = kSenders;
  constexpr SendRing kRing{2, 1024};
  static_assert(!kSenders || (t.cluster() == 1 && t.consumers == 1 && !c.late));
  BlockSender<kRing> sender(behind + kSendersRing.barrier_bytes(), behind);
#else
  constexpr bool kBeside = false;
  BlockSender<kSendersRing> sender(gemm_tma_shared, behind);
#endif
  const auto send_waiting = [&] {
    sender.init_barriers();
    send_sums<c, t>(sender, operation, body.output, p, kOfTile,
                    kBeside ? blockIdx.x - c.senders : blockIdx.x);
  };
  if (kSenders && !kBeside && blockIdx.x < c.senders && threadIdx.x / 32 == 1 && hopper::elect())
    send_waiting();
  __syncwarp();
  block.meet();

  const int bytes = body.received_bytes(), high = c.chunk_rows(p.m);
  const unsigned tiles = block.tiles(body);
  const unsigned of_others =
      tiles / static_cast<unsigned>(peers.size) * static_cast<unsigned>(peers.size - 1);
  BlockTiles mine = block.all_tiles(body);
  if constexpr (kSenders) mine = block.tiles_beside_senders(c, tiles, tiles - of_others);
  const auto place_of = [&](unsigned tile) {
    auto at = body.place(tile);
    at.batch = (at.batch + 1 + peers.rank) % peers.size;
    return at;
  };
  // A consumer and the warp that sends its tiles meet twice: when it has staged one, and, if it has
  // another one to store, when that has left.
  constexpr int kStaged = 4, kLeft = 8, kMeeting = 128 + 32, kAllWait = 12, kAllSent = 13;
  constexpr unsigned kStep = Body::kPingpong ? 2 : 1;
  const auto send = [&](int warp) {
    const int consumer = warp - 1;
    const bool sends_beside = kBeside && mine.first < of_others;
    if (sends_beside && warp == 3) {
      hopper::named_sync(kAllWait, 64);
      if (hopper::elect()) send_waiting();
      __syncwarp();
      hopper::named_sync(kAllSent, kMeeting);
    }
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
        if (!kSenders && ready != at.batch) {
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
        operation.sent(at.batch, chunk, storing_threads<c, t>(p, chunk, kOfTile) + c.senders);
      }
      __syncwarp();
    }
    if (sends_beside) hopper::named_sync(kAllWait, 64);
  };
  KnownChunks<c.chunks> known;
  bool leaving = false;   // a tile of this warpgroup is on its way
  bool all_sent = false;  // on the host: by the warp beside
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
    if (kBeside && !all_sent) {
      all_sent = true;
      hopper::named_sync(kAllSent, kMeeting);
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
