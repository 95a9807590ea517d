// Copies by a group. Here a copy is done when the call returns; `wait` is where others may see it.
#pragma once

#include "cooperative_groups.h"

namespace cooperative_groups {

template <class Group, class T, class Size>
void memcpy_async(const Group& group, T* to, const T* from, const Size& bytes) {
  const size_t all = (size_t)bytes, step = group.num_threads();
  char* target = (char*)to;
  const char* source = (const char*)from;
  size_t done = 0;
  if (((size_t)target | (size_t)source) % 4 == 0) {
    done = all & ~(size_t)3;
    for (size_t i = 4 * group.thread_rank(); i < done; i += 4 * step)
      __builtin_memcpy(target + i, source + i, 4);
  }
  for (size_t i = done + group.thread_rank(); i < all; i += step) target[i] = source[i];
}
// Sizes in elements; the smaller one counts.
template <class Group, class T, class To, class From>
void memcpy_async(const Group& group, T* to, const To& to_size, const T* from,
                  const From& from_size) {
  const size_t a = (size_t)to_size, b = (size_t)from_size;
  memcpy_async(group, to, from, (a < b ? a : b) * sizeof(T));
}
template <class Group>
void wait(const Group& group) {
  group.sync();
}
template <unsigned stages, class Group>
void wait_prior(const Group& group) {
  group.sync();
}

}  // namespace cooperative_groups
