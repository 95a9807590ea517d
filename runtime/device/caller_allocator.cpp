#include "runtime/device/caller_allocator.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/workspace.hpp"

namespace kiln::runtime {

using kiln::detail::format;

CallerAllocator::CallerAllocator(Allocator allocator) : functions_(std::move(allocator)) {
  if (!functions_) return;
  if (!functions_.allocate) throw UserError("RuntimeOptions::allocator has no `allocate`");
  if (!functions_.release) throw UserError("RuntimeOptions::allocator has no `release`");
}

void* CallerAllocator::allocate(std::size_t bytes) const {
  std::string why;  // after "the program's allocator"
  void* memory = nullptr;
  try {
    memory = functions_.allocate(bytes);
    if (!memory) why = format("returned null for {} bytes", bytes);
  } catch (const std::exception& error) {
    why = format("failed for {} bytes: {}", bytes, error.what());
  } catch (...) {
    why = format("threw an exception for {} bytes", bytes);
  }
  if (memory && reinterpret_cast<std::uintptr_t>(memory) % kWorkspaceAlignment != 0) {
    release(memory, bytes);
    why = format("returned memory for {} bytes that is not aligned to {} bytes", bytes,
                 kWorkspaceAlignment);
    memory = nullptr;
  }
  if (!memory) throw EnvironmentError(format("the program's allocator {}", why));
  return memory;
}

void CallerAllocator::release(void* memory, std::size_t bytes) const noexcept {
  try {
    functions_.release(memory, bytes);
  } catch (...) {  // it must not, and a destructor cannot pass it on
  }
}

std::optional<std::int64_t> CallerAllocator::available() const try {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (!functions_.available) return {};
  return static_cast<std::int64_t>(std::min(kMost, functions_.available()));
} catch (...) {
  return {};
}

}  // namespace kiln::runtime
