// The arguments of one launch, made for a problem: what a kernel is tuned and verified on.
//
//   .workload = [](const Elementwise& p, kiln::Workload& w) {
//     w.output<float>(p.n).input<float>(p.n).input<float>(p.n).scalar<int>(p.n);  // signature
//     order
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kiln/types.hpp"

namespace kiln {

enum class Direction : std::uint8_t { in, out, in_out };

/// Interval that random elements are drawn from. Never all zeros: zeros hide unwritten outputs and
/// run faster than real data. Integers are drawn from those inside it that the type can hold: {0,
/// 1} of [-1, 1] for unsigned ones. An interval without any, or with zero alone, is a UserError.
struct Uniform {
  double low = -1.0, high = 1.0;
};

/// Host copies of every argument, in signature order. The same seed gives the same bytes
/// everywhere. Not thread-safe.
class Workload {
 public:
  struct Argument {
    DataType type = DataType::bytes;
    Direction direction = Direction::in;
    bool pointer = false;
    std::size_t count = 1;  ///< elements
    std::size_t element_bytes = 0;
    std::vector<std::byte> bytes;  ///< outputs: poisoned
  };

  explicit Workload(std::uint64_t seed = 1) : seed_(seed) {}

  /// A read-only array of `count` random elements.
  template <class T>
  Workload& input(std::size_t count, Uniform range = {}) {
    return random(data_type<T>(), Direction::in, count, range);
  }
  /// A read-only array with these elements (indices, tables).
  template <class T>
  Workload& input(std::span<const T> elements) {
    return add(data_type<T>(), Direction::in, true, elements.size(), sizeof(T), elements.data());
  }
  /// An array that the kernel writes completely.
  template <class T>
  Workload& output(std::size_t count) {
    return add(data_type<T>(), Direction::out, true, count, sizeof(T), nullptr);
  }
  /// An array that the kernel reads and writes; restored before every measured launch.
  template <class T>
  Workload& in_out(std::size_t count, Uniform range = {}) {
    return random(data_type<T>(), Direction::in_out, count, range);
  }
  /// A by-value argument.
  template <class T>
  Workload& scalar(T value) {
    return add(data_type<T>(), Direction::in, false, 1, sizeof(T), &value);
  }

  const std::vector<Argument>& arguments() const noexcept { return arguments_; }
  std::vector<Argument>& arguments() noexcept { return arguments_; }

  /// Bytes of all arrays.
  std::size_t bytes() const noexcept;

 private:
  Workload& add(DataType type, Direction direction, bool pointer, std::size_t count,
                std::size_t element_bytes, const void* data);
  Workload& random(DataType type, Direction direction, std::size_t count, Uniform range);

  std::uint64_t seed_;
  std::vector<Argument> arguments_;
};

}  // namespace kiln
