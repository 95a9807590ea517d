// What a GEMM computes: how its operands lie, its sizes, leading dimensions and batches.
//
// C = op(A) * op(B), all row-major. A leading dimension is the number of elements from one row to
// the next; a stride, from one batch to the next.
#pragma once

#include "kiln/config.hpp"

namespace kiln::templates {

/// How A and B are stored, one letter each; t: transposed, as in row-major BLAS.
///   A: n [m][k], t [k][m]    B: n [k][n], t [n][k] (a linear layer's weights)
enum class GemmTranspose { nt, nn, tn, tt };

/// True if A is contiguous along m, not k.
constexpr bool a_across(GemmTranspose op) {
  return op == GemmTranspose::tn || op == GemmTranspose::tt;
}
/// True if B is contiguous along n, not k.
constexpr bool b_across(GemmTranspose op) {
  return op == GemmTranspose::nn || op == GemmTranspose::tn;
}

/// The largest k of a GEMM. Bodies walk k in an int, in steps of less than 2^16.
inline constexpr int kMostDepth = 0x7fff0000;

/// Arrays without gaps.
struct GemmProblem {
  int m, n, k;  // elements
};

/// std::int64_t, as kernels know it.
using GemmStride = long;

/// Arrays with leading dimensions, and batches of them. With one batch strides have no meaning;
/// a stride of 0 gives all batches the same A or B.
struct GemmStridedProblem {
  int m, n, k;
  GemmStride ldc, lda, ldb;
  int batch;
  GemmStride stride_c, stride_a, stride_b;
};

/// The general case. Code for kernels without batches leaves out what concerns them.
template <bool batched>
struct GemmShape {
  static constexpr bool kBatched = batched;
  int m, n, k;
  GemmStride ldc, lda, ldb;
  int batch;
  GemmStride stride_c, stride_a, stride_b;

  constexpr GemmShape<true> general() const {
    return {m, n, k, ldc, lda, ldb, batch, stride_c, stride_a, stride_b};
  }
  constexpr GemmProblem sizes() const { return {m, n, k}; }

  /// Elements of a row of an operand as it is stored, and how many of those rows there are.
  constexpr int a_row(GemmTranspose op) const { return a_across(op) ? m : k; }
  constexpr int b_row(GemmTranspose op) const { return b_across(op) ? n : k; }
  constexpr int a_rows(GemmTranspose op) const { return a_across(op) ? k : m; }
  constexpr int b_rows(GemmTranspose op) const { return b_across(op) ? k : n; }

  /// Elements from an array's first to its last, gaps included.
  constexpr GemmStride span(GemmStride rows, GemmStride row, GemmStride leading,
                            GemmStride stride) const {
    if (batch <= 0 || rows <= 0 || row <= 0) return 0;
    return (batch - 1) * stride + (rows - 1) * leading + row;
  }
  constexpr GemmStride c_span() const { return span(m, n, ldc, stride_c); }
  constexpr GemmStride a_span(GemmTranspose op) const {
    return span(a_rows(op), a_row(op), lda, stride_a);
  }
  constexpr GemmStride b_span(GemmTranspose op) const {
    return span(b_rows(op), b_row(op), ldb, stride_b);
  }

  /// Bytes that must be moved at least once. What all batches share is one array.
  constexpr double traffic(double operand_bytes, double result_bytes) const {
    const auto copies = [&](GemmStride stride) { return batch > 1 && stride == 0 ? 1 : batch; };
    return operand_bytes * k * (1.0 * m * copies(stride_a) + 1.0 * n * copies(stride_b)) +
           result_bytes * m * n * batch;
  }

  /// Whether tensor maps, and accesses of 16 bytes, can have this leading dimension or stride.
  static constexpr bool mappable(GemmStride elements, int element_bytes = 2) {
    return elements * element_bytes % 16 == 0 && elements < (GemmStride{1} << 39);
  }
  constexpr bool operands_mappable(int element_bytes = 2) const {
    return mappable(lda, element_bytes) && mappable(ldb, element_bytes) &&
           (batch <= 1 || (mappable(stride_a, element_bytes) && mappable(stride_b, element_bytes)));
  }
  /// Whether rows along k of A and B are no whole accesses of 16 bytes, of elements of 2.
  constexpr bool has_unaligned_rows() const {
    return k > 0 && (k % 8 != 0 || !operands_mappable());
  }
  /// Whether C, whose elements have 2 bytes, can be stored through a tensor map (kiln/hopper.cuh,
  /// store_tile).
  constexpr bool storable(int operand_bytes = 2) const {
    return operands_mappable(operand_bytes) && mappable(ldc) && mappable(n) &&
           (batch <= 1 || mappable(stride_c));
  }
};

template <GemmTranspose op>
constexpr GemmShape<false> gemm_shape(const GemmProblem& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .ldc = p.n,
          .lda = a_across(op) ? p.m : p.k,
          .ldb = b_across(op) ? p.n : p.k,
          .batch = 1,
          .stride_c = 0,
          .stride_a = 0,
          .stride_b = 0};
}
template <GemmTranspose>
constexpr GemmShape<true> gemm_shape(const GemmStridedProblem& p) {
  return {p.m, p.n, p.k, p.ldc, p.lda, p.ldb, p.batch, p.stride_c, p.stride_a, p.stride_b};
}

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::GemmProblem, m, n, k)
KILN_PROBLEM(kiln::templates::GemmStridedProblem, m, n, k, ldc, lda, ldb, batch, stride_c, stride_a,
             stride_b)
