// GEMM and reduce-scatter as one operation: k is divided among ranks, each rank multiplies its
// part, and of the sum over ranks it gets its part of the rows.
//
//   C[i][j] = sum_s sum_l A_s[rank * m + i][l] * B_s[j][l],
//   0 <= s < ranks, 0 <= i < m, 0 <= j < n, 0 <= l < k
//
// A_s: [ranks * m][k] and B_s: [n][k], rank s's; C: [m][n], each rank's own. All are row-major
// without gaps, of T = float, __half or __nv_bfloat16. A rank's sums over l are in float and round
// once, to T; their sum over ranks is in float and rounds once more. The ranks' symmetric memory of
// reduce_scatter_bytes<T>(m, n, ranks) bytes or more holds sums of all ranks: [ranks][m][n], or,
// where one launch does all, boxes of rows and columns as warps send them, and behind them those
// that wait to be sent (scatter_parts).
//
// overlap (PeerGemm): the tiles of other ranks' rows come first, and are stored to those ranks'
// memory; a tile of a rank's own rows waits for what the others have sent of it, and adds that.
// With `senders`, blocks that multiply leave those tiles in their own GPU's memory, and the first
// `senders` blocks send them, a chunk at a time: on two H200s a multiprocessor that stores to
// another GPU multiplies about a tenth slower meanwhile.
// Otherwise one launch multiplies all rows, and a second one adds what all ranks have. Both add the
// same numbers, a rank's own first, then those of the next rank, ...
//
//   ReduceScatterGemm<kiln::bfloat16> operation(runtime, memory);
//   operation(stream, c, a, b, m, n, k);
//
// Memory, launches and errors: gemm_peers.hpp; tuning: as in gemm_all_gather.hpp.
#pragma once

#include "gemm_peers.hpp"

namespace kiln::templates {

/// One launch: each warpgroup that multiplies stages a whole tile for another rank, which a warp
/// that copies sends while the next tile is multiplied. Bytes of shared memory that this takes
/// beyond the GEMM's own staging.
constexpr int scatter_staging_bytes(const GemmTma& t) {
  const int tiles = t.consumers * t.row_tiles() * 64 * t.block_n * GemmTma::kResult;
  return tiles > t.staging_bytes() ? tiles - t.staging_bytes() : 0;
}
/// The config's GEMM with as many stages as are left, and all the shared memory of a block.
constexpr GemmTma scatter_tma(const PeerGemm& c) {
  const GemmTma t = c.gemm().tma();
  return t.with_most_stages(1, scatter_staging_bytes(t) + kSendersRing.barrier_bytes());
}
constexpr unsigned scatter_shared_bytes(const PeerGemm& c) {
  const GemmTma t = scatter_tma(c);
  return t.shared_bytes() +
         static_cast<unsigned>(scatter_staging_bytes(t) + kSendersRing.barrier_bytes());
}

/// Where sums lie in a rank's memory, in parts of equally many boxes: those that rank r has sent in
/// part r, and those that wait to be sent to the rank `distance` places after this one. Two ranks
/// need two parts, and more ranks two for each other one.
constexpr int scatter_parts(int ranks) { return ranks > 2 ? 2 * (ranks - 1) : ranks; }
constexpr int waiting_part(int rank, int ranks, int distance) {
  return distance == 1 ? rank : ranks + distance - 2;
}

}  // namespace kiln::templates

#if !defined(KILN_DEVICE_PASS)
#include "gemm_reduce_scatter_kernel.hpp"
#endif
