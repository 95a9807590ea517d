// Names and values of a config's or problem's fields. The one place where Boost.Hana is used for
// reflection; everything past it works on `FieldInfo` and 64-bit values.
//
//   kiln::to_values(VectorAdd{256, 4});         // {256, 4}
//   kiln::from_values<VectorAdd>(values);       // VectorAdd{256, 4}
//   kiln::field_infos<VectorAdd>()[0].name;     // "block"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <boost/hana/accessors.hpp>
#include <boost/hana/adapt_struct.hpp>
#include <boost/hana/at.hpp>
#include <boost/hana/concept/struct.hpp>
#include <boost/hana/core/to.hpp>
#include <boost/hana/first.hpp>
#include <boost/hana/length.hpp>
#include <boost/hana/second.hpp>
#include <boost/hana/tuple.hpp>

#include "kiln/error.hpp"
#include "kiln/version.hpp"

namespace kiln {

enum class FieldKind : std::uint8_t { integer, boolean, enumeration };

struct FieldInfo {
  std::string_view name;
  FieldKind kind = FieldKind::integer;
  /// Of an `enum class`: the enumerator with a value from 0 to 63, `mma`; empty where none has it.
  std::string_view (*enumerator)(std::int64_t value) = nullptr;
};

template <class T>
concept Reflected = boost::hana::Struct<T>::value;

namespace detail {

template <class T>
inline constexpr std::size_t kFieldCount =
    decltype(boost::hana::length(boost::hana::accessors<T>()))::value;

struct AnyField {
  template <class U>
  constexpr operator U() const noexcept;
};

template <class T, std::size_t... I>
constexpr bool constructible_from(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyField{})...}; };
}

/// KILN_CONFIG lists neither too few nor too many fields.
template <class T>
inline constexpr bool kListsEveryField =
    constructible_from<T>(std::make_index_sequence<kFieldCount<T>>{}) &&
    !constructible_from<T>(std::make_index_sequence<kFieldCount<T> + 1>{});

/// The name of one value of an enum, as GCC and Clang spell template arguments: `Body::mma`, and
/// `(Body)7` where no enumerator has it.
template <class Enum, Enum V>
constexpr std::string_view enumerator_name() {
  constexpr std::string_view kMark = "V = ";
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find(kMark) + kMark.size());
  text = text.substr(0, text.find_first_of(";],"));
  if (text.empty() || text.front() == '(' || text.front() == '-' ||
      (text.front() >= '0' && text.front() <= '9'))
    return {};
  return text.substr(text.rfind(':') + 1);
}

/// Enumerators from here on are shown as numbers.
inline constexpr std::int64_t kNamedEnumerators = 64;

/// An enum whose underlying type is declared: `enum class`, or `enum E : int`.
template <class T>
inline constexpr bool kFixedType = false;
template <class T>
  requires std::is_enum_v<T>
inline constexpr bool kFixedType<T> = requires { T{0}; };

template <class Enum>
constexpr std::string_view enumerator(std::int64_t value) {
  constexpr auto names = []<std::int64_t... V>(std::integer_sequence<std::int64_t, V...>) {
    return std::array<std::string_view, sizeof...(V)>{
        enumerator_name<Enum, static_cast<Enum>(V)>()...};
  }(std::make_integer_sequence<std::int64_t, kNamedEnumerators>{});
  return value >= 0 && value < kNamedEnumerators ? names[static_cast<std::size_t>(value)]
                                                 : std::string_view{};
}

/// Out of line, so that reading values is little code.
[[noreturn, gnu::cold, gnu::noinline]] inline void refuse_value(std::string_view field,
                                                                std::int64_t value) {
  throw UserError("field '" + std::string(field) + "' cannot hold " + std::to_string(value));
}

/// Calls `f(info, member)` for each field of `object`, in order.
template <class T, class F>
constexpr void for_each_field(T&& object, F&& f) {
  using Struct = std::remove_cvref_t<T>;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (
        [&] {
          constexpr auto pair = boost::hana::at_c<I>(boost::hana::accessors<Struct>());
          constexpr auto name = boost::hana::first(pair);
          auto&& member = boost::hana::second(pair)(object);
          using Member = std::remove_cvref_t<decltype(member)>;
          static_assert(std::is_integral_v<Member> || std::is_enum_v<Member>,
                        "config and problem fields are integers, bools or enums");
          constexpr FieldKind kind = std::is_same_v<Member, bool> ? FieldKind::boolean
                                     : std::is_enum_v<Member>     ? FieldKind::enumeration
                                                                  : FieldKind::integer;
          FieldInfo info{std::string_view(name.c_str(), boost::hana::length(name)), kind};
          // Other enums cannot hold every number that they may be given.
          if constexpr (kFixedType<Member>) info.enumerator = enumerator<Member>;
          f(info, member);
        }(),
        ...);
  }(std::make_index_sequence<kFieldCount<Struct>>{});
}

}  // namespace detail

template <Reflected T>
constexpr auto field_infos() {
  static_assert(detail::kListsEveryField<T>, "KILN_CONFIG/KILN_PROBLEM must list every field");
  std::array<FieldInfo, detail::kFieldCount<T>> infos;
  std::size_t i = 0;
  T object{};
  detail::for_each_field(object, [&](FieldInfo info, auto&) { infos[i++] = info; });
  return infos;
}

template <Reflected T>
constexpr auto to_values(const T& object) {
  std::array<std::int64_t, detail::kFieldCount<T>> values{};
  std::size_t i = 0;
  detail::for_each_field(object, [&](FieldInfo, const auto& member) {
    values[i++] = static_cast<std::int64_t>(member);
  });
  return values;
}

/// `values` holds one value per field, in order. @throws UserError when a field cannot hold its
/// own.
template <Reflected T>
constexpr T from_values(std::span<const std::int64_t> values) {
  T object{};
  std::size_t i = 0;
  detail::for_each_field(object, [&](FieldInfo info, auto& member) {
    const std::int64_t value = values[i++];
    member = static_cast<std::remove_cvref_t<decltype(member)>>(value);
    if (static_cast<std::int64_t>(member) != value) detail::refuse_value(info.name, value);
  });
  return object;
}

}  // namespace kiln
