#include "runtime/device/caller_allocator.hpp"

#include <cstdint>
#include <exception>
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
  std::string why;
  void* memory = nullptr;
  try {
    memory = functions_.allocate(bytes);
    if (!memory) why = "it returned null";
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = "it threw an exception";
  }
  if (memory && reinterpret_cast<std::uintptr_t>(memory) % kWorkspaceAlignment != 0) {
    release(memory, bytes);
    why = format("what it returned is not aligned to {} bytes", kWorkspaceAlignment);
    memory = nullptr;
  }
  if (!memory)
    throw EnvironmentError(
        format("the program's allocator has no {} bytes of device memory: {}", bytes, why));
  return memory;
}

void CallerAllocator::release(void* memory, std::size_t bytes) const noexcept {
  try {
    functions_.release(memory, bytes);
  } catch (...) {  // it must not, and a destructor cannot pass it on
  }
}

}  // namespace kiln::runtime
