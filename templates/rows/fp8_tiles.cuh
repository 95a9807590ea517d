// Tiles of rows that become 8-bit floats, a few accesses per thread: for quantize.hpp,
// quantize_blocks_masked.hpp and gated_fp8.hpp.
#pragma once

#include "float8.cuh"

namespace kiln::templates {

/// Whether both arrays begin at a multiple of an access.
template <RowConfig c, class T>
__device__ bool aligned_to_accesses(const T* x, const __nv_fp8_e4m3* q) {
  return misalignment<c.vector>(x) == 0 && misalignment<c.vector>(q) == 0;
}

/// The `N` elements from `address` on, of which `count` are there; zeros for the others.
template <int N, class T>
__device__ Pack<T, N> load_part(const T* address, int count, bool whole) {
  Pack<T, N> pack{};
  if (whole && count > 0) return load_pack<N>(address);
#pragma unroll
  for (int e = 0; e < N; ++e)
    if (e < count) pack.value[e] = address[e];
  return pack;
}

template <int N, class T>
__device__ void store_part(__nv_fp8_e4m3* address, const Pack<T, N>& x, float factor, int count,
                           bool whole) {
  if (whole && count > 0) return store_scaled(address, x, factor);
#pragma unroll
  for (int e = 0; e < N; ++e)
    if (e < count) store_scaled(address + e, Pack<T, 1>{{x.value[e]}}, factor);
}

struct LargestOfEach {
  template <int N>
  __device__ Statistics<N> operator()(const Statistics<N>& a, const Statistics<N>& b) const {
    Statistics<N> most;
#pragma unroll
    for (int i = 0; i < N; ++i) most.value[i] = fmaxf(a.value[i], b.value[i]);
    return most;
  }
};

/// The scales of consecutive rows, of which `count` are there.
template <int N>
__device__ void store_scales(float* address, const float (&scales)[N], long long count) {
  if (N % 4 == 0 && count >= N && misalignment<4>(address) == 0) {
    // The compiler would rather share the stores of the other way.
#pragma unroll
    for (int i = 0; i < N / 4 * 4; i += 4)
      __stcg(reinterpret_cast<float4*>(address + i),
             make_float4(scales[i], scales[i + 1], scales[i + 2], scales[i + 3]));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < count) address[i] = scales[i];
  }
}

/// A thread block's tile: c.kept rows by block * vector columns. Each thread has one access in each
/// row. `aligned`: the arrays' first elements are aligned to an access. `block`: the thread block's
/// number among those of the rows.
template <RowConfig c>
struct Fp8Tile {
  __device__ Fp8Tile(int rows_, int hidden_, bool aligned, unsigned block = blockIdx.x)
      : rows(rows_), hidden(hidden_) {
    const auto tiles = static_cast<unsigned>(column_tiles(c, hidden));
    const unsigned tile = block / tiles;
    first = static_cast<long long>(tile) * c.kept;
    h = static_cast<int>((block - tile * tiles) * (c.block * c.vector) + threadIdx.x * c.vector);
    here = hidden - h;
    whole = aligned && hidden % c.vector == 0;
  }
  template <class From>
  __device__ auto load(const From& from, int i) const {
    return from.template load<c.vector>(first + i, h, first + i < rows ? here : 0, whole);
  }
  template <class T>
  __device__ void store(__nv_fp8_e4m3* q, int i, const Pack<T, c.vector>& values,
                        float factor) const {
    if (first + i < rows) store_part(q + (first + i) * hidden + h, values, factor, here, whole);
  }

  int rows, hidden;
  long long first;  // row
  int h;            // first element of the access
  int here;         // its elements that are in the row, if positive
  bool whole;       // whether accesses are wide
};

/// What a tile loads and quantizes: x as it is.
template <class T>
struct PlainRows {
  const T* x;
  int hidden;

  template <int N>
  __device__ Pack<T, N> load(long long row, int h, int count, bool whole) const {
    return load_part<N>(x + row * hidden + h, count, whole);
  }
  template <int N>
  __device__ Pack<T, N> value(const Pack<T, N>& loaded) const {
    return loaded;
  }
};

/// The `block`-th piece of `elements` consecutive ones, c.kept accesses per thread.
template <RowConfig c, class T>
struct Fp8Piece {
  static constexpr int kStep = c.block * c.vector;

  __device__ Fp8Piece(const T* x, long long elements, long long block, bool aligned)
      : first(block * kStep * c.kept + threadIdx.x * c.vector),
        rest(elements - first),
        whole(aligned) {
#pragma unroll
    for (int i = 0; i < c.kept; ++i)
      kept[i] = load_part<c.vector>(x + first + i * kStep, here(i), full(i));
  }
  /// Elements of the i-th access that are there.
  __device__ int here(int i) const {
    const long long of_access = rest - i * kStep;
    return static_cast<int>(of_access < c.vector ? of_access > 0 ? of_access : 0 : c.vector);
  }
  __device__ bool full(int i) const { return whole && here(i) == c.vector; }
  __device__ float largest(float of) const {
#pragma unroll
    for (int i = 0; i < c.kept; ++i) of = largest_magnitude(kept[i], of);
    return of;
  }
  __device__ void store(__nv_fp8_e4m3* q, float factor) const {
#pragma unroll
    for (int i = 0; i < c.kept; ++i)
      store_part(q + first + i * kStep, kept[i], factor, here(i), full(i));
  }

  long long first, rest;  // elements
  bool whole;             // whether accesses are wide
  Pack<T, c.vector> kept[c.kept];
};

/// Quantizes a tile with a scale for each 128 elements of a row, `leading` scales for each 128
/// columns. `from` loads elements of a row and makes values of them.
template <RowConfig c, class T, class From>
__device__ void quantize_tile_by_blocks(__nv_fp8_e4m3* q, float* scales, long long leading,
                                        const Fp8Tile<c>& tile, const From& from) {
  check_row_config<c, T>();
  static_assert(c.vector >= 4, "vector: a block's 128 elements are those of one warp at most");
  // Step by step for all rows, so that none waits for another.
  decltype(tile.load(from, 0)) loaded[c.kept];
#pragma unroll
  for (int i = 0; i < c.kept; ++i) loaded[i] = tile.load(from, i);
  decltype(from.value(loaded[0])) kept[c.kept];
  Statistics<c.kept> most;
#pragma unroll
  for (int i = 0; i < c.kept; ++i) {
    kept[i] = from.value(loaded[i]);
    most.value[i] = largest_magnitude(kept[i], 0.0f);
  }
  most = over_lanes<kScaleBlock / c.vector>(most, LargestOfEach{});
  float scale[c.kept], factor[c.kept];
#pragma unroll
  for (int i = 0; i < c.kept; ++i) {
    const Fp8Scale of = fp8_scale_of(most.value[i]);
    scale[i] = of.scale;
    factor[i] = of.factor;
  }
  if (tile.h % kScaleBlock == 0 && tile.here > 0)
    store_scales(scales + tile.h / kScaleBlock * leading + tile.first, scale,
                 tile.rows - tile.first);
#pragma unroll
  for (int i = 0; i < c.kept; ++i) tile.store(q, i, kept[i], factor[i]);
}

}  // namespace kiln::templates
