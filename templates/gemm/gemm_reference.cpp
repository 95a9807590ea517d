#include "templates/gemm/gemm_reference.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include <tbb/parallel_for.h>

#include "kiln/types.hpp"

// One binary for all CPUs, yet wide vectors where there are some. Sanitizers and other compilers do
// without.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KILN_WIDEST_VECTORS \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define KILN_WIDEST_VECTORS
#endif

namespace kiln::templates {

namespace {

constexpr std::size_t kRows = 4;  // of A per pass over a row of B
constexpr std::size_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

/// totals[i] = dot product of row i of `a`, rows `k` apart, with `b`; `k` is a multiple of kLanes.
KILN_WIDEST_VECTORS void dot_products(const float* a, const float* b, std::size_t k,
                                      double* totals) {
  Lanes sums[kRows] = {};
  for (std::size_t l = 0; l < k; l += kLanes) {
    Lanes column;
    std::memcpy(&column, b + l, sizeof column);
    for (std::size_t i = 0; i < kRows; ++i) {
      Lanes row;
      std::memcpy(&row, a + i * k + l, sizeof row);
      sums[i] += row * column;
    }
  }
  for (std::size_t i = 0; i < kRows; ++i) {
    totals[i] = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      totals[i] += static_cast<double>(sums[i][lane]);
  }
}

constexpr std::size_t rounded_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

template <class T>
void widen(float* to, const T* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

}  // namespace

template <class T>
void gemm_reference(T* out, const T* a, const T* b, int m, int n, int k) {
  const auto rows = static_cast<std::size_t>(m), columns = static_cast<std::size_t>(n),
             depth = static_cast<std::size_t>(k), padded = rounded_up(depth, kLanes);
  std::vector<float> wide_a(rounded_up(rows, kRows) * padded);
  for (std::size_t i = 0; i < rows; ++i) widen(wide_a.data() + i * padded, a + i * depth, depth);

  constexpr std::size_t kColumns = 16;  // a task's rows of B: small enough for the L2 cache
  tbb::parallel_for(std::size_t{0}, (columns + kColumns - 1) / kColumns, [&](std::size_t task) {
    const std::size_t first = task * kColumns, count = std::min(kColumns, columns - first);
    std::vector<float> wide_b(count * padded);
    for (std::size_t j = 0; j < count; ++j)
      widen(wide_b.data() + j * padded, b + (first + j) * depth, depth);
    for (std::size_t i = 0; i < rows; i += kRows)
      for (std::size_t j = 0; j < count; ++j) {
        double totals[kRows];
        dot_products(wide_a.data() + i * padded, wide_b.data() + j * padded, padded, totals);
        for (std::size_t r = 0; r < std::min(kRows, rows - i); ++r)
          out[(i + r) * columns + first + j] = T(static_cast<float>(totals[r]));
      }
  });
}

template void gemm_reference(float*, const float*, const float*, int, int, int);
template void gemm_reference(float16*, const float16*, const float16*, int, int, int);
template void gemm_reference(bfloat16*, const bfloat16*, const bfloat16*, int, int, int);

}  // namespace kiln::templates
