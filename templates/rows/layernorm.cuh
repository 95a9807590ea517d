// Device half of layernorm.hpp.
#pragma once

#include "layernorm.hpp"
#include "row_walk.cuh"

namespace kiln::templates {

/// {number of elements, their mean, the sum of their squared deviations from it}
using Moments = Statistics<3>;

struct JoinMoments {
  __device__ Moments operator()(const Moments& a, const Moments& b) const {
    const float count = a.value[0] + b.value[0];
    const float distance = b.value[1] - a.value[1],
                share = count > 0 ? __fdividef(b.value[0], count) : 0;
    // The square of the distance alone may overflow where nothing is counted yet.
    return {{count, a.value[1] + distance * share,
             a.value[2] + b.value[2] + (distance * a.value[0]) * (distance * share)}};
  }
};

/// The sum of the differences from `origin`.
template <int N, class T>
__device__ float sum_of(const Pack<T, N>& x, float origin) {
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < N; ++e) sum += to_float(x.value[e]) - origin;
  return sum;
}

template <int N, class T>
__device__ float squared_deviations(const Pack<T, N>& x, float origin, float mean) {
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const float deviation = (to_float(x.value[e]) - origin) - mean;
    sum += deviation * deviation;
  }
  return sum;
}

template <int N, class T>
__device__ Moments moments_of(const Pack<T, N>& x, float origin) {
  const float mean = sum_of(x, origin) / N;
  return {{N, mean, squared_deviations(x, origin, mean)}};
}

/// {mean, variance} of the differences from `origin`, an element of the row. The mean itself need
/// not be a float; the differences are no larger than the row's spread, and so is their rounding.
template <RowConfig c, int kVector, int kKept, class T, bool kWhole>
__device__ Statistics<2> mean_and_variance(Row<c, kVector, kKept, T, kWhole>& row, int hidden,
                                           float origin, unsigned& turn) {
  const float count = static_cast<float>(hidden);
  if constexpr (c.online) {
    Moments mine{};
    row.each([&](const auto& x, unsigned) { mine = JoinMoments{}(mine, moments_of(x, origin)); });
    mine = over_row<c>(mine, turn, JoinMoments{});
    return {{mine.value[1], __fdividef(mine.value[2], count)}};
  } else {
    float sum = 0.0f, squares = 0.0f;
    row.each([&](const auto& x, unsigned) { sum += sum_of(x, origin); });
    const float mean = __fdividef(sum_over_row<c>(sum, turn), count);
    row.each([&](const auto& x, unsigned) { squares += squared_deviations(x, origin, mean); });
    return {{mean, __fdividef(sum_over_row<c>(squares, turn), count)}};
  }
}

template <int N, class T>
__device__ Pack<T, N> standardized(const Pack<T, N>& x, float origin, float mean, float scale,
                                   const Pack<T, N>& w, const Pack<T, N>& b) {
  Pack<T, N> y;
#pragma unroll
  for (int e = 0; e < N; ++e)
    y.value[e] =
        from_float<T>(((to_float(x.value[e]) - origin) - mean) * scale * to_float(w.value[e]) +
                      to_float(b.value[e]));
  return y;
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    layernorm(T* y, const T* x, const T* w, const T* b, int rows, int hidden, float eps) {
  check_row_config<c, T>();
  unsigned turn = 0;
  with_rows<c>(
      x, y, rows, hidden,
      [&](auto& row, long long r, auto& weights, auto& biases) {
        T* const to = y + r * hidden;
        const float origin = to_float(row.first());
        const Statistics<2> s = mean_and_variance(row, hidden, origin, turn);
        const float scale = norm_scale(s.value[1] + eps);
        row.each(
            [&]<int N>(const Pack<T, N>& pack, unsigned h, const Pack<T, N>& weight,
                       const Pack<T, N>& bias) {
              store_pack(to + h, standardized(pack, origin, s.value[0], scale, weight, bias));
            },
            weights, biases);
      },
      w, b);
}

}  // namespace kiln::templates
