// All-gather and GEMM as one operation: A's rows are divided among ranks, and each rank multiplies
// all of them by columns of its own.
//
//   C[r * m + i][j] = sum_l A_r[i][l] * B[j][l],
//   0 <= r < ranks, 0 <= i < m, 0 <= j < n, 0 <= l < k
//
// A_r: [m][k], rank r's; B: [n][k] and C: [ranks * m][n], each rank's own. All are row-major
// without gaps, of T = float, __half or __nv_bfloat16. Sums are in float, and C rounds once. In the
// ranks' symmetric memory, of all_gather_bytes<T>(m, k, ranks) bytes or more, A of all ranks is
// gathered: [ranks][m][k].
//
// overlap (PeerGemm): while tiles of a rank's own rows are multiplied, a warp of each block, or
// `senders` blocks, send those rows to the other ranks, first to the one that needs them first, by
// bulk copies through shared memory; the copying thread of a block waits until the rows of its tile
// are there.
// Otherwise one launch gathers all rows, and a second one multiplies them.
//
//   kiln::SymmetricMemory memory(runtime, ranks,
//                                {.bytes = all_gather_bytes<kiln::bfloat16>(m, k, ranks->size()),
//                                 .flags = kPeerGemmFlags});
//   AllGatherGemm<kiln::bfloat16> operation(runtime, memory);
//   operation.tune(m, n, k, ranks);
//   memory.within(kiln::deadline_in(10), [&] {
//     operation(stream, c, a, b, m, n, k);
//     runtime.synchronize(stream);
//   });
//
// Memory, launches and errors: gemm_peers.hpp.
#pragma once

#include "gemm_peers.hpp"

namespace kiln::templates {

constexpr SendRing send_ring(const PeerGemm& c) {
  return c.senders > 0 ? kSendersRing : SendRing{8, 2048};
}
/// What a block has of it behind the GEMM's own shared memory: all, or, where a block does not
/// multiply while it sends, the barriers.
constexpr int ring_behind_gemm(const PeerGemm& c) {
  return c.senders > 0 ? send_ring(c).barrier_bytes() : send_ring(c).bytes();
}
/// The GEMM of a launch that overlaps.
constexpr GemmTma gathering_gemm(const PeerGemm& c) {
  return c.gemm().tma().with_most_stages(1, ring_behind_gemm(c));
}
constexpr unsigned gathering_shared_bytes(const PeerGemm& c) {
  return gathering_gemm(c).shared_bytes() + static_cast<unsigned>(ring_behind_gemm(c));
}

}  // namespace kiln::templates

#if !defined(KILN_DEVICE_PASS)
#include "gemm_all_gather_kernel.hpp"
#endif
