#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include <tbb/parallel_for.h>

#include "kiln/block_scales.hpp"
#include "kiln/types.hpp"
#include "templates/gemm/gemm.hpp"

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

/// totals[i] = dot product of row i of `a`, rows `apart`, with `b`; `k` is a multiple of kLanes.
KILN_WIDEST_VECTORS void dot_products(const float* a, std::size_t apart, const float* b,
                                      std::size_t k, double* totals) {
  Lanes sums[kRows] = {};
  for (std::size_t l = 0; l < k; l += kLanes) {
    Lanes column;
    std::memcpy(&column, b + l, sizeof column);
    for (std::size_t i = 0; i < kRows; ++i) {
      Lanes row;
      std::memcpy(&row, a + i * apart + l, sizeof row);
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

/// A row of op(A), or a column of op(B).
template <class T>
void widen(float* to, const T* matrix, GemmStride row, std::size_t count, GemmStride leading,
           bool across) {
  const T* const first = across ? matrix + row : matrix + row * leading;
  const GemmStride step = across ? leading : 1;
  for (std::size_t l = 0; l < count; ++l)
    to[l] = static_cast<float>(first[static_cast<GemmStride>(l) * step]);
}

double factor(const GemmBlockScales& scales, const GemmShape<true>& p, std::size_t row,
              std::size_t column, std::size_t block) {
  const auto leading = static_cast<std::size_t>(scale_leading(scales.rows > 0 ? scales.rows : p.m));
  const auto blocks = static_cast<std::size_t>(scale_blocks(p.k));
  return static_cast<double>(scales.a[block * leading + row]) *
         static_cast<double>(scales.b[column / kScaleBlock * blocks + block]);
}

}  // namespace

template <class T>
void gemm_sums(GemmTranspose op, const GemmShape<true>& shape, const T* a, const T* b,
               const GemmStore& store, const GemmBlockScales* scales) {
  if (shape.m <= 0 || shape.n <= 0) return;
  const auto rows = static_cast<std::size_t>(shape.m), columns = static_cast<std::size_t>(shape.n),
             depth = static_cast<std::size_t>(shape.k), padded = rounded_up(depth, kLanes);
  for (int batch = 0; batch < shape.batch; ++batch) {
    const T* const of_a = a + batch * shape.stride_a;
    const T* const of_b = b + batch * shape.stride_b;
    std::vector<float> wide_a(rounded_up(rows, kRows) * padded);
    for (std::size_t i = 0; i < rows; ++i)
      widen(wide_a.data() + i * padded, of_a, static_cast<GemmStride>(i), depth, shape.lda,
            a_across(op));

    constexpr std::size_t kColumns = 16;  // a task's columns: small enough for the L2 cache
    tbb::parallel_for(std::size_t{0}, (columns + kColumns - 1) / kColumns, [&](std::size_t task) {
      const std::size_t first = task * kColumns, count = std::min(kColumns, columns - first);
      std::vector<float> wide_b(count * padded);
      for (std::size_t j = 0; j < count; ++j)
        widen(wide_b.data() + j * padded, of_b, static_cast<GemmStride>(first + j), depth,
              shape.ldb, b_across(op));
      for (std::size_t i = 0; i < rows; i += kRows) {
        float sums[kRows][kColumns];
        for (std::size_t j = 0; j < count; ++j) {
          const float* const row = wide_a.data() + i * padded;
          const float* const column = wide_b.data() + j * padded;
          double totals[kRows] = {};
          if (scales == nullptr) {
            dot_products(row, padded, column, padded, totals);
          } else {
            for (std::size_t l = 0; l < padded; l += kScaleBlock) {
              double of_block[kRows];
              dot_products(row + l, padded, column + l, kScaleBlock, of_block);
              for (std::size_t r = 0; r < kRows; ++r)
                totals[r] += of_block[r] * factor(*scales, shape, std::min(i + r, rows - 1),
                                                  first + j, l / kScaleBlock);
            }
          }
          for (std::size_t r = 0; r < kRows; ++r) sums[r][j] = static_cast<float>(totals[r]);
        }
        for (std::size_t r = 0; r < std::min(kRows, rows - i); ++r)
          store(sums[r], batch, static_cast<int>(i + r), static_cast<int>(first),
                static_cast<int>(count));
      }
    });
  }
}

template void gemm_sums(GemmTranspose, const GemmShape<true>&, const float*, const float*,
                        const GemmStore&, const GemmBlockScales*);
template void gemm_sums(GemmTranspose, const GemmShape<true>&, const float16*, const float16*,
                        const GemmStore&, const GemmBlockScales*);
template void gemm_sums(GemmTranspose, const GemmShape<true>&, const bfloat16*, const bfloat16*,
                        const GemmStore&, const GemmBlockScales*);
template void gemm_sums(GemmTranspose, const GemmShape<true>&, const float8_e4m3*,
                        const float8_e4m3*, const GemmStore&, const GemmBlockScales*);

}  // namespace kiln::templates
