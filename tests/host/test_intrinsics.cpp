// Intrinsics whose results CUDA defines bit by bit: directed rounding against the CPU's own
// rounding modes, SIMD against what NVRTC makes of it, integers against values worked out by hand.
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>

#include "host_test.hpp"
#include "simd_values.hpp"

using namespace host_test;

namespace {

// In the order in which the kernels below store.
constexpr int kModes[] = {FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};

class Rounding {
 public:
  explicit Rounding(int mode) { std::fesetround(mode); }
  ~Rounding() { std::fesetround(FE_TONEAREST); }
};

template <class T>
bool is_same(T a, T b) {
  return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, sizeof a) == 0;
}

// Corners, and numbers of all magnitudes.
template <class T, class Bits>
std::vector<T> operands() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> all = {T(0),
                        T(-0.0),
                        1,
                        -1,
                        3,
                        T(0.1),
                        Limits::denorm_min(),
                        -Limits::denorm_min(),
                        Limits::min(),
                        Limits::min() - Limits::denorm_min(),
                        Limits::max(),
                        -Limits::max(),
                        Limits::infinity(),
                        -Limits::infinity(),
                        Limits::quiet_NaN(),
                        1 + Limits::epsilon(),
                        1 - Limits::epsilon() / 2,
                        Limits::epsilon(),
                        std::sqrt(Limits::min()),
                        std::sqrt(Limits::max())};
  std::mt19937_64 random(7);
  while (all.size() < 48) {
    const Bits bits = static_cast<Bits>(random());
    T value;
    std::memcpy(&value, &bits, sizeof value);
    all.push_back(value);
    all.push_back(static_cast<T>(static_cast<int>(random() % 2001) - 1000) / 64);
  }
  return all;
}

constexpr int kOperations = 7;

template <class T>
T operate(int operation, T a, T b, T c) {
  volatile T x = a, y = b, z = c;  // so that the operation happens here and now
  switch (operation) {
    case 0:
      return x + y;
    case 1:
      return x - y;
    case 2:
      return x * y;
    case 3:
      return std::fma(x, y, z);
    case 4:
      return x / y;
    case 5:
      return 1 / x;
    default:
      return std::sqrt(x);
  }
}

std::string rounding_kernel(const std::string& type, const std::string& letter,
                            const std::string& fma) {
  std::string text = "__global__ void k(" + type + "* out, const " + type + "* in, int n) {\n  " +
                     type + " x = in[blockIdx.x], y = in[threadIdx.x], z = in[(5 * blockIdx.x + " +
                     "3 * threadIdx.x) % n];\n  out += 21 * (blockIdx.x * n + threadIdx.x);\n";
  for (const std::string mode : {"rz", "ru", "rd"}) {
    const auto call = [&](const std::string& name, const std::string& arguments) {
      text += "  *out++ = __" + name + "_" + mode + "(" + arguments + ");\n";
    };
    for (const char* name : {"add", "sub", "mul"}) call(letter + name, "x, y");
    call(fma, "x, y, z");
    call(letter + "div", "x, y");
    call(letter + "rcp", "x");
    call(letter + "sqrt", "x");
  }
  return text + "}";
}

template <class T, class Bits>
void check_rounding(const std::string& type, const std::string& letter, const std::string& fma) {
  const Kernel k(rounding_kernel(type, letter, fma), "k");
  const std::vector<T> in = operands<T, Bits>();
  const unsigned n = static_cast<unsigned>(in.size());
  std::vector<T> out(3 * kOperations * n * n);
  k({n}, {n}, 0, out.data(), in.data(), static_cast<int>(n));
  std::size_t at = 0;
  int wrong = 0;
  for (unsigned i = 0; i < n; ++i) {
    for (unsigned j = 0; j < n; ++j) {
      for (int mode : kModes) {
        for (int operation = 0; operation < kOperations; ++operation) {
          const T z = in[(5 * i + 3 * j) % n];
          const T want = [&] {
            const Rounding rounding(mode);
            return operate<T>(operation, in[i], in[j], z);
          }();
          const T got = out[at++];
          if (is_same(want, got) || ++wrong > 10) continue;
          CAPTURE(type, mode, operation, in[i], in[j], z, want, got);
          CHECK(is_same(want, got));
        }
      }
    }
  }
  CHECK(wrong == 0);
}

// Stores the three directed forms of a conversion, named as in `__ll2float_rz`.
template <class To, class From>
std::vector<To> converted(const std::string& name, const std::string& to, const std::string& from,
                          const std::vector<From>& in) {
  const Kernel k("__global__ void k(" + to + "* out, const " + from + "* in) {\n" + from +
                     " v = in[threadIdx.x]; out += 3 * threadIdx.x;\nout[0] = __" + name +
                     "_rz(v); out[1] = __" + name + "_ru(v); out[2] = __" + name + "_rd(v); }",
                 "k");
  std::vector<To> out(3 * in.size());
  k({1}, {static_cast<unsigned>(in.size())}, 0, out.data(), in.data());
  return out;
}

