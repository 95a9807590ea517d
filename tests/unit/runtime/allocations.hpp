// Counts what a thread takes from the heap, and refuses it.
#pragma once

#include <cstddef>

namespace kiln::test {

/// Calls of operator new by this thread so far.
std::size_t allocations() noexcept;

/// While it lives, this thread gets `more` allocations, and then one that fails.
class OutOfMemory {
 public:
  explicit OutOfMemory(std::size_t more) noexcept;
  ~OutOfMemory();
  OutOfMemory(const OutOfMemory&) = delete;
  OutOfMemory& operator=(const OutOfMemory&) = delete;
};

/// While it lives, all threads but this one get at most `most` bytes at once.
class LittleForOthers {
 public:
  explicit LittleForOthers(std::size_t most) noexcept;
  ~LittleForOthers();
  LittleForOthers(const LittleForOthers&) = delete;
  LittleForOthers& operator=(const LittleForOthers&) = delete;
};

}  // namespace kiln::test
