// Device half of gated_activation.hpp: a block computes a piece of one row of out.
#pragma once

#include "../device/activated.cuh"
#include "../device/elements.cuh"
#include "gated_activation.hpp"

namespace kiln::templates {

template <GatedActivation c, class T, class Activation>
__global__ void __launch_bounds__(c.threads())
    gated_activation(T* out, const T* x, int rows, int hidden) {
  static_assert(c.block >= 1 && c.block <= 1024, "block: 1 to 1024 threads");
  static_assert(c.items >= 1, "items: at least 1 element per thread");
  // On the host the loop over the block's threads is what gets vectorised: one element each.
  constexpr int kWidth = kHostTarget ? 1 : pack_width<T>(c.items);
  const auto product = [](T gate, T up) {
    return from_float<T>(gated_product<Activation>(gate, up));
  };
  const unsigned tiles = c.tiles(hidden);
  const long long row = blockIdx.x / tiles;
  const int first = static_cast<int>(blockIdx.x % tiles) * c.tile();
  const T* const gate = x + row * 2 * hidden;
  const T* const up = gate + hidden;
  T* const to = out + row * hidden;
  const int thread = static_cast<int>(threadIdx.x);

  if (hidden % kWidth == 0 && aligned(sizeof(T) * kWidth, out, x)) {
    Pack<T, kWidth> a[c.items / kWidth], b[c.items / kWidth];
#pragma unroll
    for (int j = 0; j < c.items / kWidth; ++j) {
      const int h = first + (j * c.block + thread) * kWidth;
      if (h < hidden) {
        a[j] = load_pack<kWidth>(gate + h);
        b[j] = load_pack<kWidth>(up + h);
      }
    }
#pragma unroll
    for (int j = 0; j < c.items / kWidth; ++j) {
      const int h = first + (j * c.block + thread) * kWidth;
      if (h >= hidden) continue;
      Pack<T, kWidth> result;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) result.value[e] = product(a[j].value[e], b[j].value[e]);
      store_pack(to + h, result);
    }
  } else {
    for (int j = 0; j < c.items; ++j) {
      const int h = first + j * c.block + thread;
      if (h < hidden) to[h] = product(gate[h], up[h]);
    }
  }
}

}  // namespace kiln::templates
