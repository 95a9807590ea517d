// The shift body of gemm.hpp. Accesses of 16 bytes need addresses of multiples of 16, which the
// rows of an operand with an odd leading dimension do not have. So the pieces of 16 bytes that a
// row's slice lies in are copied as they are, and shifted on their way to the buffer that is
// multiplied.
#pragma once

#include "../device/mma.cuh"
#include "gemm_slices.cuh"

namespace kiln::templates {

/// Moves elements [shift, shift + 8) of the 16 that the words hold to their front; shift is 0 to 7.
__device__ inline void move_to_front(unsigned (&words)[8], int shift) {
  const bool by_four = (shift & 4) != 0, by_two = (shift & 2) != 0;
#pragma unroll
  for (int w = 0; w < 6; ++w) words[w] = by_four ? words[w + 2] : words[w];
#pragma unroll
  for (int w = 0; w < 5; ++w) words[w] = by_two ? words[w + 1] : words[w];
  const int bits = shift % 2 * 16;
#pragma unroll
  for (int w = 0; w < 4; ++w)
    words[w] = static_cast<unsigned>(
        (static_cast<unsigned long long>(words[w + 1]) << 32 | words[w]) >> bits);
}

/// Writes elements [shift, shift + 8) of the two pieces at `from` to `to`.
template <class T>
__device__ inline void copy_shifted(T* to, const T* from, int shift) {
  static_assert(sizeof(T) == 2, "T: 2-byte elements");
  unsigned words[8];
#ifdef KILN_HOST_TARGET
  __builtin_memcpy(words, from, sizeof words);
  move_to_front(words, shift);
  __builtin_memcpy(to, words, sizeof words / 2);
#else
  using Words = Pack<unsigned, 4>;
  const Words low = reinterpret_cast<const Words*>(from)[0],
              high = reinterpret_cast<const Words*>(from)[1];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = low.value[w];
    words[4 + w] = high.value[w];
  }
  move_to_front(words, shift);
  *reinterpret_cast<Words*>(to) = {{words[0], words[1], words[2], words[3]}};
#endif
}

/// A thread's part of the kRows rows of an operand's slice. Its pieces of a slice lie a multiple of
/// eight rows apart, so that all of them are shifted alike.
template <Gemm c, int kRows, class T>
class ShiftedRows {
 public:
  static constexpr int kPiece = 8;                   // elements of 16 bytes
  static constexpr int kPacks = c.block_k / kPiece;  // of a row, shifted
  static constexpr int kPieces = kPacks + 1;         // of a row, as it lies
  static constexpr int kElements = kRows * kPieces * kPiece;
  static constexpr int kStep = c.threads() / kPacks;  // rows between a thread's pieces
  static constexpr int kEach = (kRows + kStep - 1) / kStep;
  static constexpr int kLasts = (kRows + c.threads() - 1) / c.threads();
  static_assert(c.threads() % c.block_k == 0, "body shift: as many threads as slices have columns");

  __device__ ShiftedRows(const T* matrix, GemmStride leading, long long first, int rows, int k)
      : matrix_(matrix), leading_(leading), inside_(rows - first) {
    // The host's copies need no alignment, and must not read what is in front of the array.
    const int skew =
        kHostTarget
            ? 0
            : static_cast<int>(reinterpret_cast<unsigned long long>(matrix) % 16 / sizeof(T));
    unread_ = -skew;
    const auto begin_at = [&](int row, int q, int& shift, int& left) {
      shift =
          static_cast<int>((static_cast<unsigned>(first + row) * static_cast<unsigned>(leading) +
                            static_cast<unsigned>(skew)) %
                           kPiece);
      const int column = q * kPiece - shift;
      left = k - column;
      return (first + row) * leading + column;
    };
    own_ = begin_at(row(), thread() % kPacks, shift_, own_left_);
    last_ = begin_at(thread(), kPacks, last_shift_, last_left_);
  }

  /// Starts copying the pieces that hold elements [l, l + block_k) of the rows, up to their ends.
  template <class Copies>
  __device__ void copy(Copies& copies, T* to, int l) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = row() + i * kStep;
      if (kRows % kStep != 0 && r >= kRows) break;
      copy_piece(copies, to + (r * kPieces + thread() % kPacks) * kPiece, r,
                 own_ + i * kStep * leading_ + l, own_left_ - l);
    }
    if (last_shift_ == 0) return;  // nothing of the last piece is used
