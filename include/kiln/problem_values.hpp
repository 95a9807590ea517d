// A problem's values as a launch is given them, without the heap.
//
//   add({}, {n}, out, a, b, n);  // a list, Values or a span
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "kiln/space.hpp"

namespace kiln {

/// One value per field, in field order. Up to eight take no memory from the heap.
class ProblemValues {
 public:
  ProblemValues() = default;
  ProblemValues(std::span<const std::int64_t> values) : size_(values.size()) {
    if (size_ <= few_.size())
      std::copy(values.begin(), values.end(), few_.begin());
    else
      many_ = detail::copy(values);
  }
  ProblemValues(std::initializer_list<std::int64_t> values)
      : ProblemValues(std::span<const std::int64_t>(values.begin(), values.size())) {}
  ProblemValues(const Values& values) : ProblemValues(std::span<const std::int64_t>(values)) {}
  template <std::size_t N>
  ProblemValues(const std::array<std::int64_t, N>& values)
      : ProblemValues(std::span<const std::int64_t>(values)) {}

  std::size_t size() const noexcept { return size_; }
  const std::int64_t* data() const noexcept {
    return size_ <= few_.size() ? few_.data() : many_.data();
  }
  const std::int64_t* begin() const noexcept { return data(); }
  const std::int64_t* end() const noexcept { return data() + size_; }
  std::int64_t operator[](std::size_t field) const noexcept { return data()[field]; }
  operator Values() const { return detail::copy(*this); }
  friend bool operator==(const ProblemValues& a, const ProblemValues& b) noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::size_t size_ = 0;
  std::array<std::int64_t, 8> few_{};
  Values many_;  ///< all of them, if there are more than eight
};

}  // namespace kiln
