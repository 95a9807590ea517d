#include "kiln/workload.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/measure/padding.hpp"
#include "runtime/support/machine.hpp"
#include "runtime/support/parallel.hpp"

namespace kiln {

namespace {

/// splitmix64's output function (Steele, Lea, Flood 2014): one draw per counter, so that element i
/// does not depend on how many were drawn before it.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The integers of T inside the interval; empty when low > high.
template <class T>
struct Integers {
  T low = 1, high = 0;

  explicit Integers(Uniform range) {
    using Limits = std::numeric_limits<T>;
    // max() of a 64-bit type rounds up to a power of two as a double, min() is exact.
    const double first = std::ceil(range.low), last = std::floor(range.high);
    if (first > last || first >= std::ldexp(1.0, Limits::digits) ||
        last < static_cast<double>(Limits::min()))
      return;
    low = first <= static_cast<double>(Limits::min()) ? Limits::min() : static_cast<T>(first);
    high = last >= std::ldexp(1.0, Limits::digits) ? Limits::max() : static_cast<T>(last);
  }
};

template <class T>
T draw(std::uint64_t bits, Uniform range) {
  if constexpr (std::is_integral_v<T>) {
    const Integers<T> inside(range);
    const auto low = static_cast<std::uint64_t>(inside.low);
    const std::uint64_t count = static_cast<std::uint64_t>(inside.high) - low + 1;
    return static_cast<T>(low + (count ? bits % count : bits));  // 0: all 64 bits
  } else {
    const double value =
        range.low + static_cast<double>(bits >> 11) * 0x1p-53 * (range.high - range.low);
    if constexpr (std::is_same_v<T, double>) return value;
    return static_cast<T>(static_cast<float>(value));
  }
}

/// The end of the interval that is farther from zero.
template <class T>
T farthest(Uniform range) {
  const double end = std::abs(range.low) > std::abs(range.high) ? range.low : range.high;
  if constexpr (std::is_integral_v<T>) {
    const Integers<T> inside(range);
    return inside.high != 0 ? inside.high : inside.low;
  } else if constexpr (std::is_same_v<T, double>) {
    return end;
  } else {
    return static_cast<T>(static_cast<float>(end));
  }
}

/// Beyond it a conversion saturates instead of telling.
template <class T>
double largest() {
  if constexpr (std::is_same_v<T, float8_e4m3>) return 448;
  if constexpr (std::is_same_v<T, float8_e5m2>) return 57344;
  return std::numeric_limits<double>::infinity();
}

template <class T>
bool usable(Uniform range) {
  if (!(range.low <= range.high) || !std::isfinite(range.high - range.low)) return false;
  if constexpr (std::is_integral_v<T>) {
    const Integers<T> inside(range);
    if (inside.low > inside.high) return false;
  } else if (!std::isfinite(static_cast<double>(farthest<T>(range))) ||
             std::max(std::abs(range.low), std::abs(range.high)) > largest<T>()) {
    return false;
  }
  return farthest<T>(range) != T{};  // only zeros
}

void fill(std::span<std::byte> bytes, std::byte value) {
  runtime::for_each_block(bytes.size(), [&](std::size_t begin, std::size_t end) {
    std::memset(bytes.data() + begin, std::to_integer<int>(value), end - begin);
  });
}

template <class T>
void fill(std::span<std::byte> bytes, Uniform range, std::uint64_t stream) {
  auto* const out = reinterpret_cast<T*>(bytes.data());
  const std::size_t count = bytes.size() / sizeof(T);
  std::atomic<bool> zeros{true};
  runtime::for_each_block(count, [&](std::size_t begin, std::size_t end) {
    bool all = true;
    for (std::size_t i = begin; i < end; ++i) {
      out[i] = draw<T>(mix(stream + i), range);
      all = all && out[i] == T{};
    }
    if (!all) zeros.store(false, std::memory_order_relaxed);
  });
  if (zeros && count != 0) out[0] = farthest<T>(range);
}

}  // namespace

std::size_t Workload::bytes() const noexcept {
  std::size_t total = 0;
  for (const Argument& a : arguments_)
    if (a.pointer) total += a.bytes.size();
  return total;
}

Workload::Argument& Workload::append(DataType type, Direction direction, bool pointer,
                                     std::size_t count, std::size_t element_bytes) {
  if (count > std::numeric_limits<std::ptrdiff_t>::max() / element_bytes)
    throw UserError(detail::format(
        "workload: argument {} has {} elements of {} bytes: more than any memory holds",
        arguments_.size(), count, element_bytes));
  runtime::require_memory(detail::format("workload: argument {}, {} elements of {} bytes",
                                         arguments_.size(), count, element_bytes)
                              .c_str(),
                          count * element_bytes);
  Argument argument{type, direction, pointer, count, element_bytes, {}};
  argument.bytes.resize(count * element_bytes);
  return arguments_.emplace_back(std::move(argument));
}

Workload& Workload::add(DataType type, Direction direction, bool pointer, std::size_t count,
                        std::size_t element_bytes, const void* data) {
  Argument& argument = append(type, direction, pointer, count, element_bytes);
  if (data && count != 0)
    std::memcpy(argument.bytes.data(), data, argument.bytes.size());
  else  // a NaN in every floating-point type: an element that nobody writes cannot pass
    fill(argument.bytes, std::byte{0xff});
  return *this;
}

Workload& Workload::variable(
    std::string name,
    std::function<std::vector<std::byte>(std::span<const std::int64_t> config)> make) {
  for (const Variable& known : variables_)
    if (known.name == name)
      throw UserError(detail::format("workload: the variable `{}` is given data twice", name));
  variables_.push_back({std::move(name), std::move(make)});
  return *this;
}

Workload& Workload::random(DataType type, Direction direction, std::size_t count, Uniform range) {
  const std::uint64_t stream = mix(seed_ ^ mix(arguments_.size() + 1));
  auto make = [&]<class T>(T) {
    if (!usable<T>(range))
      throw UserError(detail::format(
          "workload: argument {} of {} has the interval [{}, {}], from which nothing "
          "but zeros can be drawn",
          arguments_.size(), to_string(type), range.low, range.high));
    fill<T>(append(type, direction, true, count, sizeof(T)).bytes, range, stream);
  };
  switch (type) {
    case DataType::boolean:
      make(bool{});
      break;
    case DataType::u8:
      make(std::uint8_t{});
      break;
    case DataType::i8:
      make(std::int8_t{});
      break;
    case DataType::i16:
      make(std::int16_t{});
      break;
    case DataType::u16:
      make(std::uint16_t{});
      break;
    case DataType::i32:
      make(std::int32_t{});
      break;
    case DataType::u32:
      make(std::uint32_t{});
      break;
    case DataType::i64:
      make(std::int64_t{});
      break;
    case DataType::u64:
      make(std::uint64_t{});
      break;
    case DataType::f16:
      make(float16{});
      break;
    case DataType::bf16:
      make(bfloat16{});
      break;
    case DataType::f32:
      make(float{});
      break;
    case DataType::f64:
      make(double{});
      break;
    case DataType::fp8_e4m3:
      make(float8_e4m3{});
      break;
    case DataType::fp8_e5m2:
      make(float8_e5m2{});
      break;
    case DataType::bytes:
      throw UserError(
          detail::format("workload: argument {} has a type that random data cannot be drawn for; "
                         "give its elements",
                         arguments_.size()));
  }
  return *this;
}

void Workload::check_rows(const Rows& rows) const {
  constexpr std::size_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  if (rows.leading < rows.columns)
    throw UserError(
        detail::format("workload: argument {} has rows of {} elements that begin {} elements apart",
                       arguments_.size(), rows.columns, rows.leading));
  if (rows.columns > kMost ||
      (rows.rows > 1 && rows.leading > (kMost - rows.columns) / (rows.rows - 1)))
    throw UserError(
        detail::format("workload: argument {} has {} rows that begin {} elements apart: more than "
                       "any memory holds",
                       arguments_.size(), rows.rows, rows.leading));
}

/// Every row of the last argument is followed by the same bytes.
Workload& Workload::pad(const Rows& rows) {
  Argument& a = arguments_.back();
  a.leading = rows.leading;
  a.columns = rows.columns;
  const std::vector<std::byte> padding = runtime::padding_of(a);
  for (std::size_t row = 0; row + 1 < rows.rows && !padding.empty(); ++row)
    std::memcpy(a.bytes.data() + (row * a.leading + a.columns) * a.element_bytes, padding.data(),
                padding.size());
  return *this;
}

Workload& Workload::add_rows(DataType type, Direction direction, const Rows& rows,
                             std::size_t element_bytes) {
  check_rows(rows);
  return add(type, direction, true, rows.span(), element_bytes, nullptr).pad(rows);
}

Workload& Workload::random_rows(DataType type, Direction direction, const Rows& rows,
                                Uniform range) {
  check_rows(rows);
  return random(type, direction, rows.span(), range).pad(rows);
}

Workload& Workload::zeroed_rows(DataType type, const Rows& rows, std::size_t element_bytes) {
  check_rows(rows);
  Argument& a = append(type, Direction::in_out, true, rows.span(), element_bytes);
  fill(a.bytes, std::byte{});
  a.zeroed = true;
  return pad(rows);
}

std::uint64_t Workload::of_draw(std::uint64_t seed, std::size_t draw) noexcept {
  return mix(seed ^ mix(~static_cast<std::uint64_t>(draw)));
}

}  // namespace kiln
