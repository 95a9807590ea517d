// The largest logit of a row and the sum of exponentials: what softmax and cross-entropy need.
#pragma once

#include "row_kernel.cuh"

namespace kiln::templates {

/// e^x for x <= 0, within 1e-5 of its value; 0 where that is less than the least normal float.
__device__ inline float exp_of(float x) {
#ifdef KILN_HOST_TARGET
  return expf(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
#endif
}

/// {m, sum of exp(x - m)}. m is never -infinity: of a row of those the sum is 0.
using MaxAndSum = Statistics<2>;
inline constexpr float kLeast = -3.4028234663852886e38f;

struct JoinMaxAndSum {
  __device__ MaxAndSum operator()(const MaxAndSum& a, const MaxAndSum& b) const {
    const float max = fmaxf(a.value[0], b.value[0]);
    return {{max, a.value[1] * exp_of(a.value[0] - max) + b.value[1] * exp_of(b.value[0] - max)}};
  }
};

template <int N, class T>
__device__ float largest(const Pack<T, N>& x, float of) {
#pragma unroll
  for (int e = 0; e < N; ++e) of = fmaxf(of, to_float(x.value[e]));
  return of;
}

template <int N, class T>
__device__ float sum_of_exp(const Pack<T, N>& x, float max) {
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < N; ++e) sum += exp_of(to_float(x.value[e]) - max);
  return sum;
}

template <RowConfig c, int kVector, int kKept, class T, bool kWhole>
__device__ MaxAndSum max_and_sum(Row<c, kVector, kKept, T, kWhole>& row, unsigned& turn) {
  MaxAndSum s{{kLeast, 0.0f}};
  float& max = s.value[0];
  float& sum = s.value[1];
  if constexpr (c.online) {
    row.each([&](const auto& x, unsigned) {
      const float before = max;
      max = largest(x, max);
      sum = sum * exp_of(before - max) + sum_of_exp(x, max);
    });
    return over_row<c>(s, turn, JoinMaxAndSum{});
  } else {
    row.each([&](const auto& x, unsigned) { max = largest(x, max); });
    max = largest_over_row<c>(max, turn);
    row.each([&](const auto& x, unsigned) { sum += sum_of_exp(x, max); });
    sum = sum_over_row<c>(sum, turn);
    return s;
  }
}

}  // namespace kiln::templates
