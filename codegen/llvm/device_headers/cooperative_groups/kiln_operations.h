// The operations that reductions and scans take, and what both are made of.
#pragma once

#include "cooperative_groups.h"

namespace cooperative_groups {

#define __KILN_OPERATION(name, expression)                \
  template <class T>                                      \
  struct name {                                           \
    T operator()(T a, T b) const { return (expression); } \
  };
__KILN_OPERATION(plus, a + b)
__KILN_OPERATION(less, b < a ? b : a)
__KILN_OPERATION(greater, a < b ? b : a)
__KILN_OPERATION(bit_and, a& b)
__KILN_OPERATION(bit_or, a | b)
__KILN_OPERATION(bit_xor, a ^ b)
#undef __KILN_OPERATION

namespace kiln_groups {

// A member's value combined with those of all before it. Floating-point values are combined in
// CUDA's order.
template <class Group, class T, class Operation>
T running(const Group& group, T value, Operation& combine) {
  const unsigned rank = group.thread_rank(), size = group.num_threads();
  for (unsigned by = 1; by < size; by *= 2) {
    const T before = group.shfl_up(value, by);
    if (rank >= by) value = combine(value, before);
  }
  return value;
}
}  // namespace kiln_groups

}  // namespace cooperative_groups
