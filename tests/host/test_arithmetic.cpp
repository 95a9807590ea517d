// Arithmetic that C++ leaves undefined and the GPU defines: conversions out of range, wide shifts.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "host_test.hpp"

using namespace host_test;

namespace {

// PTX, `cvt.rzi`: saturates. NaN is 0 from 32 bits to 32 bits, else the top bit alone.
template <class I, class F>
I gpu(F v) {
  using Limits = std::numeric_limits<I>;
  if (std::isnan(v)) {
    if (sizeof(I) == 4 && sizeof(F) == 4) return 0;
    return static_cast<I>(std::uint64_t{1} << (8 * sizeof(I) - 1));
  }
  if (std::trunc(v) >= std::ldexp(F(1), Limits::digits)) return Limits::max();
  if (std::trunc(v) <= static_cast<F>(Limits::min())) return Limits::min();
  return static_cast<I>(v);
}

constexpr const char* kConvert = R"(
  template <class I, class F>
  __global__ void convert(I* out, const F* in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (I)in[i];
  })";

template <class F>
std::vector<F> values() {
  const F inf = std::numeric_limits<F>::infinity(), nan = std::numeric_limits<F>::quiet_NaN();
  std::vector<F> all = {0,
                        F(0.9),
                        F(1.5),
                        3,
                        127,
                        128,
                        255.5,
                        256,
                        300,
                        32767,
                        32768,
                        65535,
                        65536,
                        70000,
                        F(2147483520.),
                        F(2147483648.),
                        F(3e9),
                        F(4294967040.),
                        F(4294967296.),
                        F(5e9),
                        F(9.2e18),
                        F(9.3e18),
                        F(1.8e19),
                        F(1.9e19),
                        F(1e30),
                        inf,
                        nan};
  for (std::size_t i = 0, n = all.size(); i < n; ++i) all.push_back(-all[i]);
  while (all.size() < 100) all.push_back(all[all.size() % 54] / 3);
  return all;
}

template <class I, class F>
void check_conversion(const std::string& integer, const std::string& floating) {
  using Through =
      std::conditional_t<(sizeof(I) >= 4), I,
                         std::conditional_t<std::is_signed_v<I>, std::int32_t, std::uint32_t>>;
  Kernel convert(kConvert, "convert<" + integer + ", " + floating + ">");
  const std::vector<F> in = values<F>();
  std::vector<I> out(in.size());
  convert({2}, {64}, 0, out.data(), in.data(), static_cast<int>(in.size()));
  for (std::size_t i = 0; i < in.size(); ++i) {
    CAPTURE(integer, floating, in[i]);
    CHECK(static_cast<long long>(out[i]) ==
          static_cast<long long>(static_cast<I>(gpu<Through>(in[i]))));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("floats out of an integer's range convert as on a GPU", "[host][arithmetic]",
                   float, double) {
  const std::string from = sizeof(TestType) == 4 ? "float" : "double";
  check_conversion<std::int8_t, TestType>("signed char", from);
  check_conversion<std::uint8_t, TestType>("unsigned char", from);
  check_conversion<std::int16_t, TestType>("short", from);
  check_conversion<std::uint16_t, TestType>("unsigned short", from);
  check_conversion<std::int32_t, TestType>("int", from);
  check_conversion<std::uint32_t, TestType>("unsigned", from);
  check_conversion<long long, TestType>("long long", from);
  check_conversion<unsigned long long, TestType>("unsigned long long", from);
}

TEST_CASE("constants out of range convert as on a GPU", "[host][arithmetic]") {
  Kernel k(R"(
    __global__ void k(int* out) {
      out[0] = (int)3e9f;
      out[1] = (int)-3e9;
      out[2] = (int)__int_as_float(0x7fc00000);
      out[3] = (int)(unsigned)-1.5f;
      float big = 1e10f;
      out[4] = (int)(unsigned)big;
      const float nan = NAN;
      out[5] = (int)nan;
      out[6] = __float2int_rn(1e20f);
      out[7] = (int)(__float2ll_rn(1e30f) >> 32);
    })",
           "k");
  std::vector<int> out(8, 1);
  k({1}, {1}, 0, out.data());
  CHECK(out == std::vector<int>{2147483647, -2147483647 - 1, 0, 0, -1, 0, 2147483647, 2147483647});
}

TEST_CASE("half and bfloat16 convert to integers through float", "[host][arithmetic]") {
  Kernel k(R"(
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __global__ void k(int* out, float v) {
      out[0] = (int)(float)__float2bfloat16(v);
      out[1] = (int)(float)__float2half(v);
      out[2] = __half2int_rz(__float2half(v));
      out[3] = (int)(unsigned)(float)__float2bfloat16(-v);
    })",
           "k");
  std::vector<int> out(4);
  k({1}, {1}, 0, out.data(), 3e10f);
  CHECK(out == std::vector<int>{2147483647, 2147483647, 2147483647, 0});
  k({1}, {1}, 0, out.data(), std::numeric_limits<float>::quiet_NaN());
  CHECK(out == std::vector<int>{0, 0, 0, 0});
}

TEST_CASE("shifts by the width or more give what PTX says", "[host][arithmetic]") {
  Kernel k(R"(
    template <class I> __global__ void k(I* left, I* right, const I* in, const unsigned* by) {
      int i = threadIdx.x;
      left[i] = in[i] << by[i];
      right[i] = in[i] >> by[i];
    }
    __global__ void constant(int* out, int v) {
      out[0] = v << 32;
      out[1] = v >> 40;
      out[2] = (int)((unsigned)v >> 33);
    }
    template __global__ void k<int>(int*, int*, const int*, const unsigned*);
  )",
           "constant");
  std::vector<int> constant(3, 7);
  k({1}, {1}, 0, constant.data(), -5);
  CHECK(constant == std::vector<int>{0, -1, 0});

  const std::string text = R"(
    template <class I> __global__ void k(I* left, I* right, const I* in, const unsigned* by) {
      int i = threadIdx.x;
      left[i] = in[i] << by[i];
      right[i] = in[i] >> by[i];
    })";
  const std::vector<unsigned> amounts = {0,  1,  31,  32,          33,         63,
                                         64, 65, 200, 0x80000000u, 0xffffffffu};
  const auto check = [&](auto zero, const std::string& name) {
    using I = decltype(zero);
    const Kernel shift(text, "k<" + name + ">");
    std::vector<I> in, left, right;
    std::vector<unsigned> by;
    for (I value :
         {I(-5), I(5), I(1), std::numeric_limits<I>::min(), std::numeric_limits<I>::max()}) {
      for (unsigned amount : amounts) {
        in.push_back(value);
        by.push_back(amount);
      }
    }
    left.resize(in.size());
    right.resize(in.size());
    shift({1}, {static_cast<unsigned>(in.size())}, 0, left.data(), right.data(), in.data(),
          by.data());
    for (std::size_t i = 0; i < in.size(); ++i) {
      CAPTURE(name, in[i], by[i]);
      const bool wide = by[i] >= 8 * sizeof(I);
      CHECK(left[i] == (wide ? I(0) : static_cast<I>(static_cast<std::uint64_t>(in[i]) << by[i])));
      CHECK(right[i] == (wide ? (in[i] < I(0) ? I(-1) : I(0)) : static_cast<I>(in[i] >> by[i])));
    }
  };
  check(0, "int");
  check(0u, "unsigned");
  check(0ll, "long long");
  check(0ull, "unsigned long long");
}
