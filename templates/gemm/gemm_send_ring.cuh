// Part of gemm_all_gather_tma.cuh: a block's part of the rows leaves by bulk copies through shared
// memory. Few bytes in flight from each multiprocessor fill the link that way, where stores of a
// few warps would not (https://arxiv.org/abs/2511.13940).
#pragma once

#include "gemm_all_gather.hpp"
#include "kiln/hopper.cuh"

namespace kiln::templates {

/// Used by one thread of the block, but for its construction.
class BlockSender {
 public:
  /// `shared`: SendRing::kBytes bytes of the block, at a multiple of 16.
  __device__ __forceinline__ explicit BlockSender(unsigned char* shared)
      : pieces_(shared),
        full_(reinterpret_cast<hopper::Barrier*>(shared +
                                                 SendRing::kPieces * SendRing::kPieceBytes)) {}
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < SendRing::kPieces; ++i) full_[i].init(1);
    hopper::publish_barriers();
  }
  /// Copies the block's part, every gridDim.x-th piece, of `bytes` contiguous bytes, and waits
  /// until it has arrived. All are multiples of 16.
  __device__ __forceinline__ void send(void* to, const void* from, long long bytes) {
    constexpr int kAhead = SendRing::kPieces / 2;  // loads before the store of a piece
    constexpr int kBytes = SendRing::kPieceBytes;
    const long long first = static_cast<long long>(blockIdx.x) * kBytes;
    const long long step = static_cast<long long>(gridDim.x) * kBytes;
    const int pieces = first < bytes ? static_cast<int>((bytes - first + step - 1) / step) : 0;
#pragma unroll 1
    for (int i = 0; i < pieces + kAhead; ++i) {
      if (i < pieces) {
        const long long at = first + i * step;
        const auto size = static_cast<unsigned>(min(bytes - at, static_cast<long long>(kBytes)));
        // What the piece had before has left, once all but the last kAhead - 1 stores have.
        hopper::wait_stores_read<kAhead - 1>();
        hopper::Barrier& full = full_[loads_ % SendRing::kPieces];
        full.arrive_expect(size);
        hopper::load_bytes(piece(loads_++), static_cast<const char*>(from) + at, size, full);
      }
      if (i >= kAhead) {
        const long long at = first + (i - kAhead) * step;
        const auto size = static_cast<unsigned>(min(bytes - at, static_cast<long long>(kBytes)));
        full_[stores_ % SendRing::kPieces].wait(stores_ / SendRing::kPieces & 1);
        hopper::store_bytes(static_cast<char*>(to) + at, piece(stores_++), size);
        hopper::commit_stores();
      }
    }
    hopper::wait_stores<0>();
    hopper::publish_global();
  }

 private:
  __device__ __forceinline__ unsigned char* piece(unsigned index) const {
    return pieces_ + index % SendRing::kPieces * SendRing::kPieceBytes;
  }

  unsigned char* pieces_;
  hopper::Barrier* full_;
  unsigned loads_ = 0, stores_ = 0;  // of all calls
};

}  // namespace kiln::templates