#pragma unroll
    for (int i = 0; i < kLasts; ++i) {
      const int r = thread() + i * c.threads();
      if (kRows % c.threads() != 0 && r >= kRows) break;
      copy_piece(copies, to + (r * kPieces + kPacks) * kPiece, r,
                 last_ + i * c.threads() * leading_ + l, last_left_ - l);
    }
  }

  /// From where copy() has put them to where they are multiplied.
  template <class Layout>
  __device__ void shift(T* to, const T* from) const {
    const int q = thread() % kPacks;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = row() + i * kStep;
      if (kRows % kStep != 0 && r >= kRows) break;
      copy_shifted(to + Layout::place(r, q * kPiece), from + (r * kPieces + q) * kPiece, shift_);
    }
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int row() { return thread() / kPacks; }
  /// `left`: elements from the piece's first to the row's end; zeros follow.
  template <class Copies>
  __device__ void copy_piece(Copies& copies, T* to, int row, long long at, int left) const {
    const int elements = row >= inside_ || left < 0 ? 0 : left < kPiece ? left : kPiece;
    copies.copy_some(to, matrix_ + (elements > 0 ? at : unread_), elements * int{sizeof(T)});
  }

  const T* matrix_;
  GemmStride leading_;
  long long inside_;      // rows
  long long own_, last_;  // where the thread's first pieces begin, for l = 0
  int unread_;            // an aligned place for copies of nothing
  int shift_, last_shift_, own_left_, last_left_;
};

/// As gemm_tile_by_slices.
template <Gemm c, class T, class Out, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_tile_by_shifts(Out* out, const T* a, const T* b,
                                                    const GemmShape<batched>& shape,
                                                    const Epilogue& epilogue, int batch,
                                                    long long row, long long column) {
  static_assert(c.stages >= 2, "body shift: at least 2 stages");
  using LayoutA = SliceLayout<c, c.block_m, false>;
  using LayoutB = SliceLayout<c, c.block_n, false>;
  using RowsA = ShiftedRows<c, c.block_m, T>;
  using RowsB = ShiftedRows<c, c.block_n, T>;

  extern __shared__ __align__(1024) unsigned char shared_memory[];
  T* const buffer = reinterpret_cast<T*>(shared_memory);  // what is multiplied
  T* const copied = buffer + LayoutA::kElements + LayoutB::kElements;
  const auto stage_of = [&](int slice) {
    return copied + slice % c.stages * (RowsA::kElements + RowsB::kElements);
  };
  AsyncCopies<16, RowsA::kEach + RowsA::kLasts + RowsB::kEach + RowsB::kLasts, c.stages> copies;

  if constexpr (batched) {
    a += batch * shape.stride_a;
    b += batch * shape.stride_b;
  }
  const RowsA rows_a(a, shape.lda, row, shape.m, shape.k);
  const RowsB rows_b(b, shape.ldb, column, shape.n, shape.k);
  const int slices = (shape.k + c.block_k - 1) / c.block_k;
  const auto copy_slice = [&](int slice) {
    if (slice < slices) {
      rows_a.copy(copies, stage_of(slice), slice * c.block_k);
      rows_b.copy(copies, stage_of(slice) + RowsA::kElements, slice * c.block_k);
    }
    copies.commit();  // also when empty: the count of groups is what wait() goes by
  };

  Body<c.body, c, T, LayoutA, LayoutB> body;
  for (int slice = 0; slice < c.ahead(); ++slice) copy_slice(slice);
#pragma unroll 1
  for (int slice = 0; slice < slices; ++slice) {
    copies.template wait<c.ahead() - 1>();
    __syncthreads();  // all threads' copies of this slice are there, and all have read the buffer
    copy_slice(slice + c.ahead());
    rows_a.template shift<LayoutA>(buffer, stage_of(slice));
    rows_b.template shift<LayoutB>(buffer + LayoutA::kElements, stage_of(slice) + RowsA::kElements);
    __syncthreads();
    body.multiply(buffer, buffer + LayoutA::kElements, nullptr, 0);
  }
  body.store(out, output_of(shape, ready(epilogue), batch), row, column);
}

}  // namespace kiln::templates
