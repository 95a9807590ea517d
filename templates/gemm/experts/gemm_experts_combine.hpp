// Each expert multiplies its rows by the rank's part of its weights, what a token's experts have
// computed is added, weighted, and each rank gets the sums over ranks of its own tokens.
//
//   C[i][j] = sum_s sum_e weights[t][e] * P_s[places[t][e]][j],
//   P_s[i][j] = sum_l A_s[i][l] * B_s[g][j][l],
//   t = rank * m + i, 0 <= s < ranks, 0 <= e < top, 0 <= j < n, 0 <= l < k
//
// A_s: [ranks * m * top][k] and B_s: [groups][n][k], rank s's; weights: [ranks * m][top], float,
// the same on all ranks; C: [m][n], each rank's own. A, B and C are row-major without gaps, of T =
// float, __half or __nv_bfloat16. Sums are in float; P rounds to T, the sum over a token's experts
// does, and the sum over ranks does. The ranks' symmetric memory, of expert_combine_bytes<T>(...)
// bytes or more, holds sums of all ranks: [ranks][m][n].
//
// overlap (PeerGemm): experts compute one chunk of columns after the other. `senders` blocks add a
// chunk's rows for each token when all of them are there, and send the sums of other ranks' tokens,
// while the next chunk is multiplied; the last chunk's are added by the blocks that have
// multiplied. chunks: of the columns; with one, no block only adds.
// Otherwise one launch multiplies, one adds and sends, and one adds what has come. Both add the
// same numbers: experts in the order of `places`; a rank's own sum first, then the next rank's, ...
//
//   ExpertsCombine<kiln::bfloat16> down(runtime, memory);
//   down(stream, c, a, b, ends, places, weights, problem);
//
// Rows, memory, launches: gemm_experts.hpp. Errors as in gemm_peers.hpp, tuning as in
// gemm_experts_gather.hpp.
#pragma once

#include "gemm_experts.hpp"

#if !defined(KILN_DEVICE_PASS)
#include "gemm_experts_combine_kernel.hpp"
#endif
