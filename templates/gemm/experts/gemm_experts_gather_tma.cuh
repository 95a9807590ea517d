// Part of gemm_experts_gather.cuh: the operation as one launch. The first c.senders blocks send the
// rank's tokens to their rows on all ranks.
#pragma once

#include "../grouped/gemm_grouped_tma.cuh"
#include "../peers/gemm_peers_tma.cuh"
#include "gemm_experts_gather.hpp"

namespace kiln::templates {

/// A warp that sends rows: chunk by chunk, of each chunk every `warps`-th row. A row is loaded once
/// and stored on all ranks, in pieces that go through a ring in shared memory. All lanes call each
/// function; lane 0 copies, and arrives at a chunk's barrier when the warp's part has arrived.
template <PeerGemm c>
class ExpertSender {
  using Ring = ExpertRing;
  static constexpr unsigned kPieces = Ring::kPieces, kAhead = kPieces / 2;  // loads before stores
  // A chunk is reported as sent when this many pieces of later ones have been stored: its own have
  // arrived by then, so nothing has to wait for them.
  static constexpr unsigned kBehind = kPieces;
  static constexpr unsigned kAll = 0xffffffffu;
  static_assert(kExpertChunks <= 32, "a lane knows where a chunk ends");

 public:
  using Operation = PeerOperation<c.chunks, kExpertChunks>;

  /// `shared`, `full`: the warp's part of the ring and its barriers; `sent`: the chunks'. Rows have
  /// `row_bytes` bytes, a multiple of 16.
  __device__ __forceinline__ ExpertSender(const Operation& operation, const Peers& peers,
                                          unsigned char* shared, hopper::Barrier* full,
                                          hopper::Barrier* sent, int row_bytes, unsigned warps)
      : operation_(operation),
        peers_(peers),
        ring_(shared),
        full_(full),
        sent_(sent),
        row_bytes_(row_bytes),
        lane_(threadIdx.x % 32),
        warps_(warps) {
    if (lane_ == 0) {
      for (unsigned i = 0; i < kPieces; ++i) full_[i].init(1);
      hopper::publish_barriers();
    }
    __syncwarp();
  }

  /// Sends what `a` has of the warp's rows, and waits until it has arrived.
  __device__ __forceinline__ void send(const void* a, const int* tokens, const ExpertsProblem& p,
                                       unsigned warp) {
    bool ready = true;
    if (lane_ == 0)
      for (int i = 1; i < peers_.size && ready; ++i)
        ready = operation_.wait_until_ready(rank_before(peers_, i));
    if (__all_sync(kAll, ready) == 0) {
      while (told_ < c.chunks) tell();
      return;
    }
    const int high = expert_chunk_rows(c, p), first = peers_.rank * p.m;
    bulk_ = aligned(16, a);
    for (int chunk = 0; chunk < c.chunks; ++chunk) {
      const int begin = min(chunk * high, p.rows()), end = min(begin + high, p.rows());
#pragma unroll 1
      for (int at = begin + static_cast<int>(warp); at < end; at += 32 * static_cast<int>(warps_)) {
        const int row = at + static_cast<int>(lane_ * warps_);
        const int token = row < end ? tokens[row] : -1;
        unsigned mine = __ballot_sync(kAll, token >= first && token < first + p.m);
#pragma unroll 1
        for (; mine != 0; mine &= mine - 1) {
          const int lane = __ffs(static_cast<int>(mine)) - 1;
          const int to = __shfl_sync(kAll, row, lane),
                    from = __shfl_sync(kAll, token, lane) - first;
#pragma unroll 1
          for (int part = 0; part < row_bytes_; part += Ring::kPieceBytes)
            load(static_cast<const char*>(a) + static_cast<long long>(from) * row_bytes_, to, part);
        }
      }
      if (lane_ == static_cast<unsigned>(chunk)) chunk_end_ = loads_;
      ++chunks_;
    }
    while (stores_ != loads_) store();
    if (lane_ == 0) hopper::wait_stores<0>();
    while (told_ < c.chunks) tell();
  }

