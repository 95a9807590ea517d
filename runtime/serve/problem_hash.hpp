// Where a problem lies in the tables that launches read.
#pragma once

#include <cstdint>
#include <span>

namespace kiln::runtime {

/// On the way of each launch. Declared `inline`, because a shared library's other functions are not
/// inlined.
inline std::uint64_t hash_of(std::span<const std::int64_t> problem) noexcept {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (const std::int64_t value : problem) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace kiln::runtime
