// Tokens of all ranks come to their experts' rows, and each expert multiplies its rows by the
// rank's part of its weights.
//
//   C[i][j] = sum_l A_r[tokens[i] - r * m][l] * B[g][j][l],
//   r = tokens[i] / m, begin(g) <= i < ends[g], 0 <= j < n, 0 <= l < k
//
// A_r: [m][k], rank r's tokens; B: [groups][n][k] and C: [ranks * m * top][n], each rank's own. All
// are row-major without gaps, of T = float, __half or __nv_bfloat16. Sums are in float, and C
// rounds once. In the ranks' symmetric memory, of expert_gather_bytes<T>(...) bytes or more, all
// rows are gathered: [ranks * m * top][k].
//
// overlap (PeerGemm): `senders` blocks send the rank's tokens to their rows on all ranks, from the
// first row on, by bulk copies through shared memory, while the others multiply, expert by expert;
// the copying thread of a block waits until the rows of its tile are there. chunks: of all rows.
// Otherwise one launch gathers all rows, and a second one multiplies them.
//
//   const auto bytes = expert_gather_bytes<kiln::bfloat16>(m, k, 2, ranks->size());
//   kiln::SymmetricMemory memory(runtime, ranks, {.bytes = bytes, .flags = kExpertFlags});
//   ExpertsGather<kiln::bfloat16> up(runtime, memory);
//   const ExpertsProblem problem{.m = m, .n = n, .k = k, .groups = 32, .top = 2,
//                                .ranks = memory.size()};
//   memory.within(kiln::deadline_in(60), [&] { up.tune(problem, ranks); });
//   up(stream, c, a, b, tokens, ends, problem);
//
// Rows, memory, launches: gemm_experts.hpp. Errors as in gemm_peers.hpp. Tunings draw experts that
// get as many rows each, that get very different ones, and of which every second one gets none and
// an eighth of the choices is dropped.
#pragma once

#include "gemm_experts.hpp"

#if !defined(KILN_DEVICE_PASS)
#include "gemm_experts_gather_kernel.hpp"
#endif
