// The program's allocator in the place of a device's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kiln/allocator.hpp"

namespace kiln::runtime {

/// Thread-safe as far as the program's functions are.
class CallerAllocator {
 public:
  /// None: a device allocates by its own means.
  CallerAllocator() = default;
  /// @throws UserError when one of the functions is there without the other
  explicit CallerAllocator(Allocator allocator);

  explicit operator bool() const noexcept { return static_cast<bool>(functions_); }
  /// @throws EnvironmentError that names the bytes when the program has none, or none that is
  /// aligned
  void* allocate(std::size_t bytes) const;
  void release(void* memory, std::size_t bytes) const noexcept;
  /// Bytes that are left; nothing where the program does not say, or throws.
  std::optional<std::int64_t> available() const;

 private:
  Allocator functions_;
};

}  // namespace kiln::runtime
