// __nv_bfloat16 and __half: every pattern, every rounding case, against exact references computed
// here in double.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "host_test.hpp"

using namespace host_test;

namespace {

struct Format {
  int digits;  // explicit
  int bias;
  int exponents;  // bits
};
constexpr Format kBf16{7, 127, 8}, kHalf{10, 15, 5};

double value_of(std::uint16_t bits, Format f) {
  const int exponent = (bits >> f.digits) & ((1 << f.exponents) - 1);
  const int mantissa = bits & ((1 << f.digits) - 1);
  double v;
  if (exponent == (1 << f.exponents) - 1) {
    v = mantissa ? std::nan("") : HUGE_VAL;
  } else if (exponent == 0) {
    v = std::ldexp(mantissa, 1 - f.bias - f.digits);
  } else {
    v = std::ldexp(mantissa + (1 << f.digits), exponent - f.bias - f.digits);
  }
  return bits & 0x8000 ? -v : v;
}

// To nearest even, from an exact value given as a double (and what it lost, only its sign matters).
std::uint16_t round_to(double v, Format f, double lost = 0) {
  if (std::isnan(v)) return 0x7fff;
  const std::uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  const double a = std::fabs(v);
  const std::uint16_t infinity = std::uint16_t(((1 << f.exponents) - 1) << f.digits);
  if (std::isinf(a)) return sign | infinity;
  if (a == 0) return sign;
  int exponent = std::max(std::ilogb(a), 1 - f.bias);
  const double scaled = std::ldexp(a, f.digits - exponent);  // exact: a power of two
  double whole = std::floor(scaled);
  const double rest = scaled - whole;
  const double tail = std::signbit(v) ? -lost : lost;
  const bool up =
      rest > 0.5 || (rest == 0.5 && (tail > 0 || (tail == 0 && std::fmod(whole, 2) != 0)));
  if (up) whole += 1;
  const double rounded = std::ldexp(whole, exponent - f.digits);
  const double largest = value_of(infinity - 1, f);
  if (rounded > largest) return sign | infinity;
  for (int e = 0; e < 2; ++e) {
    exponent = std::max(std::ilogb(rounded == 0 ? 1e-300 : rounded), 1 - f.bias);
    const auto digits = static_cast<int>(std::ldexp(rounded, f.digits - exponent));
    return sign | std::uint16_t(digits >= (1 << f.digits)
                                    ? ((exponent + f.bias) << f.digits) + digits - (1 << f.digits)
                                    : digits);
  }
  return 0;
}

std::string text_for(const std::string& header, const std::string& type) {
  return "#include <" + header + ">\nusing T = " + type + R"(;
    __global__ void widen(float* out) { int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = (float)T::__from_bits(i); }
    __global__ void narrow(unsigned short* out, const float* in, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = T(in[i]).__x; }
    __global__ void narrow_double(unsigned short* out, const double* in, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = T(in[i]).__x; }
    __global__ void arithmetic(unsigned short* out, const unsigned short* in, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      T a = T::__from_bits(in[3 * i]), b = T::__from_bits(in[3 * i + 1]), c = T::__from_bits(in[3 * i + 2]);
      out[6 * i] = (a + b).__x; out[6 * i + 1] = (a - b).__x; out[6 * i + 2] = (a * b).__x;
      out[6 * i + 3] = (a / b).__x; out[6 * i + 4] = __hfma(a, b, c).__x;
      out[6 * i + 5] = (a < b) | (a == b) << 1 | (a >= b) << 2 | (a != b) << 3 | __hisnan(a) << 4;
    })";
}

