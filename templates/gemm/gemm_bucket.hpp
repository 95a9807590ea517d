// Which GEMMs are tuned as one, and which problems are refused.
#pragma once

#include <algorithm>
#include <string>

#include "kiln/error.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

inline void check_depth(int k) {
  if (k > kMostDepth)
    throw UserError("gemm: k is " + std::to_string(k) +
                    ", and a product adds at most 2^31 - 2^16 numbers");
}

inline void check_sizes(const GemmShape<true>& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0)
    throw UserError("gemm: m, n, k or the number of batches is negative");
  check_depth(p.k);
}

/// Blocks of k that have a scale are whole.
template <class T>
void check_blocks(const GemmProblem& p) {
  if (kBlockScaled<T> && p.k % kScaleBlock != 0)
    throw UserError("gemm: k is " + std::to_string(p.k) +
                    ", and scales of blocks need a multiple of " + std::to_string(kScaleBlock));
}

/// The problem that is tuned: counts of rows and batches grow to the next bucket. If A is [k][m]
/// without gaps, m is also its leading dimension: an m that tensor maps cannot have stays as it is.
template <class T, GemmTranspose op>
GemmProblem tuned_as(const GemmProblem& p) {
  check_sizes(gemm_shape<op>(p).general());
  check_blocks<T>(p);
  const bool fits = !a_across(op) || GemmShape<true>::mappable(p.m, sizeof(GemmOperand<T>));
  return {fits ? row_bucket(p.m) : p.m, p.n, p.k};
}

inline void check_leading(const char* name, GemmStride leading, int row) {
  if (leading < row)
    throw UserError(std::string("gemm: ") + name + " is " + std::to_string(leading) +
                    ", less than a row's " + std::to_string(row) + " elements");
}

/// Leading dimensions and strides matter by what copies can do with them: those without gaps have
/// none, those with gaps some, and multiples of 16 bytes stay such.
template <class T, GemmTranspose op>
GemmStridedProblem tuned_as(const GemmStridedProblem& p) {
  const auto from = gemm_shape<op>(p);
  check_sizes(from);
  check_leading("ldc", p.ldc, p.n);
  check_leading("lda", p.lda, from.a_row(op));
  check_leading("ldb", p.ldb, from.b_row(op));
  if (p.batch > 1 && (p.stride_a < 0 || p.stride_b < 0))
    throw UserError("gemm: a stride between batches is negative");
  const bool apart = p.stride_c >= (p.m - 1) * p.ldc + p.n;
  const bool interleaved = p.stride_c >= p.n && p.ldc >= (p.batch - 1) * p.stride_c + p.n;
  if (p.batch > 1 && p.m > 0 && p.n > 0 && !apart && !interleaved)
    throw UserError("gemm: stride_c is " + std::to_string(p.stride_c) +
                    ", so batches of C overlap");

  constexpr int kOperand = sizeof(GemmOperand<T>), kResult = sizeof(GemmResult<T>);
  constexpr GemmStride kGap = 64;
  const auto rounded_up = [](GemmStride size, GemmStride to) { return (size + to - 1) / to * to; };
  const auto leading = [&](GemmStride given, GemmStride row, GemmStride new_row, int bytes) {
    if (given == row) return new_row;
    const GemmStride padded = rounded_up(new_row, kGap) + kGap;
    return from.mappable(given, bytes) ? padded : padded + 1;
  };
  const auto stride = [&](GemmStride given, GemmStride rows, GemmStride new_leading, int bytes) {
    const GemmStride all = rows * new_leading;
    if (p.batch <= 1 || given == 0) return GemmStride{0};
    if (from.mappable(given, bytes)) return rounded_up(all, std::max(8, 16 / bytes));
    return from.mappable(all, bytes) ? all + 1 : all;
  };
  GemmStridedProblem to = p;
  if (!a_across(op) || p.lda != p.m || from.mappable(p.m, kOperand)) to.m = row_bucket(p.m);
  to.batch = count_bucket(p.batch);
  const auto shape = gemm_shape<op>(to);
  to.ldc = leading(p.ldc, p.n, to.n, kResult);
  to.lda = leading(p.lda, from.a_row(op), shape.a_row(op), kOperand);
  to.ldb = leading(p.ldb, from.b_row(op), shape.b_row(op), kOperand);
  to.stride_c = stride(p.stride_c, to.m, to.ldc, kResult);
  to.stride_a = stride(p.stride_a, shape.a_rows(op), to.lda, kOperand);
  to.stride_b = stride(p.stride_b, shape.b_rows(op), to.ldb, kOperand);
  return to;
}

}  // namespace kiln::templates
