// What the bodies of a GEMM do where pairs of its columns become one of C in 8-bit floats
// (gemm_gated_fp8.hpp).
#pragma once

#include "../../device/e4m3.cuh"
#include "../shared/gemm_pairs.cuh"
#include "gemm_gated_fp8.hpp"

namespace kiln::templates {

using Fp8Result = __nv_fp8_e4m3;

__device__ __forceinline__ void store_fp8(Fp8Result* to, float value) {
  *reinterpret_cast<unsigned char*>(to) = static_cast<unsigned char>(e4m3_pair(value, 0.0f));
}

/// A lane's words of a quad's 4 x 4: word i becomes that of lane i, of the lane's place.
__device__ __forceinline__ void transpose_in_quad(unsigned (&words)[4]) {
  const unsigned lane = threadIdx.x % 4;
  const auto exchange = [&](unsigned& low, unsigned& high, unsigned apart) {
    const bool upper = (lane & apart) != 0;
    const unsigned got = __shfl_xor_sync(0xffffffffu, upper ? low : high, static_cast<int>(apart));
    (upper ? low : high) = got;
  };
  exchange(words[0], words[1], 1);
  exchange(words[2], words[3], 1);
  exchange(words[0], words[2], 2);
  exchange(words[1], words[3], 2);
}

/// Stores words of 4 elements from `column` on, as far as they are in C, which has no gaps.
template <int kWords>
__device__ __forceinline__ void store_fp8_words(Fp8Result* q, const unsigned (&words)[kWords],
                                                const GemmShape<false>& c, long long row,
                                                long long column) {
  if (row >= c.m || column >= c.n) return;
  unsigned char* const to = reinterpret_cast<unsigned char*>(q) + row * c.n + column;
  if (column + 4 * kWords <= c.n && aligned(4 * kWords, to)) {
    Pack<unsigned, kWords> pack;
#pragma unroll
    for (int w = 0; w < kWords; ++w) pack.value[w] = words[w];
    store_pack(reinterpret_cast<unsigned*>(to), pack);
    return;
  }
  const int count = static_cast<int>(c.n - column < 4 * kWords ? c.n - column : 4 * kWords);
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    unsigned left = words[w];
#pragma unroll 1
    for (int b = 4 * w; b < 4 * w + 4 && b < count; ++b, left >>= 8)
      to[b] = static_cast<unsigned char>(left);
  }
}

/// Two neighbours along C's columns.
__device__ __forceinline__ void store_fp8_pair(Fp8Result* q, unsigned pair,
                                               const GemmShape<false>& c, long long row,
                                               long long column) {
  if (row >= c.m || column >= c.n) return;
  unsigned char* const to = reinterpret_cast<unsigned char*>(q) + row * c.n + column;
  if (column + 1 < c.n && aligned(2, to)) {
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(pair);
  } else {
    to[0] = static_cast<unsigned char>(pair);
    if (column + 1 < c.n) to[1] = static_cast<unsigned char>(pair >> 8);
  }
}

/// Stores `values(j, e)`, times the factor, of a quad's row: a lane has two neighbours in each 8
/// columns from `column` on. Lanes exchange them, so that each stores up to 16 bytes. All lanes of
/// a warp call it together.
template <int kTiles, class Values>
__device__ __forceinline__ void store_fp8_row(Fp8Result* q, Values values, float factor,
                                              const GemmShape<false>& c, long long row,
                                              long long column) {
  const unsigned lane = threadIdx.x % 4;
  const auto pair = [&](int j) -> unsigned {
    return e4m3_pair(values(j, 0) * factor, values(j, 1) * factor);
  };
  constexpr unsigned kLow = 0xffff, kHigh = 0xffff0000u;
  constexpr int kBy16 = kTiles / 8 * 8, kBy8 = kTiles / 4 * 4;  // tiles until there
#pragma unroll
  for (int j = 0; j < kBy16; j += 8) {
    unsigned of[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) of[i] = pair(j + 2 * i) | pair(j + 2 * i + 1) << 16;
    transpose_in_quad(of);
    const unsigned words[4] = {(of[0] & kLow) | of[1] << 16, (of[2] & kLow) | of[3] << 16,
                               of[0] >> 16 | (of[1] & kHigh), of[2] >> 16 | (of[3] & kHigh)};
    store_fp8_words(q, words, c, row, column + j * 8 + lane * 16);
  }
#pragma unroll
  for (int j = kBy16; j < kBy8; j += 4) {
    unsigned of[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) of[i] = pair(j + i);
    transpose_in_quad(of);
    const unsigned words[2] = {of[0] | of[1] << 16, of[2] | of[3] << 16};
    store_fp8_words(q, words, c, row, column + j * 8 + lane * 8);
  }
#pragma unroll
  for (int j = kBy8; j < kTiles; ++j) store_fp8_pair(q, pair(j), c, row, column + j * 8 + lane * 2);
}

