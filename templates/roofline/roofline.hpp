// The kernels that a device's roofline is measured with.
//
//   copy: out[i] = in[i],                                      0 <= i < elements
//   fma:  out[i] = f^steps(in[i]), f(x) = fma(x, 0.999, 0.001), 0 <= i < elements
//   mma:  out[t] = steps * A B in the layout of an accumulator,  0 <= t < tiles; A 16 x 16
//   row-major
//         and B 8 x 16 (transposed) of bfloat16, out[t] 128 floats: lane l's are 4 l ... 4 l + 3
//
// Arrays are contiguous, aligned to 64 bytes; `out` may not overlap an input. Chains, and tiles,
// are independent of each other, and as long as `steps`: what is timed is arithmetic.
#pragma once

#include "kiln/config.hpp"

namespace kiln::templates {

struct RooflineCopy {
  int block;       // threads per block
  int items;       // accesses per thread
  int vector;      // floats per access
  bool streaming;  // stores bypass the caches

  constexpr int tile() const { return block * items * vector; }  // floats per block
};

struct CopyProblem {
  long long elements;  // floats
};

struct RooflineFma {
  int block;   // threads per block
  int chains;  // per thread, each of `vector` floats
  int vector;  // floats that take each step together: lanes of a CPU's registers, 1 on a GPU

  constexpr int tile() const { return block * chains * vector; }  // floats per block
};

struct FmaProblem {
  long long elements;  // floats
  int steps;           // fused multiply-adds per float
};

struct RooflineMma {
  int block;  // threads per block: whole warps
  int tiles;  // 16 x 8 accumulators per warp

  constexpr int tile() const { return block / 32 * tiles; }  // accumulators per block
};

struct MmaProblem {
  long long tiles;
  int steps;  // 16 x 8 x 16 multiply-adds per tile
};

inline constexpr float kFmaFactor = 0.999f, kFmaSummand = 0.001f;

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::RooflineCopy, block, items, vector, streaming)
KILN_PROBLEM(kiln::templates::CopyProblem, elements)
KILN_CONFIG(kiln::templates::RooflineFma, block, chains, vector)
KILN_PROBLEM(kiln::templates::FmaProblem, elements, steps)
KILN_CONFIG(kiln::templates::RooflineMma, block, tiles)
KILN_PROBLEM(kiln::templates::MmaProblem, tiles, steps)
