// Part of gemm_all_gather_tma.cuh and gemm_reduce_scatter_tma.cuh: what blocks send leaves by bulk
// copies through shared memory. Few multiprocessors, with one warp each, fill the link that way,
// where stores of a few warps would not (https://arxiv.org/abs/2511.13940). Between two H100s, 32
// MB both ways: 8 blocks with pieces of 2 KiB 111 GB/s, with pieces of 8 KiB 304; 132 blocks 341
// and 345.
#pragma once

#include "gemm_peers.hpp"
#include "kiln/hopper.cuh"

namespace kiln::templates {

/// Used by one thread of the block, but for its construction.
template <SendRing ring>
class BlockSender {
 public:
  /// `shared` and `barriers`: ring.data_bytes() and barrier_bytes() of the block's shared memory,
  /// at multiples of 16. When send() returns, the former can be used for something else.
  __device__ __forceinline__ BlockSender(unsigned char* shared, unsigned char* barriers)
      : pieces_(shared), full_(reinterpret_cast<hopper::Barrier*>(barriers)) {}
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < ring.pieces; ++i) full_[i].init(1);
    hopper::publish_barriers();
  }
  /// Copies the part of sender `index`, every `senders`-th piece, of `bytes` contiguous bytes, and
  /// waits until it has arrived. All are multiples of 16.
  __device__ __forceinline__ void send(void* to, const void* from, long long bytes,
                                       unsigned senders, unsigned index) {
    constexpr int kAhead = ring.pieces / 2;  // loads before the store of a piece
    constexpr int kBytes = ring.piece_bytes;
    const long long first = static_cast<long long>(index) * kBytes;
    const long long step = static_cast<long long>(senders) * kBytes;
    const int pieces = first < bytes ? static_cast<int>((bytes - first + step - 1) / step) : 0;
#pragma unroll 1
    for (int i = 0; i < pieces + kAhead; ++i) {
      if (i < pieces) {
        const long long at = first + i * step;
        const auto size = static_cast<unsigned>(min(bytes - at, static_cast<long long>(kBytes)));
        // The piece is free once all stores but the last kAhead - 1 have read their data.
        hopper::wait_stores_read<kAhead - 1>();
        hopper::Barrier& full = full_[loads_ % ring.pieces];
        full.arrive_expect(size);
        hopper::load_bytes(piece(loads_++), static_cast<const char*>(from) + at, size, full);
      }
      if (i >= kAhead) {
        const long long at = first + (i - kAhead) * step;
        const auto size = static_cast<unsigned>(min(bytes - at, static_cast<long long>(kBytes)));
        full_[stores_ % ring.pieces].wait(stores_ / ring.pieces & 1);
        hopper::store_bytes(static_cast<char*>(to) + at, piece(stores_++), size);
        hopper::commit_stores();
      }
    }
    hopper::wait_stores<0>();
    hopper::publish_global();
  }

 private:
  __device__ __forceinline__ unsigned char* piece(unsigned index) const {
    return pieces_ + index % ring.pieces * ring.piece_bytes;
  }

  unsigned char* pieces_;
  hopper::Barrier* full_;
  unsigned loads_ = 0, stores_ = 0;  // of all calls
};

}  // namespace kiln::templates
