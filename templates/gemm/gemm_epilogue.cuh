// What happens to a sum of a GEMM before it is rounded and stored: a type with a call operator
//   __device__ float operator()(float sum, int row, int column) const;
// for a place in C. It is the kernel's last parameter, so it may hold pointers and scalars. The bodies
// call it for places inside of C, once per element; one that says
//   static constexpr bool kRepeatable = true;
// may be called more than once for an element, by several blocks that store the same value. So it must
// not read what may be C itself.
#pragma once

namespace kiln::templates {

/// Nothing.
struct StoreSum {
  static constexpr bool kNothing = true, kRepeatable = true;
  __device__ float operator()(float sum, int, int) const { return sum; }
};

}  // namespace kiln::templates
