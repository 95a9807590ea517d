// How much of the host's memory may be kept for data that are used again.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/support/machine.hpp"

namespace kiln::runtime {

/// Shared by the makers of one tuning, on one thread.
class KeptMemory {
 public:
  /// Allows 1 / `parts` of the memory that is available now; any amount if that is unknown.
  explicit KeptMemory(std::int64_t parts) {
    if (const auto available = available_memory()) left_ = *available / parts;
  }

  bool take(std::int64_t bytes) {
    if (left_ && bytes > *left_) return false;
    if (left_) *left_ -= bytes;
    return true;
  }
  void give_back(std::int64_t bytes) noexcept {
    if (left_) *left_ += bytes;
  }

 private:
  std::optional<std::int64_t> left_;  ///< bytes
};

}  // namespace kiln::runtime
