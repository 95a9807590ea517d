#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kiln/error.hpp"
#include "kiln/workload.hpp"
#include "kiln_test.hpp"

using namespace kiln;

namespace {

template <class T>
std::vector<T> drawn(std::size_t count, Uniform range = {}, std::uint64_t seed = 1) {
  Workload w(seed);
  w.input<T>(count, range);
  std::vector<T> values(count);
  std::memcpy(values.data(), w.arguments()[0].bytes.data(), count * sizeof(T));
  return values;
}

template <class T>
std::pair<T, T> extremes(std::size_t count, Uniform range) {
  const auto values = drawn<T>(count, range);
  return {*std::min_element(values.begin(), values.end()),
          *std::max_element(values.begin(), values.end())};
}

bool refused(const std::function<void()>& f, const std::string& part) {
  try {
    f();
  } catch (const UserError& error) {
    return std::string(error.what()).find(part) != std::string::npos;
  }
  return false;
}

}  // namespace

TEST_CASE("the same seed gives the same bytes", "[api][workload]") {
  const auto a = drawn<float>(1000), b = drawn<float>(1000), c = drawn<float>(1000, {}, 2);
  CHECK(std::memcmp(a.data(), b.data(), 4000) == 0);
  CHECK(std::memcmp(a.data(), c.data(), 4000) != 0);
  // An array's beginning does not depend on its length, and no two arguments are alike.
  const auto longer = drawn<float>(2000);
  CHECK(std::memcmp(a.data(), longer.data(), 4000) == 0);
  Workload w;
  w.input<float>(1000).input<float>(1000);
  CHECK(w.arguments()[0].bytes != w.arguments()[1].bytes);
}

