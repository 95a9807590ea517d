#include "kiln/detail/host_array.hpp"

#include <cstdlib>
#include <new>

#include <sys/mman.h>

namespace kiln::detail {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void* allocate_array(std::size_t bytes) {
  const bool large = bytes >= 2 * kHugePage && bytes <= ~std::size_t{0} - kHugePage;
  const std::size_t alignment = large ? kHugePage : alignof(std::max_align_t);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded);
  if (!memory && bytes != 0) throw std::bad_alloc();
  if (large) ::madvise(memory, rounded, MADV_HUGEPAGE);  // a wish: 4 KiB pages will do
  return memory;
}

void release_array(void* memory, std::size_t) noexcept { std::free(memory); }

}  // namespace kiln::detail
