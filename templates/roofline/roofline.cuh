// Device half of roofline.hpp.
#pragma once

#include "../device/elements.cuh"
#include "../device/mma.cuh"
#include "roofline.hpp"

namespace kiln::templates {

#ifdef KILN_HOST_TARGET

/// One access: SIMD registers on the host.
template <int N>
using Lanes = float __attribute__((ext_vector_type(N)));

template <int N>
__device__ inline void load_lanes(Lanes<N>& lanes, const float* address) {
  lanes = *reinterpret_cast<const Lanes<N>*>(address);
}
template <bool kStreaming, int N>
__device__ inline void store_lanes(float* address, const Lanes<N>& lanes) {
  if constexpr (kStreaming)
    __builtin_nontemporal_store(lanes, reinterpret_cast<Lanes<N>*>(address));
  else
    *reinterpret_cast<Lanes<N>*>(address) = lanes;
}
template <int N>
__device__ inline void step(Lanes<N>& x) {
  x = x * kFmaFactor + kFmaSummand;  // one instruction where the CPU has one
}

#else

template <int N>
using Lanes = Pack<float, N>;

template <int N>
__device__ inline void load_lanes(Lanes<N>& lanes, const float* address) {
  lanes = load_pack<N>(address);
}
template <bool kStreaming, int N>
__device__ inline void store_lanes(float* address, const Lanes<N>& lanes) {
  if constexpr (kStreaming && N == 4)
    __stcs(reinterpret_cast<float4*>(address),
           make_float4(lanes.value[0], lanes.value[1], lanes.value[2], lanes.value[3]));
  else
    store_pack(address, lanes);
}
template <int N>
__device__ inline void step(Lanes<N>& x) {
#pragma unroll
  for (int l = 0; l < N; ++l) x.value[l] = fmaf(x.value[l], kFmaFactor, kFmaSummand);
}

#endif

template <RooflineCopy c>
__global__ void __launch_bounds__(c.block)
    roofline_copy(float* out, const float* in, long long elements) {
  const int thread = static_cast<int>(threadIdx.x);
  const long long tile = static_cast<long long>(blockIdx.x) * c.tile();
  Lanes<c.vector> lanes[c.items];
  // Neighbouring threads take neighbouring accesses; on the host, where threads take turns, each
  // takes a run.
  const auto offset = [=](int i) {
    return (kHostTarget ? thread * c.items + i : i * c.block + thread) * c.vector;
  };
  if (tile + c.tile() <= elements) {
#pragma unroll
    for (int i = 0; i < c.items; ++i) load_lanes<c.vector>(lanes[i], in + tile + offset(i));
#pragma unroll
    for (int i = 0; i < c.items; ++i)
      store_lanes<c.streaming, c.vector>(out + tile + offset(i), lanes[i]);
  } else {
    for (long long i = tile + thread; i < elements; i += c.block) out[i] = in[i];
  }
  // Stores past a CPU's caches are not ordered by what ends the launch.
  if (kHostTarget && c.streaming && thread == c.block - 1) __threadfence();
}

template <RooflineFma c>
__global__ void __launch_bounds__(c.block)
    roofline_fma(float* out, const float* in, long long elements, int steps) {
  const int thread = static_cast<int>(threadIdx.x);
  const long long tile = static_cast<long long>(blockIdx.x) * c.tile();
  const auto offset = [=](int i) { return (i * c.block + thread) * c.vector; };
  if (tile + c.tile() <= elements) {
    Lanes<c.vector> x[c.chains];
#pragma unroll
    for (int i = 0; i < c.chains; ++i) load_lanes<c.vector>(x[i], in + tile + offset(i));
#pragma unroll 4
    for (int s = 0; s < steps; ++s) {
#pragma unroll
      for (int i = 0; i < c.chains; ++i) step<c.vector>(x[i]);
    }
#pragma unroll
    for (int i = 0; i < c.chains; ++i) store_lanes<false, c.vector>(out + tile + offset(i), x[i]);
  } else {
    for (long long i = tile + thread; i < elements; i += c.block) {
      float x = in[i];
      for (int s = 0; s < steps; ++s) x = fmaf(x, kFmaFactor, kFmaSummand);
      out[i] = x;
    }
  }
}

template <RooflineMma c>
__global__ void __launch_bounds__(c.block)
    roofline_mma(float* out, const __nv_bfloat16* a, const __nv_bfloat16* b, long long tiles,
                 int steps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const auto pair = [](const __nv_bfloat16* matrix, int row, int k) {
    return *reinterpret_cast<const unsigned*>(matrix + row * 16 + k);
  };
  const unsigned left[4] = {pair(a, g, 2 * t), pair(a, g + 8, 2 * t), pair(a, g, 2 * t + 8),
                            pair(a, g + 8, 2 * t + 8)};
  const unsigned right[2] = {pair(b, g, 2 * t), pair(b, g, 2 * t + 8)};
  float sums[c.tiles][4] = {};
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int i = 0; i < c.tiles; ++i) mma_m16n8k16<__nv_bfloat16>(sums[i], left, right);
  }
  const long long first = static_cast<long long>(blockIdx.x) * c.tile() + warp * c.tiles;
#pragma unroll
  for (int i = 0; i < c.tiles; ++i)
    if (first + i < tiles) {
      Pack<float, 4> sum;
#pragma unroll
      for (int e = 0; e < 4; ++e) sum.value[e] = sums[i][e];
      store_pack(out + (first + i) * 128 + 4 * lane, sum);
    }
}

}  // namespace kiln::templates