template <class To, class From>
void check_to_floating(const std::string& name, const std::string& to, const std::string& from,
                       const std::vector<From>& in) {
  const std::vector<To> out = converted<To>(name, to, from, in);
  for (std::size_t i = 0; i < out.size(); ++i) {
    // long double holds every 64-bit integer and every double.
    volatile long double exact = static_cast<long double>(in[i / 3]);
    const To want = [&] {
      const Rounding rounding(kModes[i % 3]);
      return static_cast<To>(exact);
    }();
    CAPTURE(name, in[i / 3], kModes[i % 3], want, out[i]);
    CHECK(is_same(want, out[i]));
  }
}

template <class To, class From>
void check_to_integer(const std::string& name, const std::string& to, const std::string& from,
                      const std::vector<From>& in) {
  const std::vector<To> out = converted<To>(name, to, from, in);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const From v = in[i / 3];
    const From whole = i % 3 == 0 ? std::trunc(v) : i % 3 == 1 ? std::ceil(v) : std::floor(v);
    const From bound = std::ldexp(From(1), std::numeric_limits<To>::digits);
    const To want = whole >= bound ? std::numeric_limits<To>::max()
                    : whole <= static_cast<From>(std::numeric_limits<To>::min())
                        ? std::numeric_limits<To>::min()
                        : static_cast<To>(whole);
    CAPTURE(name, v, i % 3, want, out[i]);
    CHECK(want == out[i]);
  }
}

template <class I>
std::vector<I> integers() {
  std::vector<I> all = {0, 1, 3, std::numeric_limits<I>::max(), std::numeric_limits<I>::min()};
  std::mt19937_64 random(11);
  while (all.size() < 64) {
    const std::uint64_t v = random() >> (random() % 64);
    all.push_back(static_cast<I>(v));
    all.push_back(static_cast<I>(0 - v));
  }
  return all;
}

template <class F>
std::vector<F> fractions() {
  std::vector<F> all = {0, F(0.5), F(-0.5), 1, F(1.5), F(-1.5), 3e9f, -3e9f, 1e30f, -1e30f};
  std::mt19937_64 random(13);
  while (all.size() < 64) {
    const F v = static_cast<F>(static_cast<double>(random()) / 1e15);
    all.push_back(v);
    all.push_back(-v * 1000);
  }
  return all;
}

}  // namespace

TEST_CASE("directed rounding of float", "[host][intrinsics]") {
  check_rounding<float, std::uint32_t>("float", "f", "fmaf");
}

TEST_CASE("directed rounding of double", "[host][intrinsics]") {
  check_rounding<double, std::uint64_t>("double", "d", "fma");
}

TEST_CASE("conversions to float and double with a named rounding", "[host][intrinsics]") {
  check_to_floating<float>("int2float", "float", "int", integers<int>());
  check_to_floating<float>("uint2float", "float", "unsigned", integers<unsigned>());
  check_to_floating<float>("ll2float", "float", "long long", integers<long long>());
  check_to_floating<float>("ull2float", "float", "unsigned long long",
                           integers<unsigned long long>());
  check_to_floating<double>("ll2double", "double", "long long", integers<long long>());
  check_to_floating<double>("ull2double", "double", "unsigned long long",
                            integers<unsigned long long>());
  check_to_floating<float>("double2float", "float", "double", operands<double, std::uint64_t>());
}

TEST_CASE("conversions to integers with a named rounding saturate", "[host][intrinsics]") {
  check_to_integer<int>("float2int", "int", "float", fractions<float>());
  check_to_integer<unsigned>("float2uint", "unsigned", "float", fractions<float>());
  check_to_integer<long long>("float2ll", "long long", "float", fractions<float>());
  check_to_integer<unsigned long long>("float2ull", "unsigned long long", "float",
                                       fractions<float>());
  check_to_integer<int>("double2int", "int", "double", fractions<double>());
  check_to_integer<unsigned>("double2uint", "unsigned", "double", fractions<double>());
  check_to_integer<long long>("double2ll", "long long", "double", fractions<double>());
  check_to_integer<unsigned long long>("double2ull", "unsigned long long", "double",
                                       fractions<double>());
}

TEST_CASE("rounding to nearest is exact and never contracted", "[host][intrinsics]") {
  Kernel k(R"(
    __global__ void k(double* out, float x, double y) {
      out[0] = __fadd_rn(__fmul_rn(x, x), -1.0f);
      out[1] = __dsub_rn(__dmul_rn(y, y), 1.0);
      out[2] = __float2int_rn(2.5f) + 10 * __double2int_rn(-3.5);
      out[3] = __hiloint2double(__double2hiint(y), __double2loint(y));
      out[4] = __ull2double_rn(0xffffffffffffffffull);
    })",
           "k");
  std::vector<double> out(5);
  const float x = 1 + 0x1p-23f;
  const double y = 1 + 0x1p-52;
  k({1}, {1}, 0, out.data(), x, y);
  CHECK(out == std::vector<double>{0x1p-22, 0x1p-51, 2 - 40, y, 0x1p64});
}