/// In code for this level of x86-64.
void check_small_floats(const std::string& cpu) {
  const bool half = GENERATE(false, true);
  const Format f = half ? kHalf : kBf16;
  const std::string text =
      half ? text_for("cuda_fp16.h", "__half") : text_for("cuda_bf16.h", "__nv_bfloat16");
  CAPTURE(half, cpu);
  const auto kernel = [&](const char* entry) {
    auto result = compiler().compile(source_of(text, entry), {kiln::Target::Kind::host, cpu});
    if (auto* failure = std::get_if<kiln::CompileFailure>(&result))
      throw kiln::CompileError(*failure);
    return HostModule::load(std::get<Binary>(result), kiln::runtime::HostWorkers::create());
  };
  const auto launch = [](const HostModule& module, int n, auto... parameters) {
    void* arguments[] = {static_cast<void*>(&parameters)...};
    module.launch({unsigned(n + 255) / 256}, {256}, 0, arguments);
  };

  SECTION("to float: all patterns") {
    std::vector<float> out(65536);
    launch(kernel("widen"), 65536, out.data());
    for (int i = 0; i < 65536; ++i) {
      const double expected = value_of(std::uint16_t(i), f);
      if (std::isnan(expected)) {
        REQUIRE(std::isnan(out[i]));
      } else {
        REQUIRE(out[i] == expected);
        REQUIRE(std::signbit(out[i]) == (i >= 32768));
      }
    }
  }
  SECTION("from float and double: around every value and every tie") {
    std::vector<double> in;
    for (int i = 0; i < 65536; ++i) {
      const double v = value_of(std::uint16_t(i), f), w = value_of(std::uint16_t(i ^ 1), f);
      if (std::isnan(v) || std::isinf(v)) continue;
      const double next = i % 0x8000 == (((1 << f.exponents) - 1) << f.digits) - 1
                              ? v + (v - value_of(std::uint16_t(i - 1), f))
                              : value_of(std::uint16_t(i + 1), f);
      (void)w;
      for (double x : {v, (v + next) / 2, v + (next - v) / 4}) in.push_back(x);
    }
    for (double x :
         {HUGE_VAL, -HUGE_VAL, std::nan(""), 3.5e38, 65504.0, 65519.99, 65520.0, 1e-45, 1e-40})
      in.push_back(x);
    std::vector<float> floats;
    for (double x : in) {
      const float at = static_cast<float>(x);
      for (float y : {at, std::nextafterf(at, HUGE_VALF), std::nextafterf(at, -HUGE_VALF)})
        floats.push_back(y);
    }
    std::vector<std::uint16_t> out(floats.size());
    launch(kernel("narrow"), int(floats.size()), out.data(), floats.data(), int(floats.size()));
    for (std::size_t i = 0; i < floats.size(); ++i) {
      if (out[i] != round_to(floats[i], f)) {
        CAPTURE(floats[i], i);
        REQUIRE(out[i] == round_to(floats[i], f));
      }
    }
    std::vector<double> doubles = in;
    for (double x : in) {
      doubles.push_back(std::nextafter(x, HUGE_VAL));
      doubles.push_back(std::nextafter(x, -HUGE_VAL));
    }
    out.resize(doubles.size());
    launch(kernel("narrow_double"), int(doubles.size()), out.data(), doubles.data(),
           int(doubles.size()));
    for (std::size_t i = 0; i < doubles.size(); ++i) {
      if (out[i] != round_to(doubles[i], f)) {
        CAPTURE(doubles[i], i);
        REQUIRE(out[i] == round_to(doubles[i], f));
      }
    }
  }
  SECTION("arithmetic and comparisons") {
    std::mt19937 random(7);
    const int n = 200000;
    std::vector<std::uint16_t> in(3 * n), out(6 * n);
    for (int i = 0; i < n; ++i) {
      for (int k = 0; k < 3; ++k) in[3 * i + k] = std::uint16_t(random());
      // Half of them near each other, where sums cancel and products tie with the addend.
      if (i % 2)
        in[3 * i + 1] = std::uint16_t((in[3 * i] & 0xff80) | (random() & 0x7f)) ^
                        std::uint16_t(random() & 0x8000);
      if (i % 4 == 1) in[3 * i] = std::uint16_t((half ? 0x3c00 : 0x3f80) + random() % 64);
    }
    launch(kernel("arithmetic"), n, out.data(), in.data(), n);
    for (int i = 0; i < n; ++i) {
      const double a = value_of(in[3 * i], f), b = value_of(in[3 * i + 1], f),
                   c = value_of(in[3 * i + 2], f);
      // All but the sum of far-apart numbers are exact in double or cannot tie; long double helps
      // there.
      const long double fma = (long double)a * b + c;
      const double sum = double(fma);
      double lost = double(fma - (long double)sum);
      if (std::isfinite(sum)) {
        const double p = a * b, back = sum - p, exact_lost = (p - (sum - back)) + (c - back);
        lost = exact_lost;
      }
      const std::uint16_t expected[] = {round_to(a + b, f),
                                        round_to(a - b, f),
                                        round_to(a * b, f),
                                        round_to(a / b, f),
                                        round_to(sum, f, lost),
                                        std::uint16_t((a < b) | (a == b) << 1 | (a >= b) << 2 |
                                                      (a != b) << 3 | std::isnan(a) << 4)};
      for (int k = 0; k < 6; ++k) {
        if (out[6 * i + k] != expected[k]) {
          CAPTURE(i, k, a, b, c);
          REQUIRE(out[6 * i + k] == expected[k]);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("small floats, bit for bit", "[host][small_float]") { check_small_floats("x86-64"); }

TEST_CASE("small floats with the conversions of x86-64-v3, bit for bit", "[host][small_float]") {
  const std::string cpu = "x86-64-v3";
  if (kiln::Target::this_host().arch < cpu) KILN_SKIP("this processor has no " + cpu);
  check_small_floats(cpu);
}
