// How far apart problems are.
#pragma once

#include <cmath>
#include <cstdint>

namespace kiln::runtime {

/// Of a field of a problem, in doublings.
inline double log_size(std::int64_t value) {
  return std::log2(1.0 + std::abs(static_cast<double>(value)));
}

/// How far apart two fields are, in doublings.
inline double size_distance(std::int64_t a, std::int64_t b) {
  return std::abs(log_size(a) - log_size(b));
}

}  // namespace kiln::runtime
