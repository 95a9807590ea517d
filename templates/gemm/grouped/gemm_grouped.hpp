// GEMMs of several groups of rows, each with a matrix of its own, as the experts of a mixture have
// them. The counts of the groups' rows are in device memory: the host neither knows them nor waits
// for them.
//
// gemm_grouped: the groups' rows follow each other (contiguous).
//
//   C[i][j] = epilogue(sum_l A[i][l] * B[g][j][l]),
//   begin(g) <= i < ends[g], 0 <= j < n, 0 <= l < k
//
// A: [m][k], B: [groups][n][k], C: [m][n]; ends: [groups], the row behind each group's last (`offs`
// of torch's grouped product). begin(g) is the end of the group before, and 0 for the first. Rows
// from the last end on belong to no group.
//
// gemm_padded: the same, but each group's first row is a multiple of `row_alignment`. begin(g) is
// the end of the group before rounded up to such a multiple, and at most m. The rows in front of it
// are padding, which belongs to no group. `ends` are the ends of groups without their padding; an
// end that is less than its group's begin(g), for example the end before once more, is that of an
// empty group. row_alignment is at least 1, which is gemm_grouped, and need not be a power of 2; it
// is a part of the problem that is tuned.
//
// gemm_masked: each group has room for m rows, of which the first counts[g] are computed.
//
//   C[g][i][j] = epilogue(sum_l A[g][i][l] * B[g][j][l]),  0 <= i < counts[g]
//
// A: [groups][m][k], B: [groups][n][k], C: [groups][m][n]; counts: [groups]. `expected` is about
// how many rows a group has, 0 if unknown: what is measured and chosen is chosen for that. Results
// do not depend on it.
//
// All are row-major without gaps, of T = float, __half or __nv_bfloat16; ends and counts are int.
// Sums are in float, and C rounds once. Rows that no group has, padding included, are not computed:
// those of C are not written, and those of A may hold anything. Groups may be empty, and all rows
// one group's. Without rows or groups C is left alone; with k = 0 all sums are 0.
//
// NaNs, infinities and zeros are as in gemm.hpp, and reach no other group.
//
// No end or count leads outside of the arrays: one that is negative counts as 0, one beyond m as m,
// and an end that is less than an earlier one as that, so its group is empty.
//
// An epilogue (kiln/epilogue.hpp) sees the group as the batch, so PerBatch has an element for each
// group, and the rows and columns of C; with gemm_masked rows count from the group's first.
//
// On sm_90, with an n and a k that are multiples of 8, blocks that stay walk over the tiles of all
// groups, fed by tensor maps (gemm_tma.hpp); A and B must be aligned to 16 bytes then, and a launch
// with one that is not is a UserError. Others have a block for each tile that there may be at most,
// with tensor cores for 2-byte types from sm_80 on.
//
//   auto gemm = runtime.tuned(kiln::templates::gemm_grouped_kernel<kiln::bfloat16>());
//   gemm(stream, c, a, b, ends, m, n, k, groups);
//   auto padded = runtime.tuned(kiln::templates::gemm_padded_kernel<kiln::bfloat16>());
//   padded(stream, c, a, b, ends, m, n, k, groups, row_alignment);
//   auto masked = runtime.tuned(kiln::templates::gemm_masked_kernel<kiln::bfloat16>());
//   masked(stream, c, a, b, counts, m, n, k, groups, expected);
//
// Negative sizes, a k above kMostDepth, a row_alignment that is less than 1, and a C that overlaps
// A or B, are a UserError. Tunings draw sizes of groups that are equal, that differ by much, and of
// which every second one is 0; groups of gemm_padded have padding of various lengths.
#pragma once

#include "../gemm.hpp"

namespace kiln::templates {

/// `m`: rows of all groups.
struct GroupedProblem {
  int m, n, k, groups;
};
/// `m`: rows of all groups with their padding.
struct PaddedProblem {
  int m, n, k, groups, row_alignment;
};
/// `m`: rows that each group has room for.
struct MaskedProblem {
  int m, n, k, groups, expected;
};

/// How the groups' rows lie in A and C: behind each other, the same with padding, or with room of
/// their own.
enum class GroupLayout { contiguous, padded, masked };

/// Groups are batches; those whose rows follow each other have the same A and C.
constexpr GemmShape<true> grouped_shape(int m, int n, int k, int groups, bool masked) {
  const GemmStride rows = masked ? m : 0;
  return {.m = m,
          .n = n,
          .k = k,
          .ldc = n,
          .lda = k,
          .ldb = k,
          .batch = groups,
          .stride_c = rows * n,
          .stride_a = rows * k,
          .stride_b = GemmStride{n} * k};
}
template <GemmTranspose>
constexpr GemmShape<true> gemm_shape(const GroupedProblem& p) {
  return grouped_shape(p.m, p.n, p.k, p.groups, false);
}
template <GemmTranspose>
constexpr GemmShape<true> gemm_shape(const PaddedProblem& p) {
  return grouped_shape(p.m, p.n, p.k, p.groups, false);
}
template <GemmTranspose>
constexpr GemmShape<true> gemm_shape(const MaskedProblem& p) {
  return grouped_shape(p.m, p.n, p.k, p.groups, true);
}

/// A group's first row behind padding. @pre 0 <= before <= m, row_alignment >= 1
constexpr int group_begin(int before, int row_alignment, int m) {
  const auto step = static_cast<unsigned>(row_alignment);
  const unsigned begin = (static_cast<unsigned>(before) + step - 1) / step * step;
  return begin < static_cast<unsigned>(m) ? static_cast<int>(begin) : m;
}
/// The row behind a group's last, as it counts: `given` may be anything.
constexpr int group_end(int given, int before, int m) {
  const int end = given < m ? given : m;
  return end < before ? before : end;
}

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::GroupedProblem, m, n, k, groups)
KILN_PROBLEM(kiln::templates::PaddedProblem, m, n, k, groups, row_alignment)
KILN_PROBLEM(kiln::templates::MaskedProblem, m, n, k, groups, expected)

#if !defined(KILN_DEVICE_PASS)
#include "gemm_grouped_kernel.hpp"
#endif
