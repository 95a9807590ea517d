// out[i] = a[i] + b[i] for 0 <= i < n, in T = float, __half or __nv_bfloat16; sums round once.
// NaNs and infinities add as IEEE 754 has it: a NaN, and infinities of both signs, become NaN.
//
// Arrays are contiguous. Where all three pointers are 16-byte aligned, full tiles move 16 bytes per
// access; a ragged last tile and unaligned arrays go element by element. `out` may be `a` or `b`
// itself, but may not overlap them otherwise.
//
// C++ programs: `auto add = runtime.tuned(kiln::templates::vector_add_kernel<float>());`.
#pragma once

#include "kiln/config.hpp"
#if !defined(KILN_DEVICE_PASS)
#include "kiln/kernel.hpp"
#endif

namespace kiln::templates {

struct VectorAdd {
  int block;  // threads per block
  int items;  // elements per thread

  constexpr int threads() const { return block; }
  constexpr int tile() const { return block * items; }  // elements per block
  constexpr unsigned shared_bytes() const { return 0; }
  /// Blocks; the largest unsigned if there are more, which is more than any device takes.
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

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: out, a, b, n.
template <class T>
using VectorAddKernel = Kernel<VectorAdd, Elementwise, void(T*, const T*, const T*, int)>;
template <class T>
VectorAddKernel<T> vector_add_kernel();

}  // namespace kiln::templates
#endif