/// A thread's products of pairs of sums in its rows of a tile, as gated_results has them, and their
/// largest magnitudes in the row and in that 8 below: NaNs, and columns outside of C, do not count.
template <int kTiles, class Epilogue>
__device__ __forceinline__ void gated_magnitudes(float (&results)[kTiles / 2][4], float (&most)[2],
                                                 const float (&sums)[kTiles][4],
                                                 const GemmOutput<false, Epilogue>& c,
                                                 long long row, long long column) {
  const GatedSums<kTiles> pairs{sums};
  most[0] = most[1] = 0.0f;
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j) {
    // This keeps the compiler from loading what the epilogue needs for all columns at once.
    if (!kHostTarget && j > 0 && j % 4 == 0) __syncwarp();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = static_cast<int>(column) + j * 8 + e % 2;
      results[j][e] = c.finished_near(pairs[j][e], static_cast<int>(row) + e / 2 * 8, at);
      if (at < c.shape.n) most[e / 2] = fmaxf(most[e / 2], fabsf(results[j][e]));
    }
  }
#pragma unroll
  for (int apart = 1; apart <= 2; apart *= 2)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], apart));
}

/// The largest magnitude in each row of a block's tile, in shared memory that no thread of the
/// block reads any more when all call begin().
template <int rows, int threads>
struct RowMaxima {
  unsigned* of_rows;  // floats that are not negative are in the order of their bits

  __device__ __forceinline__ explicit RowMaxima(void* shared)
      : of_rows(static_cast<unsigned*>(shared)) {}
  __device__ __forceinline__ void begin() const {
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x); row < rows; row += threads) of_rows[row] = 0;
    __syncthreads();
  }
  __device__ __forceinline__ void add(int row, float most) const {
    atomicMax(of_rows + row, __float_as_uint(most));
  }
  /// All threads have added theirs: writes the scales of the rows of C from `first` on.
  template <class Epilogue>
  __device__ __forceinline__ void end(const Epilogue& epilogue, const GemmShape<false>& shape,
                                      long long first, long long column) const {
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x); row < rows; row += threads)
      epilogue.store_scale(at(row).scale, first + row, column, shape);
  }
  __device__ __forceinline__ Fp8Scale at(int row) const {
    return fp8_scale_of(__uint_as_float(of_rows[row]));
  }
};

/// Where the factor of all elements comes from: memory, read anew each time, or a register.
struct ScaleInMemory {
  const float* scale;
  __device__ __forceinline__ float factor() const { return fp8_factor_of(*scale); }
};
struct KnownFactor {
  float known;
  __device__ __forceinline__ float factor() const { return known; }
};

/// The epilogue of a gated product, `Product`, with one scale.
template <class Product, class Scale = ScaleInMemory>
struct GatedFp8Tensor : Product {
  static constexpr bool kQuantizes = true;
  Scale scale;

  __device__ __forceinline__ GatedFp8Tensor(const Product& product, Scale of)
      : Product(product), scale(of) {}
  __device__ __forceinline__ float factor() const { return scale.factor(); }
  __device__ __forceinline__ GatedFp8Tensor<Product, KnownFactor> ready() const {
    return {*this, KnownFactor{factor()}};
  }
  __device__ __forceinline__ void store(Fp8Result* to, float result) const {
    store_fp8(to, result * factor());
  }
  /// Stores the sums of 16 rows on tensor cores; `column`: C's first.
  template <int kTiles>
  __device__ __forceinline__ void store_sums(const float (&sums)[kTiles][4], Fp8Result* q,
                                             const GemmShape<false>& c, long long row,
                                             long long column) const {
    const float by = factor();
    const GatedSums<kTiles> pairs{sums};
    const GemmOutput<false, GatedFp8Tensor> output{c, *this, 0};
    const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      store_fp8_row<kTiles / 2>(
          q,
          [&](int j, int e) {
            return output.finished_near(pairs[j][2 * h + e], static_cast<int>(row) + 8 * h,
                                        static_cast<int>(column) + j * 8 + lane * 2 + e);
          },
          by, c, row + 8 * h, column);
  }
};

