// Part of gemm_tma.cuh: how a warp's sums become elements of C, from registers or through shared
// memory and TMA.
#pragma once

#include "../shared/gemm_epilogue.cuh"
#include "gemm_tma_parts.cuh"
#include "kiln/hopper.cuh"

namespace kiln::templates {

/// Where a warp finds what has been fetched for its sums: nowhere.
struct NothingFetched {
  __device__ __forceinline__ void load(unsigned (&)[4], int) const {}
};

/// What a warp makes of its sums, wherever they go.
template <GemmTma c, class T, bool batched, class Epilogue>
struct GemmTmaResults {
  static constexpr int kTiles = c.block_n / 8;

  const Epilogue& epilogue;
  const GemmShape<batched>& shape;
  unsigned char* staging;  // per warp

  /// The sum as it is stored, at a row and column of the product, or outside of it.
  template <class Sum>
  __device__ __forceinline__ float stored(const Sum& sum, int row, int column, int batch) const {
    const GemmOutput<batched, Epilogue> output{shape, epilogue, batch};
    return output.finished_near(sum, c.swap ? column : row, c.swap ? row : column);
  }
  /// A lane's part of 16 x 8 sums at (row, column): two rows, two columns each. `s`: float[4], or
  /// like it. `upper`, `lower`: what has been fetched for them.
  template <class Sums>
  __device__ __forceinline__ void pack(unsigned (&pairs)[2], const Sums& s, int row, int column,
                                       int batch, unsigned upper = 0, unsigned lower = 0) const {
    const GemmOutput<batched, Epilogue> output{shape, epilogue, batch};
    const int lane = static_cast<int>(threadIdx.x) % 32, of_row = lane / 4,
              of_column = lane % 4 * 2;
    const float2 fetched[2] = {unpack_pair(upper, GemmResult<T>{}),
                               unpack_pair(lower, GemmResult<T>{})};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float results[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * h + e;
        // Outside of C other elements are computed once more. n is a multiple of 8 where C has a
        // map, so that one comparison is enough for 8 columns of C.
        const auto along_n = [&](int eight, int within) {
          return c.store_tma ? min(eight, shape.n - 8) + within : min(eight + within, shape.n - 1);
        };
        if constexpr (c.swap)
          results[e] =
              output.finished(s[i], min(column + of_column + e, shape.m - 1),
                              along_n(row + 8 * h, of_row), e == 0 ? fetched[h].x : fetched[h].y);
        else
          results[e] =
              output.finished(s[i], min(row + 8 * h + of_row, shape.m - 1),
                              along_n(column, of_column + e), e == 0 ? fetched[h].x : fetched[h].y);
      }
      pairs[h] = pack_pair(results[0], results[1], GemmResult<T>{});
    }
  }

  /// Writes the warp's 16 rows from `row` on to its part of `staging`, a box of TMA's at a time:
  /// with swap 16 rows as they are stored, of all columns, else all rows of store_columns()
  /// columns. ready() is called before a box is written, and leave(box, its first column) behind
  /// that. A warp has kBuffers buffers for boxes, which take turns from `buffer` on. `s`:
  /// float[kTiles][4], or like it. fetched.load(four, j) loads what has been fetched for the tiles
  /// j and j + 1: rows 0 to 7 and 8 to 15 of each.
  template <int kBuffers = 2, class Sums, class Ready, class Leave, class Fetched = NothingFetched>
  __device__ __forceinline__ void stage_rows(const Sums& s, int row, int column, int batch,
                                             int& buffer, Ready ready, Leave leave,
                                             const Fetched& fetched = {}) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, q = lane / 8, r = lane % 8;
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32) - 4;
    if constexpr (c.swap) {
      unsigned char* const to = staging + warp * c.store_bytes();
      ready();
#pragma unroll
      for (int j = 0; j + 1 < kTiles; j += 2) {
        unsigned pairs[2][2], four[4] = {};
        fetched.load(four, j);
        pack(pairs[0], s[j], row, column + j * 8, batch, four[0], four[1]);
        pack(pairs[1], s[j + 1], row, column + j * 8 + 8, batch, four[2], four[3]);
        const unsigned matrices[4] = {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]};
        hopper::store_matrices<true>(to + swizzled<32>((j + q / 2) * 8 + r, q % 2), matrices);
      }
      if constexpr (kTiles % 2 != 0) {
        unsigned pairs[2], four[4] = {};
        fetched.load(four, kTiles - 1);
        pack(pairs, s[kTiles - 1], row, column + kTiles * 8 - 8, batch, four[0], four[1]);
        hopper::store_matrices<true>(to + swizzled<32>((kTiles - 1) * 8 + r, q % 2), pairs);
      }
      leave(to, column);
    } else {
      constexpr int kColumns = c.store_columns(), kSpan = c.store_span();
#pragma unroll
      for (int chunk = 0; chunk < c.block_n / kColumns; ++chunk) {
        unsigned char* const to = staging + (warp * kBuffers + buffer) * c.store_bytes();
        if constexpr (kBuffers == 2)
          buffer ^= 1;
        else
          ++buffer;
        // The compiler cannot see through it, and so does not keep for all chunks at once what an
        // epilogue makes of columns.
        const int first = hopper::uniform(column + chunk * kColumns);
        ready();
#pragma unroll
        for (int j = 0; j < kColumns / 8; j += 2) {
          const int tile = chunk * (kColumns / 8) + j;
          unsigned pairs[2][2], four[4] = {};
          fetched.load(four, tile);
          pack(pairs[0], s[tile], row, first + j * 8, batch, four[0], four[1]);
          pack(pairs[1], s[tile + 1], row, first + j * 8 + 8, batch, four[2], four[3]);
          const unsigned matrices[4] = {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]};
          hopper::store_matrices(to + swizzled<kSpan>(q % 2 * 8 + r, j + q / 2), matrices);
        }
        leave(to, first);
      }
    }
  }
};

