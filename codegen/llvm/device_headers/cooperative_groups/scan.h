// What a member's value comes to with those of all members before it.
#pragma once

#include "cooperative_groups/kiln_operations.h"

namespace cooperative_groups {

template <class Group, class T, class Operation>
T inclusive_scan(const Group& group, T value, Operation&& combine) {
  return kiln_groups::running(group, value, combine);
}
template <class Group, class T>
T inclusive_scan(const Group& group, T value) {
  return inclusive_scan(group, value, plus<T>());
}
// The first member has T{}.
template <class Group, class T, class Operation>
T exclusive_scan(const Group& group, T value, Operation&& combine) {
  const T before = group.shfl_up(kiln_groups::running(group, value, combine), 1);
  return group.thread_rank() == 0 ? T{} : before;
}
template <class Group, class T>
T exclusive_scan(const Group& group, T value) {
  return exclusive_scan(group, value, plus<T>());
}

}  // namespace cooperative_groups
