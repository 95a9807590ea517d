// Dot products along k, `N` products per step: what the simt body multiplies with.
#pragma once

#include "elements.cuh"

namespace kiln::templates {

#ifdef KILN_HOST_TARGET

/// SIMD registers. The sum keeps one partial sum per lane, so that nothing crosses lanes inside the
/// loop over k.
template <int N>
using Floats = float __attribute__((ext_vector_type(N)));
template <int N>
using Sum = Floats<N>;

// By reference: a vector returned by value would depend on the CPU features of the caller.
template <int N, class T>
__device__ inline void load_floats(Floats<N>& floats, const T* address) {
  if constexpr (kIsBfloat16<T>) {  // a bfloat16 is the upper half of a float
    using Halves = unsigned short __attribute__((ext_vector_type(N)));
    using Words = unsigned __attribute__((ext_vector_type(N)));
    Halves halves;
    __builtin_memcpy(&halves, address, sizeof(T) * N);
    floats = __builtin_bit_cast(Floats<N>, __builtin_convertvector(halves, Words) << 16);
  } else if constexpr (kIsHalf<T>) {
    using Halves = _Float16 __attribute__((ext_vector_type(N)));
    Halves halves;
    __builtin_memcpy(&halves, address, sizeof(T) * N);
    floats = __builtin_convertvector(halves, Floats<N>);
  } else if constexpr (kIsE4m3<T>) {  // to_float() of each
    using Bytes = unsigned char __attribute__((ext_vector_type(N)));
    using Words = unsigned __attribute__((ext_vector_type(N)));
    Bytes bytes;
    __builtin_memcpy(&bytes, address, N);
    const Words bits = __builtin_convertvector(bytes, Words), rest = bits & 0x7f;
    const Floats<N> magnitudes = __builtin_bit_cast(Floats<N>, rest << 20) * 0x1p120f;
    const Words words = rest == 0x7f ? Words(0x7fc00000u) : __builtin_bit_cast(Words, magnitudes);
    floats = __builtin_bit_cast(Floats<N>, (bits << 24 & 0x80000000u) | words);
  } else {
    __builtin_memcpy(&floats, address, sizeof(T) * N);
  }
}

template <int N>
__device__ inline void multiply_add(Sum<N>& sum, const Floats<N>& a, const Floats<N>& b) {
  sum += a * b;
}

template <int N>
__device__ inline float total(const Sum<N>& sum) {
  float total = 0.0f;
  for (int l = 0; l < N; ++l) total += sum[l];
  return total;
}

#else

template <int N>
struct Floats {
  float value[N];
};
template <int N>
using Sum = float;

template <int N, class T>
__device__ inline void load_floats(Floats<N>& floats, const T* address) {
  const Pack<T, N> pack = load_pack<N>(address);
#pragma unroll
  for (int l = 0; l < N; ++l) floats.value[l] = to_float(pack.value[l]);
}

template <int N>
__device__ inline void multiply_add(float& sum, const Floats<N>& a, const Floats<N>& b) {
#pragma unroll
  for (int l = 0; l < N; ++l) sum = fmaf(a.value[l], b.value[l], sum);
}

template <int N>
__device__ inline float total(float sum) {
  return sum;
}

#endif

}  // namespace kiln::templates
