// Device half of cross_entropy.hpp.
#pragma once

#include "cross_entropy.hpp"
#include "log_sum.cuh"

namespace kiln::templates {

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    cross_entropy(float* loss, const T* x, const int* label, int rows, int columns, int ignored) {
  check_row_config<c, T>();
  unsigned turn = 0;
  each_row<c>(rows, [&](long long r) {
    const bool writes = thread_of_row<c>() == 0;
    const int wanted = label[r];
    if (wanted == ignored) {
      if (writes) loss[r] = 0.0f;
      return;
    }
    const T* const from = x + r * columns;
    const bool valid = wanted >= 0 && wanted < columns;
    const float logit = valid ? to_float(from[wanted]) : __int_as_float(0x7fffffff);
    Row<c, c.vector, c.kept, T> row(from, columns);
    const MaxAndSum s = max_and_sum(row, turn);
    if (writes) loss[r] = s.value[0] - logit + logf(s.value[1]);
  });
}

}  // namespace kiln::templates
