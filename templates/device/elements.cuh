// What the kernels share: element types as float, and accesses of several elements at once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct __nv_fp8_e4m3;  // float8.cuh

namespace kiln::templates {

#ifdef KILN_HOST_TARGET
inline constexpr bool kHostTarget = true;
#else
inline constexpr bool kHostTarget = false;
#endif

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

/// 1 / sqrt(a mean of squares + eps), which counts as 2^-126 at least: zeros times it are zeros,
/// without an eps, too. A NaN stays one.
__device__ inline float norm_scale(float square) {
  constexpr float kLeast = 1.17549435e-38f;
  return rsqrtf(square < kLeast ? kLeast : square);
}

/// Rounds to nearest even.
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <class T>
inline constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<__half> = true;
template <class T>
inline constexpr bool kIsBfloat16 = false;
template <>
inline constexpr bool kIsBfloat16<__nv_bfloat16> = true;
template <class T>
inline constexpr bool kIsE4m3 = false;
template <>
inline constexpr bool kIsE4m3<__nv_fp8_e4m3> = true;

/// `N` elements moved by one access; its address is a multiple of its size in bytes.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  static_assert((N & (N - 1)) == 0, "a pack holds a power of two of elements");
  T value[N];
};

template <int N, class T>
__device__ inline Pack<T, N> load_pack(const T* address) {
  return *reinterpret_cast<const Pack<T, N>*>(address);
}

template <int N, class T>
__device__ inline void store_pack(T* address, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(address) = pack;
}

/// Elements of two bytes stay packed between the passes: the compiler would keep them as floats.
/// The assembler may do so again, but not if they are joined with a `zero` that it cannot know.
template <class T, int N>
__device__ void stay_packed(Pack<T, N>& pack, unsigned zero = 0) {
#ifndef KILN_HOST_TARGET
  if constexpr (sizeof(T) == 2 && N > 1) {
    auto& words = reinterpret_cast<unsigned(&)[N / 2]>(pack);
#pragma unroll
    for (int w = 0; w < N / 2; ++w) {
      words[w] |= zero;
      asm volatile("" : "+r"(words[w]));
    }
  }
#endif
}

template <int N, class T>
__device__ float sum_of_squares(const Pack<T, N>& x) {
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < N; ++e) sum += to_float(x.value[e]) * to_float(x.value[e]);
  return sum;
}

/// True when each pointer is a multiple of `bytes`, a power of two.
template <class... T>
__device__ inline bool aligned(unsigned bytes, const T*... pointers) {
  return ((reinterpret_cast<unsigned long long>(pointers) | ...) & (bytes - 1)) == 0;
}

/// The largest power of two that divides `items`, at most as many elements as 16 bytes hold.
template <class T>
constexpr int pack_width(int items) {
  int width = 1;
  while (items % (2 * width) == 0 && 2 * width * sizeof(T) <= 16) width *= 2;
  return width;
}

}  // namespace kiln::templates
