// The floating-point types below 32 bits, as floats: what copies combine and products take.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kiln::runtime {

/// A float of `exponent` and `mantissa` bits. `finite`: no infinities, all ones is a NaN (e4m3).
inline float small_to_float(std::uint32_t bits, int exponent, int mantissa, bool finite = false) {
  const std::uint32_t fraction = bits & ((1u << mantissa) - 1);
  const int power = static_cast<int>(bits >> mantissa & ((1u << exponent) - 1));
  const bool negative = bits >> (exponent + mantissa) & 1;
  const int bias = (1 << (exponent - 1)) - 1, most = (1 << exponent) - 1;
  float value;
  if (power == most && !finite) {
    value =
        fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (power == most && fraction == (1u << mantissa) - 1) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else {
    const std::uint32_t whole = power ? fraction | 1u << mantissa : fraction;
    value = std::ldexp(static_cast<float>(whole), (power ? power : 1) - bias - mantissa);
  }
  return negative ? -value : value;
}

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return 0x7fff;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x0400u && rest < 0x7c00u)
    return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  return small_to_float(bits, 5, 10);
}
/// To nearest, ties to even.
inline std::uint16_t float_to_f16(float value) {
  const auto sign = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16 & 0x8000);
  if (value != value) return 0x7fff;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);
  int power = 0;
  std::frexp(magnitude, &power);
  const int scale = 24 - std::max(power + 13, 0);  // steps of 2^-24, or of the last of 11 digits
  const float steps = std::nearbyint(std::ldexp(magnitude, scale));
  const float rounded = std::ldexp(steps, -scale);
  if (rounded < std::ldexp(1.0f, -14))
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::ldexp(rounded, 24)));
  const auto bits = std::bit_cast<std::uint32_t>(rounded);
  return static_cast<std::uint16_t>(sign | ((bits >> 13) - (112u << 10)));
}

}  // namespace kiln::runtime