TEST_CASE("an element does not depend on how many there are", "[api][workload]") {
  // Large arrays are filled by several threads.
  const auto few = drawn<std::int32_t>(100, {-1000, 1000});
  const auto many = drawn<std::int32_t>(300'001, {-1000, 1000});
  CHECK(std::equal(few.begin(), few.end(), many.begin()));
  CHECK(drawn<std::int32_t>(200'000, {-1000, 1000}) ==
        std::vector<std::int32_t>(many.begin(), many.begin() + 200'000));
  CHECK(std::count(many.end() - 1000, many.end(), 0) < 10);
}

TEST_CASE("the bytes are the same on every machine", "[api][workload]") {
  // From the definition of the generator; a change of it makes old measurements incomparable.
  const auto f = drawn<float>(4);
  const auto again = drawn<double>(4);
  for (int i = 0; i < 4; ++i) CHECK(f[i] == static_cast<float>(again[i]));
}

TEMPLATE_TEST_CASE("floating-point elements fill their interval", "[api][workload]", float, double,
                   float16, bfloat16, float8_e4m3, float8_e5m2) {
  const auto values = drawn<TestType>(4096, {2, 3});
  double sum = 0, low = 1e9, high = -1e9;
  for (const double v : values) {
    sum += v;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  CHECK(low >= 2);
  CHECK(high <= 3);
  CHECK(low < 2.02);
  CHECK(high > 2.98);
  CHECK(sum / 4096 == Approx(2.5).margin(0.02));
}

TEMPLATE_TEST_CASE("integers stay inside interval and type", "[api][workload]", std::int8_t,
                   std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                   std::int64_t, std::uint64_t) {
  using Limits = std::numeric_limits<TestType>;
  CHECK(extremes<TestType>(1000, {3, 7}) == std::pair<TestType, TestType>{3, 7});
  CHECK(extremes<TestType>(1000, {2.5, 4.5}) == std::pair<TestType, TestType>{3, 4});
  CHECK(extremes<TestType>(10, {5, 5}) == std::pair<TestType, TestType>{5, 5});
  const auto usual = extremes<TestType>(1000, {});
  CHECK(usual.first == (std::is_signed_v<TestType> ? TestType(-1) : TestType(0)));
  CHECK(usual.second == 1);
  // An interval that is wider than the type.
  const auto wide = extremes<TestType>(20000, {-1e30, 1e30});
  const double step = static_cast<double>(Limits::max()) / 50;
  CHECK(static_cast<double>(wide.first) <= static_cast<double>(Limits::min()) + step);
  CHECK(static_cast<double>(wide.second) >= static_cast<double>(Limits::max()) - step);
  // None of the type's values, none at all, nothing but zero.
  CHECK(refused([] { drawn<TestType>(5, {1e30, 2e30}); }, "argument 0"));
  CHECK(refused([] { drawn<TestType>(5, {-2e30, -1e30}); }, "argument 0"));
  CHECK(refused([] { drawn<TestType>(5, {0.2, 0.8}); }, "[0.2, 0.8]"));
  CHECK(refused([] { drawn<TestType>(5, {-0.5, 0.5}); }, "argument 0"));
  if constexpr (!std::is_signed_v<TestType>)
    CHECK(refused([] { drawn<TestType>(5, {-3, 0}); }, "argument 0"));
}

TEST_CASE("bools are bools", "[api][workload]") {
  Workload w;
  w.input<bool>(1000);
  int ones = 0;
  for (const std::byte b : w.arguments()[0].bytes) {
    CHECK(std::to_integer<int>(b) <= 1);
    ones += std::to_integer<int>(b);
  }
  CHECK(ones > 300);
  CHECK(ones < 700);
}

TEST_CASE("never all zeros", "[api][workload]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CHECK(drawn<int>(1, {}, seed)[0] != 0);
    CHECK(drawn<unsigned char>(1, {}, seed)[0] != 0);
    const auto three = drawn<short>(3, {}, seed);
    CHECK(std::count(three.begin(), three.end(), 0) < 3);
  }
  CHECK(refused([] { drawn<float>(3, {0, 0}); }, "zeros"));
  CHECK(refused([] { drawn<int>(3, {0, 0}); }, "zeros"));
  CHECK(refused([] { drawn<float16>(3, {0, 1e-30}); }, "zeros"));  // rounds to nothing else
}

TEST_CASE("intervals that make no sense", "[api][workload]") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const Uniform range :
       {Uniform{2, 1}, {nan, 1}, {0, nan}, {-inf, 1}, {1, inf}, {-1e308, 1e308}})
    CHECK_THROWS_AS(drawn<double>(3, range), UserError);
  CHECK_THROWS_AS(drawn<float16>(3, {0, 1e6}), UserError);
  CHECK_THROWS_AS(drawn<float>(3, {0, 1e39}), UserError);
  // A saturating type would give its largest value again and again.
  CHECK_THROWS_AS(drawn<float8_e4m3>(3, {0, 500}), UserError);
  CHECK_THROWS_AS(drawn<float8_e5m2>(3, {-6e4, 0}), UserError);
  CHECK_NOTHROW(drawn<float8_e4m3>(3, {-448, 448}));
  struct Pair {
    int a, b;
  };
  Workload w;
  CHECK_THROWS_AS(w.input<Pair>(3), UserError);
}

TEST_CASE("sizes that make no sense", "[api][workload]") {
  Workload w;
  w.scalar(1);
  for (const std::size_t count :
       {~std::size_t{0}, (~std::size_t{0} / 4) + 2, std::size_t{1} << 62}) {
    CHECK(refused([&] { w.output<float>(count); }, "argument 1"));
    CHECK(refused([&] { w.input<float>(count); }, "argument 1"));
  }
}

TEST_CASE("arguments are what was said", "[api][workload]") {
  struct Params {
    float a;
    int b;
  };
  const std::vector<int> table{5, 6, 7};
  Workload w;
  w.output<float>(10)
      .input<float16>(20)
      .in_out<int>(30)
      .scalar(2.5f)
      .input(std::span<const int>(table))
      .scalar(Params{1, 2})
      .output<double>(0);
  const auto& a = w.arguments();
  REQUIRE(a.size() == 7);
  CHECK(a[0].direction == Direction::out);
  CHECK(a[0].pointer);
  CHECK(std::all_of(a[0].bytes.begin(), a[0].bytes.end(),
                    [](std::byte b) { return b == std::byte{0xff}; }));
  CHECK(a[1].type == DataType::f16);
  CHECK(a[1].bytes.size() == 40);
  CHECK(a[2].direction == Direction::in_out);
  CHECK_FALSE(a[3].pointer);
  float f;
  std::memcpy(&f, a[3].bytes.data(), 4);
  CHECK(f == 2.5f);
  CHECK(std::memcmp(a[4].bytes.data(), table.data(), 12) == 0);
  CHECK(a[5].type == DataType::bytes);
  CHECK(a[5].element_bytes == sizeof(Params));
  CHECK(a[6].bytes.empty());
  CHECK(w.bytes() == 40 + 40 + 120 + 12);
}

TEST_CASE("an array that is zeroed holds zeros", "[api][workload]") {
  Workload w;
  w.zeroed<float>(10).zeroed<int>(Rows{2, 3, 4}).zeroed<double>(0);
  const auto& a = w.arguments();
  CHECK(a[0].zeroed);
  CHECK(a[0].direction == Direction::in_out);
  CHECK(std::count(a[0].bytes.begin(), a[0].bytes.end(), std::byte{}) == 40);
  REQUIRE(a[1].bytes.size() == 28);  // 4 + 3 elements
  for (std::size_t i = 0; i < 28; ++i)
    CHECK((a[1].bytes[i] == std::byte{}) == (i / 4 != 3));  // the padding is not
  CHECK(a[2].bytes.empty());
}

TEST_CASE("rows with padding", "[api][workload]") {
  Workload w;
  w.input<float>(Rows{3, 5, 8}).output<double>(Rows{2, 2, 3}).in_out<float16>(Rows{4, 1, 2});
  w.input<float8_e4m3>(Rows{2, 3, 6}).input<float>(Rows{3, 5, 5}).output<float>(Rows{0, 5, 8});
  const auto& a = w.arguments();
  CHECK(Rows{3, 5, 8}.span() == 21);  // nothing follows the last row
  REQUIRE(a[0].count == 21);
  std::vector<float> x(21);
  std::memcpy(x.data(), a[0].bytes.data(), a[0].bytes.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(a[0].has(i) == (i % 8 < 5));
    CHECK(std::isnan(x[i]) == !a[0].has(i));
  }
  CHECK(a[1].count == 5);
  CHECK(a[2].count == 7);
  std::vector<float8_e4m3> small(9);
  std::memcpy(small.data(), a[3].bytes.data(), 9);
  for (const std::size_t i : {3, 4, 5}) CHECK(std::isnan(float(small[i])));
  CHECK_FALSE(a[4].padded());
  CHECK(a[5].count == 0);
  // The same elements at the same places as without padding.
  Workload plain;
  plain.input<float>(21);
  std::vector<float> want(21);
  std::memcpy(want.data(), plain.arguments()[0].bytes.data(), 84);
  CHECK(std::equal(x.begin() + 8, x.begin() + 13, want.begin() + 8));
}

TEST_CASE("rows that make no sense", "[api][workload]") {
  Workload w;
  w.scalar(1);
  CHECK(refused([&] { w.output<float>(Rows{2, 8, 5}); }, "argument 1 has rows of 8 elements"));
  CHECK(refused([&] { w.input<float>(Rows{2, 8, 5}); }, "begin 5 elements apart"));
  CHECK(refused([&] { w.zeroed<float>(Rows{~std::size_t{0}, 2, 5}); }, "more than any memory"));
  CHECK(refused([&] { w.input<float>(Rows{3, 2, std::size_t{1} << 63}); }, "more than any memory"));
  CHECK(w.arguments().size() == 1);
}

TEST_CASE("each draw has its own data", "[api][workload]") {
  const auto bytes = [](Workload w) {
    w.input<float>(100);
    return w.arguments()[0].bytes;
  };
  CHECK(bytes(Workload(1)) == bytes(Workload(1, 0)));
  CHECK(bytes(Workload(1, 1)) == bytes(Workload(1, 1)));
  CHECK(bytes(Workload(1, 1)) != bytes(Workload(1, 0)));
  CHECK(bytes(Workload(1, 1)) != bytes(Workload(1, 2)));
  CHECK(bytes(Workload(2, 1)) != bytes(Workload(1, 1)));
  CHECK(Workload(1, 3).draw() == 3);
}
