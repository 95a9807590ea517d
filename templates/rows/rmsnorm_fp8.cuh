// Device half of rmsnorm_fp8.hpp.
#pragma once

#include "float8.cuh"
#include "rmsnorm_fp8.hpp"
#include "row_squares.cuh"

namespace kiln::templates {

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rmsnorm_fp8(__nv_fp8_e4m3* q, float* scales, const T* x, const T* w, int rows, int hidden,
                float eps) {
  check_row_config<c, T>();
  unsigned turn = 0;
  each_row<c>(rows, [&](long long r) {
    __nv_fp8_e4m3* const to = q + r * hidden;
    with_row<c>(x + r * hidden, to, hidden, [&](auto& row) {
      float squares = 0.0f, most = 0.0f;
      row.each([&](const auto& pack, unsigned) { squares += sum_of_squares(pack); });
      const float norm = rms_scale<c>(squares, hidden, eps, turn);
      row.each([&](const auto& pack, unsigned h) {
        most = largest_magnitude(rms_normalized(pack, norm, w + h), most);
      });
      const float scale = fp8_scale(largest_over_row<c>(most, turn)), factor = 1.0f / scale;
      if (threadIdx.x % c.threads_per_row() == 0) scales[r] = scale;
      row.each([&](const auto& pack, unsigned h) {
        store_scaled(to + h, rms_normalized(pack, norm, w + h), factor);
      });
    });
  });
}

}  // namespace kiln::templates
