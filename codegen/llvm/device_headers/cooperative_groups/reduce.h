// Reductions of tiles and of converged threads, each with the result in every member.
#pragma once

#include "cooperative_groups/kiln_operations.h"

namespace cooperative_groups {

// Floating-point values are combined in CUDA's order.
template <unsigned threads, class Parent, class T, class Operation>
T reduce(const thread_block_tile<threads, Parent>& tile, T value, Operation&& combine) {
  for (unsigned lanes = threads / 2; lanes > 0; lanes /= 2)
    value = combine(value, tile.shfl_xor(value, lanes));
  return value;
}
template <class T, class Operation>
T reduce(const coalesced_group& group, T value, Operation&& combine) {
  if (group.num_threads() == 32)
    return reduce(tiled_partition<32>(this_thread_block()), value, combine);
  return group.shfl(kiln_groups::running(group, value, combine), (int)group.num_threads() - 1);
}

}  // namespace cooperative_groups
