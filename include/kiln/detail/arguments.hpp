// The checks of a launch's arguments: their types against the signature, and those that are fields
// of the problem against the problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/types.hpp"

namespace kiln::detail {

/// An argument may be passed where list-initialisation would accept it: no narrowing.
template <class Expected, class Actual>
concept PassableAs = requires(Actual&& actual) { Expected{std::forward<Actual>(actual)}; } ||
                     (std::is_pointer_v<Expected> && std::is_convertible_v<Actual, Expected>);

template <class... Expected>
struct Arguments {
  template <class... Actual>
  static constexpr void check() {
    static_assert(sizeof...(Actual) == sizeof...(Expected),
                  "kiln: wrong number of arguments for this kernel's signature");
    if constexpr (sizeof...(Actual) == sizeof...(Expected))
      static_assert(
          (PassableAs<Expected, Actual> && ...),
          "kiln: an argument's type does not match this kernel's signature (pointers must "
          "match, numbers must not narrow)");
  }
  template <class... Actual>
  static constexpr bool kMatch = [] {
    if constexpr (sizeof...(Actual) == sizeof...(Expected))
      return (PassableAs<Expected, Actual> && ...);
    return false;
  }();
};

/// A launch's argument types, spelled as device_name() does.
struct ArgumentTypes {
  explicit ArgumentTypes(std::vector<std::string> types) : names(std::move(types)) {
    std::uint64_t h = 0xcbf29ce484222325u;  // FNV-1a
    const auto mix = [&h](unsigned byte) { h = (h ^ byte) * 0x100000001b3u; };
    for (const std::string& name : names) {
      for (const char c : name) mix(static_cast<unsigned char>(c));
      mix(0);
    }
    hash = h | 1;
  }

  std::vector<std::string> names;
  std::uint64_t hash;  ///< of the names, never 0; a list that was accepted is known by it
};

template <class... Args>
const ArgumentTypes& argument_types() {
  static const ArgumentTypes types({device_name<Args>()...});
  return types;
}

/// An ArgumentIsField, by numbers.
struct Relation {
  std::size_t argument, field;
  DataType type;  ///< of the argument: an integer

  /// `args[i]` points to the i-th argument.
  std::int64_t value(void* const* args) const noexcept {
    const auto as = [this, args](auto integer) {
      std::memcpy(&integer, args[argument], sizeof integer);
      return static_cast<std::int64_t>(integer);
    };
    switch (type) {
      case DataType::i32:
        return as(std::int32_t{});
      case DataType::u32:
        return as(std::uint32_t{});
      case DataType::i16:
        return as(std::int16_t{});
      case DataType::u16:
        return as(std::uint16_t{});
      case DataType::i8:
        return as(std::int8_t{});
      case DataType::u8:
      case DataType::boolean:
        return as(std::uint8_t{});
      default:
        return as(std::int64_t{});
    }
  }
};

}  // namespace kiln::detail
