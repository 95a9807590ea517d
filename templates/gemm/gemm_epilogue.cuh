// What happens to a sum of a GEMM before it is rounded and stored: a type with a call operator
//   __device__ float operator()(float sum, int row, int column) const;
// for a place in C. It is the kernel's last parameter, so it may hold pointers and scalars. The bodies
// call it once per element, for places inside of C.
#pragma once

namespace kiln::templates {

/// Nothing.
struct StoreSum {
  static constexpr bool kNothing = true;
  __device__ float operator()(float sum, int, int) const { return sum; }
};

}  // namespace kiln::templates
