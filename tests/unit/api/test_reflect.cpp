#include <limits>

#include "kiln/config.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"

enum class Layout : std::uint8_t { row, column = 7 };

struct Everything {
  int block;
  bool swizzle;
  Layout layout;
  std::int64_t wide;
  unsigned char small;
  short negative;
  constexpr int tile() const { return block * 2; }
};
KILN_CONFIG(Everything, block, swizzle, layout, wide, small, negative)

struct One {
  int n;
};
KILN_PROBLEM(One, n)

namespace inner {
struct Nested {
  int a, b;
};
}  // namespace inner
KILN_CONFIG(inner::Nested, a, b)

using namespace kiln;

TEST_CASE("names and kinds, in order of declaration", "[api][reflect]") {
  constexpr auto infos = field_infos<Everything>();
  static_assert(infos.size() == 6);
  CHECK(infos[0].name == "block");
  CHECK(infos[5].name == "negative");
  CHECK(infos[0].kind == FieldKind::integer);
  CHECK(infos[1].kind == FieldKind::boolean);
  CHECK(infos[2].kind == FieldKind::enumeration);
  CHECK(infos[4].kind == FieldKind::integer);
  CHECK(field_infos<One>()[0].name == "n");
  CHECK(field_infos<inner::Nested>()[1].name == "b");
}

namespace {

enum class Gappy : short { one = 1, seven = 7, last = 63, beyond = 64, below = -2 };
enum Plain { kPlainA, kPlainB = 2 };
struct Enums {
  Gappy gappy;
  Plain plain;
  int n;
};

}  // namespace
KILN_CONFIG(Enums, gappy, plain, n)

TEST_CASE("enumerators have names", "[api][reflect]") {
  constexpr auto infos = field_infos<Enums>();
  REQUIRE(infos[0].enumerator);
  CHECK(infos[0].enumerator(1) == "one");
  CHECK(infos[0].enumerator(7) == "seven");
  CHECK(infos[0].enumerator(63) == "last");
  for (const std::int64_t value : {-2, 0, 2, 64, 100}) CHECK(infos[0].enumerator(value).empty());
  CHECK_FALSE(infos[1].enumerator);
  CHECK_FALSE(infos[2].enumerator);
}

TEST_CASE("values there and back", "[api][reflect]") {
  constexpr Everything e{256, true, Layout::column, -(std::int64_t{1} << 40), 200, -3};
  constexpr auto values = to_values(e);
  static_assert(values[2] == 7);
  CHECK(values[0] == 256);
  CHECK(values[1] == 1);
  CHECK(values[3] == -(std::int64_t{1} << 40));
  CHECK(values[4] == 200);
  CHECK(values[5] == -3);
  const Everything back = from_values<Everything>(values);
  CHECK(to_values(back) == values);
  CHECK(back.layout == Layout::column);
  static_assert(from_values<One>(std::array<std::int64_t, 1>{5}).n == 5);
}

TEST_CASE("a value that the field cannot hold is not cut", "[api][reflect]") {
  const auto message = [](std::array<std::int64_t, 1> values) -> std::string {
    try {
      from_values<One>(values);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message({2147483647}).empty());
  CHECK(message({2147483648}) == "field 'n' cannot hold 2147483648");
  CHECK(message({std::numeric_limits<std::int64_t>::min()}).find("'n'") != std::string::npos);
  CHECK_THROWS_AS(from_values<Everything>(std::array<std::int64_t, 6>{1, 1, 0, 1, 256, 1}),
                  UserError);
  CHECK_THROWS_AS(from_values<Everything>(std::array<std::int64_t, 6>{1, 2, 0, 1, 1, 1}),
                  UserError);
}
