// Configurations of gemm_small_m.cuh, the GEMM for few rows (m <= 32) and a B that is read once: at
// the speed of memory. B goes from memory to registers and into mma.sync, no shared memory between.
//
// A warp has tiles_n x 16 columns of C and takes every `warps`-th slice of k; the block's warps add
// up their sums at the end. Any sm_80 or later; A [m][k], B [n][k]; k is a multiple of 8, and so
// are leading dimensions and strides of A and B.
#pragma once

#include "kiln/config.hpp"

namespace kiln::templates {

struct GemmSmallM {
  int warps;          // that share the k of the block's columns
  int tiles_m;        // of 8 rows of C
  int tiles_n;        // of 16 columns of C per warp
  int unroll;         // slices of 32 k that a warp loads at a time
  bool programmatic;  // the launch may begin before the stream's previous one has ended; sm_90

  static constexpr int kSlice = 32;  // k elements: 16 bytes for each of a row's four lanes

  constexpr int threads() const { return 32 * warps; }
  constexpr int rows() const { return 8 * tiles_m; }      // of C per block, all of m
  constexpr int columns() const { return 16 * tiles_n; }  // of C per block
  constexpr unsigned shared_bytes() const {
    return static_cast<unsigned>(warps * rows() * columns() * 4);
  }
  constexpr unsigned grid(int n) const {
    return static_cast<unsigned>((static_cast<long long>(n) + columns() - 1) / columns());
  }
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::GemmSmallM, warps, tiles_m, tiles_n, unroll, programmatic)
