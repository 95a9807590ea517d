// out[i] = a[i] + b[i] for 0 <= i < n, in T = float, __half or __nv_bfloat16; sums round once.
//
// Arrays are contiguous. Where all three pointers are 16-byte aligned, full tiles move 16 bytes per
// access; a ragged last tile and unaligned arrays go element by element. `out` may be `a` or `b`
// itself, but may not overlap them otherwise.
#pragma once

#include "kiln/config.hpp"

namespace kiln::templates {

struct VectorAdd {
  int block;  // threads per block
  int items;  // elements per thread

  constexpr int threads() const { return block; }
  constexpr int tile() const { return block * items; }  // elements per block
  constexpr unsigned shared_bytes() const { return 0; }
  /// Blocks. More than fit an unsigned are as many as do, which is more than any device takes.
  constexpr unsigned grid(long long elements) const {
    const long long blocks = (elements + tile() - 1) / tile();
    return blocks > ~0u ? ~0u : static_cast<unsigned>(blocks);
  }
};

struct Elementwise {
  int n;  // elements
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::VectorAdd, block, items)
KILN_PROBLEM(kiln::templates::Elementwise, n)
