// The arguments of one launch, made for a problem: what a kernel is tuned and verified on.
//
//   kernel.workload = [](const Elementwise& p, kiln::Workload& w) {
//     w.output<float>(p.n).input<float>(p.n).input<float>(p.n).scalar<int>(p.n);  // in order
//   };
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/host_array.hpp"
#include "kiln/symbol.hpp"
#include "kiln/types.hpp"

namespace kiln {

enum class Direction : std::uint8_t { in, out, in_out };

/// Interval that random elements are drawn from. Never all zeros: zeros hide unwritten outputs and
/// run faster than real data. Integers are drawn from those in the interval that the type can hold:
/// {0, 1} of [-1, 1] for unsigned types. An interval that holds none, or zero alone, is a
/// UserError.
struct Uniform {
  double low = -1.0, high = 1.0;
};

/// Rows of `columns` elements that begin `leading` elements apart: a matrix with padding between
/// its rows, as a leading dimension makes it. The array ends with its last row's last element. What
/// lies between the rows is neither input nor output: it is filled with NaNs in inputs, with other
/// values in arrays that are written, it is not compared, and a kernel that writes there is wrong.
struct Rows {
  std::size_t rows = 0, columns = 0;
  std::size_t leading = 0;  ///< at least `columns`

  /// From the first element to the last, padding included.
  constexpr std::size_t span() const noexcept {
    return rows == 0 || columns == 0 ? 0 : (rows - 1) * leading + columns;
  }
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
    detail::HostArray bytes;  ///< outputs: poisoned
    bool zeroed = false;      ///< for `in_out`: begins as zeros
    /// Elements from one row to the next, and elements of a row. 0: no padding.
    std::size_t leading = 0, columns = 0;
    bool address = false;  ///< a pointer that is passed as it is; `pointer` is false

    bool padded() const noexcept { return leading > columns; }
    /// Whether an element belongs to a row, rather than to the padding.
    bool has(std::size_t element) const noexcept {
      return leading <= columns || element % leading < columns;
    }
  };

  /// What a global variable holds while candidates are verified and timed.
  struct Variable {
    std::string name;
    /// By the config's values, in parameter order.
    std::function<std::vector<std::byte>(std::span<const std::int64_t> config)> make;
  };

  explicit Workload(std::uint64_t seed = 1, std::size_t draw = 0)
      : seed_(draw == 0 ? seed : of_draw(seed, draw)), draw_(draw) {}

  /// Which of the kernel's `draws` is made, from 0. Random elements differ from draw to draw.
  std::size_t draw() const noexcept { return draw_; }

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
  /// An array that the kernel adds to, as split-K kernels do: zeros before every launch, verified,
  /// measured or not. Zeroing it is not timed.
  template <class T>
  Workload& zeroed(std::size_t count) {
    return zeroed_rows(data_type<T>(), {1, count, count}, sizeof(T));
  }

  /// The same for rows with padding. @throws UserError when `leading` is less than `columns`
  template <class T>
  Workload& input(const Rows& rows, Uniform range = {}) {
    return random_rows(data_type<T>(), Direction::in, rows, range);
  }
  template <class T>
  Workload& output(const Rows& rows) {
    return add_rows(data_type<T>(), Direction::out, rows, sizeof(T));
  }
  template <class T>
  Workload& in_out(const Rows& rows, Uniform range = {}) {
    return random_rows(data_type<T>(), Direction::in_out, rows, range);
  }
  template <class T>
  Workload& zeroed(const Rows& rows) {
    return zeroed_rows(data_type<T>(), rows, sizeof(T));
  }

  /// A by-value argument.
  template <class T>
  Workload& scalar(T value) {
    return add(data_type<T>(), Direction::in, false, 1, sizeof(T), &value);
  }

  /// A pointer to memory of the program's, which is passed as it is: to memory that ranks share,
  /// say. What lies there is neither made nor checked nor restored, and a reference must not read
  /// it: what it gets is no such pointer. Such a kernel is tuned in the program's own process, but
  /// in workers where ranks tune it in step and it is symmetric memory, which begins as zeros.
  Workload& address(const void* memory) {
    add(DataType::bytes, Direction::in, false, 1, sizeof memory, &memory);
    arguments_.back().address = true;
    return *this;
  }

  /// A `__constant__` or `__device__` variable of the source, by its name there (`filter`,
  /// `image::filter`, `table<float>`), and all of its data: elements in one piece, or a value.
  /// Without this a variable holds what the source gives it, which is zeros as a rule.
  ///
  /// The data are copied into each candidate's own module before it runs. If a candidate changes
  /// the variable while it is verified, the data are restored before each of its launches, verified
  /// or timed. A variable that is not there, or has another size, fails the candidate.
  /// @throws UserError when the variable has data already
  template <class T>
    requires(!std::invocable<const T&, std::span<const std::int64_t>>)
  Workload& symbol(std::string name, const T& data) {
    const std::span<const std::byte> bytes = detail::bytes_of(data);
    return variable(std::move(name), [copy = std::vector<std::byte>(bytes.begin(), bytes.end())](
                                         std::span<const std::int64_t>) { return copy; });
  }
  /// The same with data that depend on the config: `make` gets its values in parameter order
  /// (`kiln::from_values<Config>` makes a struct of them).
  template <class F>
    requires std::invocable<const F&, std::span<const std::int64_t>>
  Workload& symbol(std::string name, F make) {
    return variable(std::move(name), [make](std::span<const std::int64_t> config) {
      const auto data = make(config);
      const std::span<const std::byte> bytes = detail::bytes_of(data);
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    });
  }

  const std::vector<Variable>& variables() const noexcept { return variables_; }
  const std::vector<Argument>& arguments() const noexcept { return arguments_; }
  std::vector<Argument>& arguments() noexcept { return arguments_; }

  /// Bytes of all arrays.
  std::size_t bytes() const noexcept;

 private:
  /// Its elements are not written.
  Argument& append(DataType type, Direction direction, bool pointer, std::size_t count,
                   std::size_t element_bytes);
  Workload& add(DataType type, Direction direction, bool pointer, std::size_t count,
                std::size_t element_bytes, const void* data);
  Workload& random(DataType type, Direction direction, std::size_t count, Uniform range);
  Workload& add_rows(DataType type, Direction direction, const Rows& rows,
                     std::size_t element_bytes);
  Workload& random_rows(DataType type, Direction direction, const Rows& rows, Uniform range);
  Workload& zeroed_rows(DataType type, const Rows& rows, std::size_t element_bytes);
  Workload& pad(const Rows& rows);
  void check_rows(const Rows& rows) const;
  static std::uint64_t of_draw(std::uint64_t seed, std::size_t draw) noexcept;

  Workload& variable(
      std::string name,
      std::function<std::vector<std::byte>(std::span<const std::int64_t> config)> make);

  std::uint64_t seed_;
  std::size_t draw_ = 0;
  std::vector<Argument> arguments_;
  std::vector<Variable> variables_;
};

}  // namespace kiln
