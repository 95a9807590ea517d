// Element types on the host side of a launch, and their names on the device side.
//
//   kiln::bfloat16 x{1.5f};  // rounds to nearest even
//   float y = x;
//   kiln::device_name<const kiln::bfloat16*>();  // "const __nv_bfloat16*"
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "kiln/version.hpp"

namespace kiln {

/// Storage of a bfloat16 (8 exponent, 7 fraction bits); arithmetic happens in float.
struct bfloat16 {
  std::uint16_t bits = 0;

  constexpr bfloat16() = default;
  constexpr explicit bfloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? std::uint16_t{0x7fff}
               : static_cast<std::uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16);
  }
  constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

/// Storage of an IEEE binary16; arithmetic happens in float.
struct float16 {
  std::uint16_t bits = 0;

  constexpr float16() = default;
  constexpr explicit float16(float value);
  constexpr operator float() const;
};

/// Storage of an 8-bit float with 4 exponent and 3 fraction bits; arithmetic happens in float. It
/// has no infinity, and one NaN of each sign. A float is rounded to nearest even, and one that is
/// too large, infinities included, becomes the largest of its sign, +-448; a NaN becomes 0x7f. That
/// is what the constructor of CUDA's __nv_fp8_e4m3 does, which converts with __NV_SATFINITE (CUDA
/// Math API, "FP8 Conversion and Data Movement"; formats: OCP 8-bit Floating Point Specification).
struct float8_e4m3 {
  std::uint8_t bits = 0;

  constexpr float8_e4m3() = default;
  constexpr explicit float8_e4m3(float value);
  constexpr operator float() const;
};

/// The same with 5 exponent and 2 fraction bits. It has infinities, but no float becomes one: what
/// is too large becomes +-57344.
struct float8_e5m2 {
  std::uint8_t bits = 0;

  constexpr float8_e5m2() = default;
  constexpr explicit float8_e5m2(float value);
  constexpr operator float() const;
};

/// A scalar as written in records and on command lines.
enum class DataType : std::uint8_t {
  boolean,
  i8,
  u8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  f16,
  bf16,
  f32,
  f64,
  fp8_e4m3,
  fp8_e5m2,
  bytes  ///< any other trivially copyable type
};

/// `f32`, `bf16`, ...
std::string to_string(DataType type);

template <class T>
constexpr DataType data_type() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, bool>)
    return DataType::boolean;
  else if constexpr (std::is_same_v<U, float>)
    return DataType::f32;
  else if constexpr (std::is_same_v<U, double>)
    return DataType::f64;
  else if constexpr (std::is_same_v<U, float16>)
    return DataType::f16;
  else if constexpr (std::is_same_v<U, bfloat16>)
    return DataType::bf16;
  else if constexpr (std::is_same_v<U, float8_e4m3>)
    return DataType::fp8_e4m3;
  else if constexpr (std::is_same_v<U, float8_e5m2>)
    return DataType::fp8_e5m2;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 1)
    return std::is_signed_v<U> ? DataType::i8 : DataType::u8;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 2)
    return std::is_signed_v<U> ? DataType::i16 : DataType::u16;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 4)
    return std::is_signed_v<U> ? DataType::i32 : DataType::u32;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 8)
    return std::is_signed_v<U> ? DataType::i64 : DataType::u64;
  else
    return DataType::bytes;
}

/// The kernel compiler's spelling of a type. Specialise it for structs passed by value:
///   template <>
///   struct kiln::DeviceName<MyParams> {
///     static constexpr const char* value = "MyParams";
///   };
template <class T>
struct DeviceName;
#define KILN_DEVICE_NAME(Type, name)           \
  template <>                                  \
  struct DeviceName<Type> {                    \
    static constexpr const char* value = name; \
  }
KILN_DEVICE_NAME(void, "void");
KILN_DEVICE_NAME(bool, "bool");
KILN_DEVICE_NAME(char, "char");
KILN_DEVICE_NAME(signed char, "signed char");
KILN_DEVICE_NAME(unsigned char, "unsigned char");
KILN_DEVICE_NAME(short, "short");
KILN_DEVICE_NAME(unsigned short, "unsigned short");
KILN_DEVICE_NAME(int, "int");
KILN_DEVICE_NAME(unsigned, "unsigned int");
KILN_DEVICE_NAME(long, "long");
KILN_DEVICE_NAME(unsigned long, "unsigned long");
KILN_DEVICE_NAME(long long, "long long");
KILN_DEVICE_NAME(unsigned long long, "unsigned long long");
KILN_DEVICE_NAME(float, "float");
KILN_DEVICE_NAME(double, "double");
KILN_DEVICE_NAME(float16, "__half");
KILN_DEVICE_NAME(bfloat16, "__nv_bfloat16");
KILN_DEVICE_NAME(float8_e4m3, "__nv_fp8_e4m3");
KILN_DEVICE_NAME(float8_e5m2, "__nv_fp8_e5m2");
#undef KILN_DEVICE_NAME

template <class T>
std::string device_name() {
  if constexpr (std::is_pointer_v<T>)
    return device_name<std::remove_pointer_t<T>>() + "*";
  else if constexpr (std::is_const_v<T>)
    return "const " + device_name<std::remove_const_t<T>>();
  else
    return DeviceName<T>::value;
}

constexpr float16::float16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7fffu;  // NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // rounds to infinity
  } else if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 aligns the value so that the hardware's rounding is the one wanted.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  }
  bits = static_cast<std::uint16_t>(sign | half);
}

constexpr float16::operator float() const {
  const std::uint32_t sign = std::uint32_t{bits} << 16 & 0x80000000u, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // 2^112 moves the exponent's bias from 15 to 127 and normalises subnormals on the way.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

namespace detail {

/// To an 8-bit float with `digits` fraction bits; what is over `largest` becomes that.
constexpr std::uint8_t to_float8(float value, int digits, int bias, std::uint32_t largest) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = u >> 24 & 0x80u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;  // NaN
  const int dropped = 23 - digits;
  const auto least_normal = static_cast<std::uint32_t>(128 - bias) << 23;
  std::uint32_t rounded;
  if (magnitude < least_normal) {
    // As in float16: the sum's last bit has the weight of the least subnormal.
    const auto aligned = static_cast<std::uint32_t>(128 - bias + dropped) << 23;
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) +
                                           std::bit_cast<float>(aligned)) -
              aligned;
  } else {
    const std::uint32_t half_less = (1u << (dropped - 1)) - 1;
    rounded = (magnitude - (static_cast<std::uint32_t>(127 - bias) << 23) + half_less +
               (magnitude >> dropped & 1)) >>
              dropped;
  }
  return static_cast<std::uint8_t>(sign | (rounded < largest ? rounded : largest));
}

}  // namespace detail

constexpr float8_e4m3::float8_e4m3(float value) : bits(detail::to_float8(value, 3, 7, 0x7e)) {}

constexpr float8_e4m3::operator float() const {
  const std::uint32_t sign = std::uint32_t{bits} << 24 & 0x80000000u, rest = bits & 0x7fu;
  if (rest == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  const float magnitude = std::bit_cast<float>(rest << 20) * 0x1p120f;  // as in float16
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

constexpr float8_e5m2::float8_e5m2(float value) : bits(detail::to_float8(value, 2, 15, 0x7b)) {}

constexpr float8_e5m2::operator float() const {
  float16 half;  // whose upper byte it is
  half.bits = static_cast<std::uint16_t>(bits << 8);
  return half;
}

}  // namespace kiln