 private:
  __device__ __forceinline__ void load(const char* from, int row, int part) {
    if (loads_ - stores_ == kAhead) store();
    const unsigned piece = loads_++ % kPieces;
    if (lane_ == piece) row_ = row, part_ = part;
    if (lane_ == 0) {
      // The piece is free once all stores but the last kAhead - 1 have read their data.
      hopper::wait_stores_read<kAhead - 1>();
      if (bulk_) {
        full_[piece].arrive_expect(bytes(part));
        hopper::load_bytes(ring_ + piece * Ring::kPieceBytes, from + part, bytes(part),
                           full_[piece]);
      }
    }
    __syncwarp();
    if (!bulk_) copy(from + part, piece, bytes(part));
  }
  /// What bulk copies cannot load: an array of the caller's that is aligned to its elements alone.
  __device__ __forceinline__ void copy(const char* from, unsigned piece, unsigned bytes) {
    auto* const to = reinterpret_cast<unsigned short*>(ring_ + piece * Ring::kPieceBytes);
#pragma unroll 1
    for (unsigned i = lane_; i < bytes / sizeof(unsigned short); i += 32)
      to[i] = reinterpret_cast<const unsigned short*>(from)[i];
    hopper::publish_shared();  // bulk copies read it
    __syncwarp();
    if (lane_ == 0) full_[piece].arrive();
  }
  __device__ __forceinline__ void store() {
    const unsigned piece = stores_ % kPieces, parity = stores_ / kPieces & 1;
    const int row = __shfl_sync(kAll, row_, static_cast<int>(piece));
    const int part = __shfl_sync(kAll, part_, static_cast<int>(piece));
    if (lane_ == 0) {
      full_[piece].wait(parity);
      const long long at = static_cast<long long>(row) * row_bytes_ + part;
      for (int distance = 0; distance < peers_.size; ++distance)
        hopper::store_bytes(
            static_cast<char*>(peer_data(peers_, rank_before(peers_, distance))) + at,
            ring_ + piece * Ring::kPieceBytes, bytes(part));
      hopper::commit_stores();
    }
    __syncwarp();
    ++stores_;
    while (told_ < chunks_ && static_cast<int>(stores_ - __shfl_sync(kAll, chunk_end_, told_)) >=
                                  static_cast<int>(kBehind)) {
      if (lane_ == 0) hopper::wait_stores<kBehind>();
      tell();
    }
  }
  /// The stores of the next chunk have arrived.
  __device__ __forceinline__ void tell() {
    if (lane_ == 0) {
      hopper::publish_global();
      sent_[told_].arrive();
    }
    __syncwarp();
    ++told_;
  }
  __device__ __forceinline__ unsigned bytes(int part) const {
    return static_cast<unsigned>(min(row_bytes_ - part, Ring::kPieceBytes));
  }

  const Operation& operation_;
  const Peers& peers_;
  unsigned char* const ring_;
  hopper::Barrier* const full_;
  hopper::Barrier* const sent_;
  const int row_bytes_;
  const unsigned lane_, warps_;
  bool bulk_ = true;                 // the tokens can be loaded by bulk copies
  unsigned loads_ = 0, stores_ = 0;  // so far
  int chunks_ = 0, told_ = 0;        // that have been loaded, and said to have been sent
  int row_ = 0, part_ = 0;           // where the lane's piece goes
  unsigned chunk_end_ = 0;           // loads at the end of the lane's chunk
};

/// Chunks of rows that a thread has waited for.
template <PeerGemm c>
class KnownExpertRows {
 public:
  /// Waits for the rows [begin, end) of all ranks. Once a rank has given up, it waits no more:
  /// results have no meaning then, but the launch must end.
  __device__ __forceinline__ void wait_for(const PeerOperation<c.chunks, kExpertChunks>& operation,
                                           const Peers& peers, int begin, int end, int high) {
    if (begin >= end) return;
    bool waited = false;
    for (int chunk = begin / high; chunk <= (end - 1) / high; ++chunk) {
      if ((known_ >> chunk & 1) != 0) continue;
      for (int i = 0; i < peers.size && !given_up_; ++i)
        given_up_ = !operation.wait_for(rank_after(peers, i), chunk);
      known_ |= 1u << chunk;
      waited = true;
    }
    if (waited) hopper::publish_global();  // TMA reads what others have written
  }