/// `out`: a map with store_tma, else a pointer.
template <GemmTma c, class T, bool batched, class Epilogue>
struct GemmTmaOutput : GemmTmaResults<c, T, batched, Epilogue> {
  using Results = GemmTmaResults<c, T, batched, Epilogue>;
  using Results::epilogue, Results::shape, Results::pack;
  static constexpr int kTiles = Results::kTiles;

  const hopper::Argument<c.store_tma, GemmResult<T>*>& out;

  /// Stores the warp's 16 x 8 sums at (row, column) from registers.
  __device__ __forceinline__ void store_direct(const float (&s)[4], int row, int column,
                                               int batch) const {
    if constexpr (!c.store_tma) {
      unsigned pairs[2];
      pack(pairs, s, row, column, batch);
      const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // A lane's pair are neighbours along n.
        const int i = c.swap ? column + lane / 4 : row + 8 * h + lane / 4;
        const int j = c.swap ? row + 8 * h + lane % 4 * 2 : column + lane % 4 * 2;
        store_pair(c.swap ? hopper::transpose_matrix(pairs[h]) : pairs[h], i, j, batch);
      }
    }
  }
  /// Two neighbours along n, as far as they are in C.
  __device__ __forceinline__ void store_pair(unsigned pair, int i, int j, int batch) const {
    if (i >= shape.m || j >= shape.n) return;
    GemmResult<T>* const to =
        out + GemmOutput<batched, Epilogue>{shape, epilogue, batch}.element(i, j);
    if (j + 1 < shape.n && aligned(4, to)) {
      *reinterpret_cast<unsigned*>(to) = pair;
    } else {
      auto* const halves = reinterpret_cast<unsigned short*>(to);
      halves[0] = static_cast<unsigned short>(pair);
      if (j + 1 < shape.n) halves[1] = static_cast<unsigned short>(pair >> 16);
    }
  }

  /// Stores the warp's 16 rows from `row` on through shared memory. `fetched`: see stage_rows().
  template <class Sums, class Fetched = NothingFetched>
  __device__ __forceinline__ void store_rows(const Sums& s, int row, int column, int batch,
                                             int& buffer, const Fetched& fetched = {}) const {
    if constexpr (c.store_tma) {
      Results::stage_rows(
          s, row, column, batch, buffer,
          [] {
            if (hopper::elect()) hopper::wait_stores_read<(c.swap ? 0 : 1)>();
            __syncwarp();
          },
          [&](const unsigned char* from, int first) {
            hopper::publish_shared();
            __syncwarp();
            if (hopper::elect()) {
              if constexpr (c.swap)
                store_box(from, row, first, batch);
              else
                store_box(from, first, row, batch);
            }
          },
          fetched);
    }
  }

  __device__ __forceinline__ void prefetch() const {
    if constexpr (c.store_tma) hopper::prefetch_map(out);
  }

 private:
  __device__ __forceinline__ void store_box(const void* from, int x, int y, int batch) const {
    if constexpr (batched)
      hopper::store_tile(out, from, x, y, batch);
    else
      hopper::store_tile(out, from, x, y);
    hopper::commit_stores();
  }
};

}  // namespace kiln::templates
