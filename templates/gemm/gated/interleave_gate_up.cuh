// Device half of interleave_gate_up.hpp: a block copies a piece of one row of out.
#pragma once

#include "../../device/elements.cuh"
#include "interleave_gate_up.hpp"

namespace kiln::templates {

template <InterleaveGateUp c, class T>
__global__ void __launch_bounds__(c.threads())
    interleave_gate_up(T* out, const T* gate, const T* up, int n, int k) {
  static_assert(c.block >= 1 && c.block <= 1024, "block: 1 to 1024 threads");
  static_assert(c.items >= 1, "items: at least 1 element per thread");
  constexpr int kPack = pack_width<T>(c.items);
  const unsigned tiles = c.tiles(k);
  const unsigned row = blockIdx.x / tiles;
  const long long first = static_cast<long long>(blockIdx.x % tiles) * c.tile();
  const long long from_row = row / (2 * kGatedGroup) * kGatedGroup + row % kGatedGroup;
  const bool inside = from_row < n;
  const T* const from = (row % (2 * kGatedGroup) < kGatedGroup ? gate : up) + from_row * k;
  T* const to = out + static_cast<long long>(row) * k;
  const int thread = static_cast<int>(threadIdx.x);

  if (k % kPack == 0 && aligned(sizeof(T) * kPack, out, gate, up)) {
    using Packed = Pack<T, kPack>;
    Packed packs[c.items / kPack];
#pragma unroll
    for (int j = 0; j < c.items / kPack; ++j) {
      const long long l = first + (j * c.block + thread) * kPack;
      packs[j] = inside && l < k ? load_pack<kPack>(from + l) : Packed{};
    }
#pragma unroll
    for (int j = 0; j < c.items / kPack; ++j) {
      const long long l = first + (j * c.block + thread) * kPack;
      if (l < k) store_pack(to + l, packs[j]);
    }
  } else {
    for (int j = 0; j < c.items; ++j) {
      const long long l = first + j * c.block + thread;
      if (l < k) to[l] = inside ? from[l] : T{};
    }
  }
}

}  // namespace kiln::templates
