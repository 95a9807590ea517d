#include "allocations.hpp"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
thread_local std::size_t allocation_count = 0, refused_allocation = 0;
thread_local bool exempt = false;
std::atomic<std::size_t> most_bytes = SIZE_MAX;
}  // namespace

namespace kiln::test {
std::size_t allocations() noexcept { return allocation_count; }

OutOfMemory::OutOfMemory(std::size_t more) noexcept {
  refused_allocation = allocation_count + more + 1;
}
OutOfMemory::~OutOfMemory() { refused_allocation = 0; }

LittleForOthers::LittleForOthers(std::size_t most) noexcept {
  exempt = true;
  most_bytes = most;
}
LittleForOthers::~LittleForOthers() {
  most_bytes = SIZE_MAX;
  exempt = false;
}
}  // namespace kiln::test

// Every form but the aligned ones, so that none meets the other half of another library's pair.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  if (++allocation_count == refused_allocation || (size > most_bytes && !exempt)) return nullptr;
  return std::malloc(size ? size : 1);
}
void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t& n) noexcept {
  return operator new(size, n);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
