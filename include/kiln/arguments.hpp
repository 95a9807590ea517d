// The checks of a launch's arguments: their types against the signature, and those that are fields
// of the problem against the problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kiln/types.hpp"

namespace kiln {

/// A by-value argument that is a field of the problem, e.g. {3, "n"}.
struct ArgumentIsField {
  std::size_t argument = 0;  ///< its place in the signature, from 0; of an integer type
  std::string field{};       ///< a problem field
};

namespace detail {

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
  std::uint64_t hash;  ///< of the names, not 0: lists that were accepted are not compared again
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

}  // namespace detail
}  // namespace kiln
