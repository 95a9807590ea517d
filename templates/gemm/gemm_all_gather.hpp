// All-gather and GEMM as one operation: A's rows are divided among ranks, and each rank multiplies all of
// them by columns of its own.
//
//   C[r * m + i][j] = sum_l A_r[i][l] * B[j][l],  0 <= r < ranks, 0 <= i < m, 0 <= j < n, 0 <= l < k
//
// A_r: [m][k], rank r's; B: [n][k] and C: [ranks * m][n], each rank's own. All are row-major without gaps,
// of T = float, __half or __nv_bfloat16. Sums are in float, and C rounds once.
//
// Ranks share symmetric memory (kiln/symmetric.hpp) of all_gather_bytes<T>(m, k, ranks) bytes or more, with
// kAllGatherFlags flags or more, in which A of all ranks is gathered: [ranks][m][k] from its beginning. One
// operation at a time uses it, of any sizes that fit; two on two streams have two of them.
//
// overlap: while tiles of a rank's own rows are multiplied, warps that have nothing else to do store those
// rows to the other ranks, the one first that needs them first; the copying thread of a block waits until
// the rows of its tile are there. Otherwise one launch gathers all rows, and a second one multiplies them.
// Both launches can be captured, because ranks count the operations themselves, in device memory.
//
//   kiln::SymmetricMemory memory(runtime, ranks,
//                                {.bytes = all_gather_bytes<kiln::bfloat16>(m, k, ranks->size()),
//                                 .flags = kAllGatherFlags});
//   AllGatherGemm<kiln::bfloat16> operation(runtime, memory);
//   memory.within(kiln::deadline_in(60), [&] { operation.tune(m, n, k, ranks); });
//   memory.within(kiln::deadline_in(10), [&] {
//     operation(stream, c, a, b, m, n, k);
//     runtime.synchronize(stream);
//   });
//
// The ranks' kernels wait for each other: all ranks launch the same operations in the same order. A rank
// that gives up (SymmetricMemory::within) ends the others' waits; what C holds then has no meaning, and
// reset() makes the memory usable again. Negative sizes, and memory that is too small, are a UserError.
#pragma once

#include "gemm.hpp"
#include "kiln/peers.cuh"

namespace kiln::templates {

/// A rank's rows are sent in so many pieces at most, each with a flag, behind the flag of ready ranks.
inline constexpr int kAllGatherChunks = 8;
inline constexpr unsigned kAllGatherFlags = 1 + kAllGatherChunks;

/// `m`: rows of each rank.
struct AllGatherProblem {
  int m, n, k, ranks;
};

/// The GEMM's fields (gemm.hpp) that matter, and how the rows get there.
struct AllGather {
  GemmBody body;
  int block_m, block_n, block_k, stages, tile_m, tile_n, vector, group_m;
  GemmCluster cluster;
  bool along_n;
  bool overlap;  // rows are sent while others are multiplied
  int chunks;    // that a rank's rows are sent in, of kAllGatherChunks a divisor

  constexpr Gemm gemm() const {
    return {.body = body,
            .block_m = block_m,
            .block_n = block_n,
            .block_k = block_k,
            .stages = stages,
            .tile_m = tile_m,
            .tile_n = tile_n,
            .vector = vector,
            .group_m = group_m,
            .cluster = cluster,
            .along_n = along_n};
  }
  static constexpr AllGather of(const Gemm& c, bool overlap, int chunks) {
    return {c.body,   c.block_m, c.block_n, c.block_k, c.stages, c.tile_m, c.tile_n,
            c.vector, c.group_m, c.cluster, c.along_n, overlap,  chunks};
  }

  static constexpr int kCopyThreads = 256;  // of a block that gathers
  constexpr int threads() const { return overlap ? gemm().threads() : kCopyThreads; }
  constexpr bool maps() const { return overlap || gemm().uses_tma(); }
  /// Rows of a chunk: whole tiles of a cluster, so that few tiles wait for two.
  constexpr int chunk_rows(int m) const {
    const GemmTma t = gemm().tma();
    const int high = overlap ? t.block_m * t.cluster_m : 1, tiles = (m + high - 1) / high;
    return (tiles + chunks - 1) / chunks * high;
  }
};

/// All rows of all ranks, which one launch multiplies.
constexpr GemmProblem gathered(const AllGatherProblem& p) { return {p.m * p.ranks, p.n, p.k}; }
/// The same as a batch per rank.
constexpr GemmShape<true> by_rank(const AllGatherProblem& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .ldc = p.n,
          .lda = p.k,
          .ldb = p.k,
          .batch = p.ranks,
          .stride_c = GemmStride{p.m} * p.n,
          .stride_a = GemmStride{p.m} * p.k,
          .stride_b = 0};
}

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::AllGatherProblem, m, n, k, ranks)
KILN_CONFIG(kiln::templates::AllGather, body, block_m, block_n, block_k, stages, tile_m, tile_n,
            vector, group_m, cluster, along_n, overlap, chunks)

#if !defined(KILN_DEVICE_PASS)
#include "gemm_all_gather_kernel.hpp"
#endif