TEST_CASE("SIMD intrinsics give what CUDA's do", "[host][intrinsics]") {
  constexpr std::size_t count = std::size(kSimdValues);
  std::string text =
      "__global__ void k(unsigned* out, const unsigned* in) {\n"
      "  unsigned a = in[2 * threadIdx.x], b = in[2 * threadIdx.x + 1];\n  out += " +
      std::to_string(count) + " * threadIdx.x;\n";
  for (const SimdValues& values : kSimdValues) {
    text += "  *out++ = " + std::string(values.name);
    text += values.operands == 2 ? "(a, b);\n" : "(a);\n";
  }
  const Kernel k(text + "}", "k");
  std::vector<unsigned> out(4 * count);
  const unsigned* in = &kSimdOperands[0][0];
  k({1}, {4}, 0, out.data(), in);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t pair = 0; pair < 4; ++pair) {
      CAPTURE(kSimdValues[i].name, pair);
      CHECK(out[pair * count + i] == kSimdValues[i].results[pair]);
    }
  }
}

TEST_CASE("integer intrinsics", "[host][intrinsics]") {
  Kernel k(R"(
    __global__ void k(unsigned* out, unsigned a, unsigned b, int minimum) {
      *out++ = __byte_perm(a, b, 0xb210);  // bit 3 of a selector counts for nothing
      *out++ = __byte_perm(a, b, 0x7531);
      *out++ = __funnelshift_l(a, b, 36);
      *out++ = __funnelshift_lc(a, b, 36);
      *out++ = __funnelshift_lc(a, b, 8);
      *out++ = __funnelshift_r(a, b, 4);
      *out++ = __funnelshift_rc(a, b, 32);
      *out++ = (unsigned)__mul24(0x00800001, 3);
      *out++ = __umul24(0xff800001u, 3);
      *out++ = __sad(minimum, 1, 5);
      *out++ = __usad(1, 0xffffffffu, 5);
      *out++ = (unsigned)__hadd(minimum, -1);
      *out++ = (unsigned)__rhadd(-3, -2);
      *out++ = __uhadd(0xffffffffu, 0xfffffffeu);
      *out++ = __urhadd(0xffffffffu, 0xfffffffeu);
      *out++ = (unsigned)__dp4a((int)0x80ff017f, (int)0x7f80ff01, 5);
      *out++ = __dp4a(0x80ff017fu, 0x7f80ff01u, 5u);
      *out++ = (unsigned)__dp2a_lo((int)0x8000ffff, (int)0x7f80ff01, 7);
      *out++ = (unsigned)__dp2a_hi((int)0x8000ffff, (int)0x7f80ff01, 7);
      *out++ = __dp2a_hi(0x8000ffffu, 0x7f80ff01u, 7u);
      *out++ = (unsigned)__dp4a(make_char4(1, -2, 3, -4), make_char4(5, 6, 7, 8), 9);
      *out++ = __fns(0xb2u, 0, 3);
      *out++ = __fns(0xb2u, 4, -1);
      *out++ = __fns(0xb2u, 4, -3);
      *out++ = __fns(0xb2u, 5, 0);
      *out++ = (unsigned)__ffs(0x50) + 100u * (unsigned)__clz(0x50) + 10000u * __popc(0x50);
      *out++ = __brev(0x80000006u);
      *out++ = __umulhi(0x80000000u, 6u);
      *out++ = __byte_perm(0xffu, 0, 0x4400 + 0x0008);
    })",
           "k");
  const auto number = [](int v) { return static_cast<unsigned>(v); };
  const std::vector<unsigned> want = {0x80c02010u,
                                      0x12568020u,
                                      0x23456788u,
                                      0x80c02010u,
                                      0x34567880u,
                                      0x880c0201u,
                                      0x12345678u,
                                      number(-25165821),
                                      0x01800003u,
                                      0x80000006u,
                                      3,
                                      0xbfffffffu,
                                      number(-2),
                                      0xfffffffeu,
                                      0xffffffffu,
                                      number(-15997),
                                      49283,
                                      32774,
                                      number(-4161401),
                                      12550023,
                                      number(-9),
                                      5,
                                      4,
                                      ~0u,
                                      5,
                                      22505,
                                      0x60000001u,
                                      3,
                                      0x0000ffffu};
  std::vector<unsigned> out(want.size());
  k({1}, {1}, 0, out.data(), 0x80c02010u, 0x12345678u, std::numeric_limits<int>::min());
  CHECK(out == want);
}
