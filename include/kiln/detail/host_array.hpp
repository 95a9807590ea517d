// The bytes of an array on the host.
#pragma once

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace kiln::detail {

/// Large arrays lie in huge pages, where the system has them. @throws std::bad_alloc
void* allocate_array(std::size_t bytes);
void release_array(void* memory, std::size_t bytes) noexcept;

/// Leaves elements unwritten that are given no value, so that resize() touches no memory: the first
/// write to a page takes longer than what is written, and can be shared by all cores.
template <class T>
struct UnwrittenAllocator {
  using value_type = T;

  UnwrittenAllocator() = default;
  template <class U>
  UnwrittenAllocator(const UnwrittenAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_array(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept {
    release_array(memory, count * sizeof(T));
  }
  template <class U>
  void construct(U*) noexcept {}
  template <class U, class... Arguments>
  void construct(U* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
  }

  template <class U>
  bool operator==(const UnwrittenAllocator<U>&) const noexcept {
    return true;
  }
};

using HostArray = std::vector<std::byte, UnwrittenAllocator<std::byte>>;

}  // namespace kiln::detail
