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
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KILN_WIDEST_VECTORS
#endif

namespace kiln::templates {

namespace {

// Products of two floats are exact in double.
constexpr std::size_t kLanes = 4;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));

// Sums of kRows x kPair lanes are in registers. A task has kColumns of C, whose rows of B stay in
// the L2 cache, and of kDepth elements of k at a time kRows rows of A stay in the L1 cache.
constexpr std::size_t kRows = 4, kPair = 4, kColumns = 16, kDepth = 512;
static_assert(kColumns % kPair == 0 && kDepth % kLanes == 0 && kScaleBlock % kLanes == 0);

/// Where element l of a row lies among `rows` rows whose lanes take turns, so that a product reads
/// them one after the other.
constexpr std::size_t place(std::size_t row, std::size_t l, std::size_t rows) {
  return (l / kLanes * rows + row) * kLanes + l % kLanes;
}

/// sums[i][j] = dot product of row i of `a` with row j of `b`; `k` is a multiple of kLanes.
KILN_WIDEST_VECTORS void dot_products(const double* a, const double* b, std::size_t k,
                                      double (&sums)[kRows][kPair]) {
  Lanes lanes[kRows][kPair] = {};
  for (std::size_t l = 0; l < k; l += kLanes) {
    Lanes columns[kPair];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < kPair; ++j)
      std::memcpy(&columns[j], b + place(j, l, kPair), sizeof(Lanes));
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kRows; ++i) {
      Lanes row;
      std::memcpy(&row, a + place(i, l, kRows), sizeof row);
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kPair; ++j) lanes[i][j] += row * columns[j];
    }
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (std::size_t j = 0; j < kPair; ++j) {
      sums[i][j] = 0;
      for (std::size_t lane = 0; lane < kLanes; ++lane) sums[i][j] += lanes[i][j][lane];
    }
}

constexpr std::size_t rounded_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

/// A row of op(A), or a column of op(B): calls put(l, element) for each of `count` elements.
template <class T, class Put>
void widen(const T* matrix, GemmStride row, std::size_t count, GemmStride leading, bool across,
           const Put& put) {
  const T* const first = across ? matrix + row : matrix + row * leading;
  const GemmStride step = across ? leading : 1;
  for (std::size_t l = 0; l < count; ++l)
    put(l, static_cast<float>(first[static_cast<GemmStride>(l) * step]));
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
  const std::size_t step = scales == nullptr ? kDepth : std::size_t{kScaleBlock};
  for (int batch = 0; batch < shape.batch; ++batch) {
    const T* const of_a = a + batch * shape.stride_a;
    const T* const of_b = b + batch * shape.stride_b;
    std::vector<float> wide_a(rounded_up(rows, kRows) * padded);
    for (std::size_t i = 0; i < rows; ++i)
      widen(of_a, static_cast<GemmStride>(i), depth, shape.lda, a_across(op),
            [to = wide_a.data(), from = i / kRows * kRows * padded, r = i % kRows](
                std::size_t l, float value) { to[from + place(r, l, kRows)] = value; });

    tbb::parallel_for(std::size_t{0}, (columns + kColumns - 1) / kColumns, [&](std::size_t task) {
      const std::size_t first = task * kColumns, count = std::min(kColumns, columns - first);
      std::vector<double> wide_b(kColumns * padded), some_a(kRows * kDepth);
      for (std::size_t j = 0; j < count; ++j)
        widen(of_b, static_cast<GemmStride>(first + j), depth, shape.ldb, b_across(op),
              [to = wide_b.data(), from = j / kPair * kPair * padded, r = j % kPair](
                  std::size_t l, float value) { to[from + place(r, l, kPair)] = value; });
      for (std::size_t i = 0; i < rows; i += kRows) {
        double totals[kRows][kColumns] = {};
        for (std::size_t l = 0; l < padded; l += step) {
          const std::size_t k = std::min(step, padded - l);
          std::copy_n(wide_a.data() + i * padded + l * kRows, k * kRows, some_a.data());
          for (std::size_t j = 0; j < count; j += kPair) {
            double sums[kRows][kPair];
            dot_products(some_a.data(), wide_b.data() + j * padded + l * kPair, k, sums);
            for (std::size_t r = 0; r < kRows; ++r)
              for (std::size_t c = 0; c < kPair; ++c)
                totals[r][j + c] +=
                    scales == nullptr
                        ? sums[r][c]
                        : sums[r][c] * factor(*scales, shape, std::min(i + r, rows - 1),
                                              std::min(first + j + c, columns - 1),
                                              l / kScaleBlock);
          }
        }
        for (std::size_t r = 0; r < std::min(kRows, rows - i); ++r) {
          float sums[kColumns];
          std::copy_n(totals[r], count, sums);
          store(sums, batch, static_cast<int>(i + r), static_cast<int>(first),
                static_cast<int>(count));
        }
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
