#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "kiln/types.hpp"
#include "kiln_test.hpp"

using kiln::bfloat16;
using kiln::float16;

namespace {

template <class T>
T from_bits(int bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

/// Magnitude of a binary16 or bfloat16, from its definition.
double magnitude(unsigned bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const unsigned fraction = bits & ((1u << fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : std::numeric_limits<double>::infinity();
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
  return std::ldexp((1u << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

/// All 65536 patterns widen to their value and come back as themselves.
template <class T>
void check_every_pattern(int exponent_bits) {
  int wrong = 0;
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float wide = from_bits<T>(bits);
    const double want = magnitude(static_cast<unsigned>(bits), exponent_bits);
    if (std::isnan(want)) {
      wrong += !std::isnan(wide) || !std::isnan(float(T(wide)));
      continue;
    }
    wrong += std::abs(wide) != want || std::signbit(wide) != (bits >= 0x8000);
    wrong += T(wide).bits != bits;
  }
  CHECK(wrong == 0);
}

/// Rounding: at, just below and just above each midpoint between neighbours.
template <class T>
void check_midpoints(int infinity) {
  int wrong = 0;
  for (int bits = 0; bits < infinity; ++bits) {
    const double low = float(from_bits<T>(bits));
    const double high = bits + 1 == infinity
                            ? 2 * low - float(from_bits<T>(bits - 1))  // where the next would be
                            : float(from_bits<T>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    if (static_cast<double>(middle) != (low + high) / 2) continue;  // below float's own steps
    const int even = bits % 2 == 0 ? bits : bits + 1;
    wrong += T(middle).bits != even;
    wrong += T(-middle).bits != (even | 0x8000);
    wrong += T(std::nextafter(middle, 0.0f)).bits != bits;
    wrong += T(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits != bits + 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every binary16 pattern", "[api][types]") { check_every_pattern<float16>(5); }
TEST_CASE("every bfloat16 pattern", "[api][types]") { check_every_pattern<bfloat16>(8); }
TEST_CASE("binary16 rounds to nearest even", "[api][types]") { check_midpoints<float16>(0x7c00); }
TEST_CASE("bfloat16 rounds to nearest even", "[api][types]") { check_midpoints<bfloat16>(0x7f7f); }

TEST_CASE("beyond the range", "[api][types]") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(float16(65504.0f).bits == 0x7bff);
  CHECK(float16(65519.996f).bits == 0x7bff);
  CHECK(float16(65520.0f).bits == 0x7c00);
  CHECK(float16(-1e30f).bits == 0xfc00);
  CHECK(float16(inf).bits == 0x7c00);
  CHECK(float16(-0.0f).bits == 0x8000);
  CHECK(float16(std::ldexp(1.0f, -25)).bits == 0);  // half of the least: to even
  CHECK(float16(std::ldexp(1.0001f, -25)).bits == 1);
  CHECK(float16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(bfloat16(-inf).bits == 0xff80);
  CHECK(bfloat16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(std::isnan(float(float16(nan))));
  CHECK(std::isnan(float(bfloat16(nan))));
  // A NaN whose payload lies below the bits that are kept.
  const float low_nan = std::bit_cast<float>(0x7f800001u);
  CHECK(std::isnan(float(float16(low_nan))));
  CHECK(std::isnan(float(bfloat16(low_nan))));
}

#if defined(__FLT16_MAX__)
TEST_CASE("binary16 agrees with the compiler's own", "[api][types]") {
  std::mt19937 random(1);
  int wrong = 0;
  for (int i = 0; i < 1000000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(value)) continue;
    wrong += float16(value).bits != std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
  }
  CHECK(wrong == 0);
}
#endif

namespace {

struct Float8 {
  int exponent_bits, fraction_bits, bias;
  int nan;         ///< the first pattern that is one
  int infinity;    ///< or -1
  double largest;  ///< finite
};
constexpr Float8 kE4m3{4, 3, 7, 0x7f, -1, 448}, kE5m2{5, 2, 15, 0x7d, 0x7c, 57344};

/// The value of a positive pattern, from the formats' definition.
double value_of(int bits, const Float8& f) {
  if (bits >= f.nan) return std::numeric_limits<double>::quiet_NaN();
  if (bits == f.infinity) return std::numeric_limits<double>::infinity();
  const int exponent = bits >> f.fraction_bits, fraction = bits & ((1 << f.fraction_bits) - 1);
  if (exponent == 0) return std::ldexp(fraction, 1 - f.bias - f.fraction_bits);
  return std::ldexp(1 + std::ldexp(fraction, -f.fraction_bits), exponent - f.bias);
}

template <class T>
void check_float8(const Float8& f) {
  const int last = f.infinity < 0 ? f.nan - 1 : f.infinity - 1;
  CHECK(value_of(last, f) == f.largest);
  for (int bits = 0; bits < 0x80; ++bits)
    for (const int sign : {0, 0x80}) {
      CAPTURE(bits, sign);
      T stored;
      stored.bits = static_cast<std::uint8_t>(bits | sign);
      const float wide = stored;
      const double want = value_of(bits, f);
      CHECK(std::signbit(wide) == (sign != 0));
      if (std::isnan(want)) {
        CHECK(std::isnan(wide));
        CHECK(T(wide).bits == 0x7f);
      } else {
        CHECK(std::abs(wide) == want);
        CHECK(T(wide).bits == (std::min(bits, last) | sign));  // infinities saturate
      }
    }
  // At, below and above each tie, and beyond the last one.
  for (int bits = 0; bits < last; ++bits) {
    const auto tie = static_cast<float>((value_of(bits, f) + value_of(bits + 1, f)) / 2);
    CAPTURE(bits, tie);
    CHECK(T(tie).bits == bits + bits % 2);
    CHECK(T(-tie).bits == ((bits + bits % 2) | 0x80));
    CHECK(T(std::nextafter(tie, 0.0f)).bits == bits);
    CHECK(T(std::nextafter(tie, 1e30f)).bits == bits + 1);
  }
  const auto largest = static_cast<float>(f.largest);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float beyond : {std::nextafter(largest, infinity), 1.05f * largest, 1.2f * largest,
                             2 * largest, 1e30f, std::numeric_limits<float>::max(), infinity}) {
    CHECK(T(beyond).bits == last);
    CHECK(T(-beyond).bits == (last | 0x80));
  }
  CHECK(T(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(T(-std::numeric_limits<float>::denorm_min()).bits == 0x80);
  CHECK(T(std::bit_cast<float>(0xff800001u)).bits == 0x7f);
}

}  // namespace

TEST_CASE("every e4m3 pattern, every tie, and what is too large", "[api][types]") {
  check_float8<kiln::float8_e4m3>(kE4m3);
}
TEST_CASE("every e5m2 pattern, every tie, and what is too large", "[api][types]") {
  check_float8<kiln::float8_e5m2>(kE5m2);
}

TEST_CASE("conversions at compile time", "[api][types]") {
  static_assert(float16(1.5f).bits == 0x3e00);
  static_assert(float(float16(0.333251953125f)) == 0.333251953125f);
  static_assert(bfloat16(1.00390625f).bits == 0x3f80);  // a tie
  static_assert(float(bfloat16(-2.0f)) == -2.0f);
  static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2);
  static_assert(kiln::float8_e4m3(1.0625f).bits == 0x38);  // a tie
  static_assert(float(kiln::float8_e4m3(-448.0f)) == -448.0f);
  static_assert(kiln::float8_e5m2(1e9f).bits == 0x7b);
  static_assert(sizeof(kiln::float8_e4m3) == 1 && sizeof(kiln::float8_e5m2) == 1);
  SUCCEED();
}

TEST_CASE("names on the device side", "[api][types]") {
  using kiln::device_name;
  CHECK(device_name<int>() == "int");
  CHECK(device_name<const float>() == "const float");
  CHECK(device_name<float*>() == "float*");
  CHECK(device_name<const bfloat16*>() == "const __nv_bfloat16*");
  CHECK(device_name<float16**>() == "__half**");
  CHECK(device_name<const kiln::float8_e4m3*>() == "const __nv_fp8_e4m3*");
  CHECK(device_name<kiln::float8_e5m2>() == "__nv_fp8_e5m2");
  CHECK(device_name<unsigned>() == "unsigned int");
  CHECK(device_name<std::uint8_t*>() == "unsigned char*");
  CHECK(device_name<void*>() == "void*");
  CHECK(device_name<const void*>() == "const void*");
  CHECK(device_name<bool>() == "bool");
  CHECK(device_name<float* const>() == "float*");
}

TEST_CASE("data types and their names", "[api][types]") {
  using kiln::data_type;
  using kiln::DataType;
  CHECK(data_type<const float>() == DataType::f32);
  CHECK(data_type<long>() == DataType::i64);
  CHECK(data_type<unsigned long long>() == DataType::u64);
  CHECK(data_type<signed char>() == DataType::i8);
  CHECK(data_type<short>() == DataType::i16);
  CHECK(data_type<bool>() == DataType::boolean);
  struct Two {
    int a, b;
  };
  CHECK(data_type<Two>() == DataType::bytes);
  CHECK(data_type<const kiln::float8_e4m3>() == DataType::fp8_e4m3);
  CHECK(data_type<kiln::float8_e5m2>() == DataType::fp8_e5m2);
  CHECK(kiln::to_string(DataType::bf16) == "bf16");
  CHECK(kiln::to_string(DataType::fp8_e4m3) == "fp8_e4m3");
  CHECK(kiln::to_string(DataType::fp8_e5m2) == "fp8_e5m2");
  CHECK(kiln::to_string(DataType::boolean) == "bool");
  CHECK(kiln::to_string(DataType::bytes) == "bytes");
}
