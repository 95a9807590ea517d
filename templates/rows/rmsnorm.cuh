// Device half of rmsnorm.hpp.
#pragma once

#include "rmsnorm.hpp"
#include "row_squares.cuh"
#include "row_walk.cuh"

namespace kiln::templates {

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rmsnorm(T* y, const T* x, const T* w, int rows, int hidden, float eps) {
  check_row_config<c, T>();
  unsigned turn = 0;
  with_rows<c>(
      x, y, rows, hidden,
      [&](auto& row, long long r, auto& weights) {
        T* const to = y + r * hidden;
        float squares = 0.0f;
        row.each([&](const auto& pack, unsigned) { squares += sum_of_squares(pack); });
        const float scale = rms_scale<c>(squares, hidden, eps, turn);
        row.each(
            [&](const auto& pack, unsigned h, const auto& weight) {
              store_pack(to + h, rounded<T>(rms_normalized(pack, scale, weight)));
            },
            weights);
      },
      w);
}

}  // namespace kiln::templates