 private:
  unsigned known_ = 0;
  bool given_up_ = false;
};

template <PeerGemm c, class T>
__device__ __forceinline__ void experts_gather_tma_body(
    T* out, const T* a, const hopper::TensorMap& b, const hopper::TensorMap& all, const int* tokens,
    const int* ends, const Peers& peers, const ExpertsProblem& p) {
  constexpr GemmTma t = expert_gathering_gemm(c);
  static_assert(c.senders > 0 && c.senders % t.cluster() == 0 &&
                    t.buffer_bytes() >= ExpertRing::kDataBytes &&
                    t.threads() > ExpertRing::kWarps * 32,
                "clusters send, with the memory of their stages");
  constexpr auto kLies = hopper::Lies::along_k;
  using Output = GroupedTmaOutput<t, T, StoreSum>;
  using Body = GemmTmaBody<t, T, true, StoreSum, kLies, kLies, Output>;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const PeerOperation<c.chunks, kExpertChunks> operation(peers);
  if (blockIdx.x == 0 && threadIdx.x == 0) operation.say_ready();
  const GemmShape<true> shape = experts_shape(p);
  const StoreSum epilogue;
  const PeerBlock<t> block(gemm_tma_shared);
  Body body =
      block.template body<Body>(all, b, Output{{epilogue, shape, block.staging()}, out}, shape);
  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(all);
    hopper::prefetch_map(b);
  }
  const bool sends = blockIdx.x < c.senders;
  auto* const pieces = reinterpret_cast<hopper::Barrier*>(gemm_tma_shared + t.shared_bytes());
  hopper::Barrier* const sent = pieces + ExpertRing::kWarps * ExpertRing::kPieces;
  if (sends) {
    if (threadIdx.x < c.chunks) {
      sent[threadIdx.x].init(ExpertRing::kWarps);
      hopper::publish_barriers();
    }
    __syncthreads();
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp < ExpertRing::kWarps) {
      constexpr unsigned kRing = ExpertRing::kPieces * ExpertRing::kPieceBytes;
      ExpertSender<c> sender(operation, peers, gemm_tma_shared + warp * kRing,
                             pieces + warp * ExpertRing::kPieces, sent,
                             p.k * static_cast<int>(sizeof(T)), c.senders * ExpertRing::kWarps);
      sender.send(a, tokens, p, blockIdx.x * ExpertRing::kWarps + warp);
    } else if (threadIdx.x == ExpertRing::kWarps * 32) {
      // Apart from the warps that send, which would stand still meanwhile.
      for (int chunk = 0; chunk < c.chunks; ++chunk) {
        sent[chunk].wait(0);
        operation.sent_to_all(chunk, c.senders);
      }
    }
  }
  __syncwarp();
  block.meet();

  const unsigned senders = c.senders / t.cluster(), others = gridDim.x / t.cluster() - senders;
  const unsigned cluster = blockIdx.x / t.cluster();
  using Tiles = GroupTiles<t, GroupLayout::contiguous>;
  const unsigned count = Tiles(ends, shape).count();
  const unsigned late = c.late ? late_tiles(count, others, senders) : 0;
  const BlockTiles mine = sends ? BlockTiles{count - late + cluster, senders, count}
                                : BlockTiles{cluster - senders, others, count - late};
  Tiles tiles(ends, shape);
  const int high = expert_chunk_rows(c, p);
  KnownExpertRows<c> known;
  grouped_roles<t>(
      body, tiles, mine,
      [&](const auto& at, int end) {
        known.wait_for(operation, peers, at.row, min(at.row + t.block_m, end), high);
      },
      [](unsigned) {}, [] {});
  // No block ends while others of its cluster may copy to it or arrive at its barriers.
  block.meet();
  if (threadIdx.x == 0 && operation.is_last_block()) operation.end();
}

}  // namespace kiln::templates
