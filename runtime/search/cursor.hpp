// A place in a space with its values beside it, so that walking and sampling allocate nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kiln/space.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime {

/// A config as the place of each value in its parameter's list.
using Point = std::vector<std::uint16_t>;

/// Refers to the space. Not thread-safe.
class Cursor {
 public:
  /// Starts at the first combination. @throws UserError when a parameter has too many values for a
  /// Point.
  explicit Cursor(const DynamicSpace& space);

  const Point& point() const noexcept { return point_; }
  std::span<const std::int64_t> values() const noexcept { return values_; }

  void set(std::size_t dimension, std::size_t place) {
    point_[dimension] = static_cast<std::uint16_t>(place);
    values_[dimension] = space_.parameters()[dimension].values[place];
  }
  void set(const Point& point) {
    for (std::size_t d = 0; d < point.size(); ++d) set(d, point[d]);
  }
  /// Moves to a combination drawn uniformly.
  void jump(Random& random) {
    for (std::size_t d = 0; d < point_.size(); ++d) set(d, random.below(arity(d)));
  }
  /// Moves to the next combination; the last parameter changes fastest. After the last combination
  /// it returns to the first one, and gives false.
  bool advance() {
    for (std::size_t d = point_.size(); d-- > 0;) {
      if (std::size_t{point_[d]} + 1 < arity(d)) {
        set(d, std::size_t{point_[d]} + 1);
        return true;
      }
      set(d, 0);
    }
    return false;
  }

 private:
  std::size_t arity(std::size_t dimension) const {
    return space_.parameters()[dimension].values.size();
  }

  const DynamicSpace& space_;
  Point point_;
  Values values_;
};

}  // namespace kiln::runtime
