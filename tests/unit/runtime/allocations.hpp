// Counts what a thread takes from the heap.
#pragma once

#include <cstddef>

namespace kiln::test {

/// Calls of operator new by this thread so far.
std::size_t allocations() noexcept;

}  // namespace kiln::test