/// And with scales of blocks, which it writes.
template <class Product>
struct GatedFp8Blocks : Product {
  static constexpr bool kQuantizes = true, kScalesBlocks = true;
  float* scales;

  __device__ __forceinline__ GatedFp8Blocks(const Product& product, float* to)
      : Product(product), scales(to) {}
  /// Stores the scale of a block; `row`: of the product, `column`: of C.
  __device__ __forceinline__ void store_scale(float scale, long long row, long long column,
                                              const GemmShape<false>& shape) const {
    if (row < shape.m && column < shape.ldc)
      scales[column / kScaleBlock * scale_leading(shape.m) + row] = scale;
  }

  /// For a block whose threads have the sums `sum(i, j)` of the body simt. `column`: C's first.
  template <Gemm c, class Sum>
  __device__ void store_units(Fp8Result* q, const GemmShape<false>& shape, long long row,
                              long long column, int unit_m, int unit_n, void* shared,
                              Sum sum) const {
    const RowMaxima<c.block_m, c.threads()> maxima(shared);
    maxima.begin();
    const long long n = shape.ldc, first = column + unit_n;
    const GemmShape<false> c_shape = gated_output(shape);
    const GemmOutput<false, GatedFp8Blocks> output{c_shape, *this, 0};
    float results[c.tile_m][c.tile_n / 2];
#pragma unroll
    for (int i = 0; i < c.tile_m; ++i) {
      float most = 0.0f;
#pragma unroll
      for (int j = 0; j < c.tile_n / 2; ++j) {
        results[i][j] = output.finished_near(GatedSum{sum(i, j), sum(i, j + c.tile_n / 2)},
                                             static_cast<int>(row) + unit_m + i * c.units_m(),
                                             static_cast<int>(first) + j * c.units_n());
        if (first + j * c.units_n() < n) most = fmaxf(most, fabsf(results[i][j]));
      }
      maxima.add(unit_m + i * c.units_m(), most);
    }
    maxima.end(*this, shape, row, column);
#pragma unroll
    for (int i = 0; i < c.tile_m; ++i) {
      const int in_block = unit_m + i * c.units_m();
      if (row + in_block >= shape.m) continue;
      const float factor = maxima.at(in_block).factor;
      Fp8Result* const to = q + (row + in_block) * n + first;
#pragma unroll
      for (int j = 0; j < c.tile_n / 2; ++j)
        if (first + j * c.units_n() < n) store_fp8(to + j * c.units_n(), results[i][j] * factor);
    }
  }

  /// For a block whose warps have multiplied tiles of 16 rows, `apart` rows from each other, on
  /// tensor cores: the thread's first row is `in_block`, and `column` C's first of the warp.
  template <Gemm c, int apart, int kRowTiles, int kTiles>
  __device__ void store_tiles(const float (&sums)[kRowTiles][kTiles][4], Fp8Result* q,
                              const GemmShape<false>& shape, long long row, int in_block,
                              long long column, void* shared) const {
    const RowMaxima<c.block_m, c.threads()> maxima(shared);
    maxima.begin();
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const GemmShape<false> c_shape = gated_output(shape);
    const GemmOutput<false, GatedFp8Blocks> output{c_shape, *this, 0};
    float results[kRowTiles][kTiles / 2][4];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      float most[2];
      gated_magnitudes(results[i], most, sums[i], output, row + in_block + i * apart,
                       column + lane * 2);
      if (lane == 0)
#pragma unroll
        for (int h = 0; h < 2; ++h) maxima.add(in_block + i * apart + 8 * h, most[h]);
    }
    maxima.end(*this, shape, row, column / kScaleBlock * kScaleBlock);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int of_row = in_block + i * apart + 8 * h;
        store_fp8_row<kTiles / 2>(
            q, [&](int j, int e) { return results[i][j][2 * h + e]; }, maxima.at(of_row).factor,
            c_shape, row + of_row, column);
      }
  }
};

}  // namespace kiln::templates
