// Device half of gated_fp8.hpp.
#pragma once

#include "../device/activated.cuh"
#include "fp8_tiles.cuh"
#include "gated_fp8.hpp"

namespace kiln::templates {

/// Gate and up stay packed until their product is computed: as floats, those of all of a thread's
/// accesses would take too many registers.
template <class Activation, int N, class T>
__device__ Pack<float, N> gated(Pack<T, N> gate, Pack<T, N> up) {
  stay_packed(gate);
  stay_packed(up);
  Pack<float, N> product;
#pragma unroll
  for (int e = 0; e < N; ++e)
    product.value[e] = gated_product<Activation>(gate.value[e], up.value[e]);
  return product;
}

/// What a tile loads and quantizes: gate and up, and their products.
template <class T, class Activation>
struct GatedRows {
  const T* x;
  int hidden;

  template <int N>
  struct Both {
    Pack<T, N> gate, up;
  };
  template <int N>
  __device__ Both<N> load(long long row, int h, int count, bool whole) const {
    const T* const gate = x + row * 2 * hidden + h;
    return {load_part<N>(gate, count, whole), load_part<N>(gate + hidden, count, whole)};
  }
  template <int N>
  __device__ Pack<float, N> value(const Both<N>& both) const {
    return gated<Activation>(both.gate, both.up);
  }
};

/// A row in aligned accesses of `kVector` elements, which divide it. The products of a thread's
/// first `kKept` accesses stay in registers as floats; the others are computed twice.
template <RowConfig c, int kVector, int kKept, class Activation, class T>
__device__ void quantize_gated_row(__nv_fp8_e4m3* q, float* scale_of_row, const T* gate,
                                   const T* up, int hidden, unsigned& turn) {
  constexpr unsigned kStep = c.threads_per_row() * kVector;
  const unsigned first = thread_of_row<c>() * kVector, end = static_cast<unsigned>(hidden);
  const auto place = [=](int i) { return first + static_cast<unsigned>(i) * kStep; };
  const auto product = [&](unsigned h) {
    return gated<Activation>(load_pack<kVector>(gate + h), load_pack<kVector>(up + h));
  };

  constexpr int kHeld = kKept > 0 ? kKept : 1;
  Pack<T, kVector> gates[kHeld], ups[kHeld];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (place(i) < end) {
      gates[i] = load_pack<kVector>(gate + place(i));
      ups[i] = load_pack<kVector>(up + place(i));
    }
  float most = 0.0f;
  Pack<float, kVector> kept[kHeld];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (place(i) < end) {
      kept[i] = gated<Activation>(gates[i], ups[i]);
      most = largest_magnitude(kept[i], most);
    }
  for (unsigned h = place(kKept); h < end; h += kStep) most = largest_magnitude(product(h), most);

  const Fp8Scale scale = fp8_scale_of(largest_over_row<c>(most, turn));
  if (thread_of_row<c>() == 0) *scale_of_row = scale.scale;
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (place(i) < end) store_scaled(q + place(i), kept[i], scale.factor);
  for (unsigned h = place(kKept); h < end; h += kStep)
    store_scaled(q + h, product(h), scale.factor);
}

template <RowConfig c, class T, class Activation>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    gated_fp8_rows(__nv_fp8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  check_row_config<c, T>();
  static_assert(c.cluster == 1, "cluster: a row is one block's");
  unsigned turn = 0;
  const bool whole = hidden % c.vector == 0 && aligned_to_accesses<c>(x, q);
  each_row<c>(rows, [&](long long r) {
    __nv_fp8_e4m3* const to = q + r * hidden;
    const T* const gate = x + r * 2 * hidden;
    const T* const up = gate + hidden;
    if (whole)
      quantize_gated_row<c, c.vector, c.kept, Activation>(to, scales + r, gate, up, hidden, turn);
    else
      quantize_gated_row<c, 1, 0, Activation>(to, scales + r, gate, up, hidden, turn);
  });
}

template <RowConfig c, class T, class Activation>
__global__ void __launch_bounds__(c.threads())
    gated_fp8_blocks(__nv_fp8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  const Fp8Tile<c> tile(rows, hidden, aligned_to_accesses<c>(x, q));
  quantize_tile_by_blocks<c, T>(q, scales, scale_leading(rows), tile,
                                GatedRows<T, Activation>{x, hidden});
}

template <RowConfig c, class T, class Activation>
__global__ void __launch_bounds__(c.threads())
    gated_fp8_tensor(__nv_fp8_e4m3* q, const T* x, const float* scale, int rows, int hidden) {
  check_row_config<c, T>();
  const Fp8Tile<c> tile(rows, hidden, aligned_to_accesses<c>(x, q));
  const GatedRows<T, Activation> from{x, hidden};
  const float factor = fp8_factor_of(*scale);
  typename GatedRows<T, Activation>::template Both<c.vector> kept[c.kept];
#pragma unroll
  for (int i = 0; i < c.kept; ++i) kept[i] = tile.load(from, i);
#pragma unroll
  for (int i = 0; i < c.kept; ++i) tile.store(q, i, from.value(kept[i]), factor);
}

}  // namespace kiln::templates
