// How long one operation of several GPUs takes that multiplies and communicates: all-gather + GEMM,
// and GEMM + reduce-scatter. Pure functions: no clock, no device. It is what overlap can reach:
// whole waves of tiles, links that carry nothing else, and no multiprocessor that is slowed down by
// copies beside it.
#pragma once

#include <cstdint>

namespace sim {

/// A GPU and its links, as measured or taken from a data sheet. The defaults are an H200 among two:
/// its arithmetic and its links are those that the published figures come from.
struct Machine {
  double flops_per_second = 0.75e15;  ///< of a bf16 GEMM
  double bytes_per_second = 370e9;    ///< that a GPU sends to all others together, and receives
  double copy_start_seconds = 4e-6;   ///< of each copy, while its link idles: what many chunks cost
  double flag_seconds = 2e-6;         ///< from a signal to the waiting block
  double launch_seconds = 5e-6;       ///< of a kernel or a collective behind another one
  double memory_bytes_per_second = 4e12;
};

/// bf16. All-gather: A's `m` rows of `k` are divided among ranks, and each rank multiplies all of
/// them by `n` columns of its own. Reduce-scatter: each rank multiplies `m` x `k` of its own by `k`
/// x `n`, and of the sum over ranks it gets its part of the `m` rows. @pre m is a multiple of ranks
/// x chunks
struct Operation {
  std::int64_t m = 0, n = 0, k = 0;
  int ranks = 2;
};

struct Overlap {
  int chunks = 1;  ///< that a rank's rows are sent in
  /// Parts of the multiprocessors that communicate instead of multiplying; 0: copy engines do it.
  double communicating = 0;
};

/// Of one copy to another GPU.
double copy_seconds(double bytes, const Machine& machine);
double gemm_seconds(const Operation& operation, const Machine& machine);
/// What a rank receives (or sends) divided by its links; without any latency.
double all_gather_seconds(const Operation& operation, const Machine& machine);
double reduce_scatter_seconds(const Operation& operation, const Machine& machine);

/// One after the other: the collective and the GEMM as two launches.
double unfused_all_gather_gemm(const Operation& operation, const Machine& machine);
double unfused_gemm_reduce_scatter(const Operation& operation, const Machine& machine);

/// At once. Each rank sends its chunks to all others, the next rank first; a GEMM takes its own
/// rows, then others' in the order in which they come, and waits for each chunk's flag.
double fused_all_gather_gemm(const Operation& operation, const Machine& machine,
                             const Overlap& how);
/// At once. The GEMM's rows that other ranks need come first, and its own last; a chunk of sums
/// leaves as soon as it is there, and its owner adds it to its own. The operation ends when all
/// have come.
double fused_gemm_reduce_scatter(const Operation& operation, const Machine& machine,
                                 const Overlap& how);

}  // namespace sim
