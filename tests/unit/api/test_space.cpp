#include <cstdint>

#include "kiln/config.hpp"
#include "kiln/space.hpp"
#include "kiln_test.hpp"
#include "user_error.hpp"

enum class Order { row, column };

struct Tile {
  int block;
  unsigned items;
  bool swizzle;
  Order order;
  short stages;
};
KILN_CONFIG(Tile, block, items, swizzle, order, stages)

struct Size {
  int n;
};
KILN_PROBLEM(Size, n)

using namespace kiln;

using kiln::test::user_error;

namespace {

using TileSpace = Space<Tile, Size>;

constexpr auto kSpace =
    TileSpace{{128, 4, false, Order::row, 2}}
        .values(&Tile::block, {64, 128, 256})
        .values(&Tile::items, {1, 2, 4})
        .values(&Tile::swizzle, {false, true})
        .values(&Tile::order, {Order::column, Order::row})
        .where("a tile has at most 512 elements",
               [](const Tile& t, const Size&, const DeviceLimits&) {
                 return t.block * static_cast<int>(t.items) <= 512;
               })
        .where("a block is no longer than the problem",
               [](const Tile& t, const Size& s, const DeviceLimits&) { return t.block <= s.n; })
        .checked();

}  // namespace

TEST_CASE("a constexpr space in the form that Kiln uses", "[api][space]") {
  static_assert(kSpace.default_config().block == 128);
  const DynamicSpace space = kSpace.dynamic();
  REQUIRE(space.parameters().size() == 5);
  CHECK(space.parameters()[0].name == "block");
  CHECK(space.parameters()[0].values == std::vector<std::int64_t>{64, 128, 256});
  CHECK(space.parameters()[2].kind == FieldKind::boolean);
  CHECK(space.parameters()[3].kind == FieldKind::enumeration);
  CHECK(space.parameters()[3].values == std::vector<std::int64_t>{1, 0});
  CHECK(space.parameters()[3].names == std::vector<std::string>{"column", "row"});
  CHECK(space.parameters()[0].names.empty());
  CHECK(space.describe(Values{64, 1, 1, 1, 2}) ==
        "block=64,items=1,swizzle=1,order=column,stages=2");
  CHECK(space.parameters()[4].values == std::vector<std::int64_t>{2});  // keeps its default
  CHECK(space.default_config() == Values{128, 4, 0, 0, 2});
  CHECK(space.combinations() == 36);

  CHECK(space.parse("block=64,order=column") == Values{64, 4, 0, 1, 2});
  CHECK(space.parse(space.describe(Values{256, 2, 1, 1, 2})) == Values{256, 2, 1, 1, 2});
  CHECK(space.parse("order=1") == Values{128, 4, 0, 1, 2});
  CHECK(space.parse("") == space.default_config());
  CHECK(user_error([&] {
          space.parse("order=diagonal");
        }).find("not a value of parameter 'order'") != std::string::npos);
  CHECK(user_error([&] { space.parse("block=96"); }).find("not among the values") !=
        std::string::npos);
  CHECK(user_error([&] { space.parse("block=64,block=128"); }).find("given twice") !=
        std::string::npos);
  CHECK(user_error([&] { space.parse("blocks=64"); }).find("unknown parameter") !=
        std::string::npos);
  CHECK(user_error([&] { space.parse("block"); }).find("parameter=value") != std::string::npos);

  const DeviceLimits limits;
  const Values large{1000}, small{100};
  CHECK(space.violated(Values{128, 4, 0, 0, 2}, large, limits) == nullptr);
  const Constraint* broken = space.violated(Values{256, 4, 0, 0, 2}, large, limits);
  REQUIRE(broken);
  CHECK(broken->reason == "a tile has at most 512 elements");
  broken = space.violated(Values{128, 4, 0, 0, 2}, small, limits);
  REQUIRE(broken);
  CHECK(broken->reason == "a block is no longer than the problem");
}

TEST_CASE("a default of its own for the host", "[api][space]") {
  constexpr auto space =
      kSpace.default_on(Target::Kind::host, {64, 1, true, Order::column, 2}).checked();
  static_assert(space.default_config(Target::Kind::host).block == 64);
  static_assert(space.default_config().block == 128);
  const DynamicSpace dynamic = space.dynamic();
  CHECK(dynamic.default_config(Target::Kind::host) == Values{64, 1, 1, 1, 2});
  CHECK(dynamic.default_config(Target::Kind::cuda) == Values{128, 4, 0, 0, 2});
  const Tile outside{32, 1, true, Order::column, 2};
  CHECK_THROWS_AS(kSpace.default_on(Target::Kind::host, outside).checked(), UserError);
  // A field without a list has one value, on every target.
  const Tile other_stages{64, 1, true, Order::column, 3};
  CHECK_THROWS_AS(kSpace.default_on(Target::Kind::host, other_stages).checked(), UserError);
}

TEST_CASE("mistakes in a space that is made at run time", "[api][space]") {
  const TileSpace space{{128, 4, false, Order::row, 2}};
  CHECK(user_error([&] { space.values(&Tile::block, {}); }).find("empty list") !=
        std::string::npos);
  CHECK(user_error([&] {
          space.values(&Tile::block, {128}).values(&Tile::block, {128});
        }).find("values twice") != std::string::npos);
  CHECK_THROWS_AS(space.values(&Tile::block, {64}).checked(), UserError);
  CHECK_THROWS_AS(space.values(&Tile::block, {128, 128}).checked(), UserError);
  // Unchecked, the mistake is named where the space is used.
  const std::string outside = user_error([&] { space.values(&Tile::block, {64}).dynamic(); });
  CHECK(outside.find("128") != std::string::npos);
  CHECK(outside.find("'block'") != std::string::npos);
  CHECK_THROWS_AS(space.values(&Tile::block,
                               {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17,
                                18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33}),
                  UserError);
  TileSpace many = space;
  const auto yes = [](const Tile&, const Size&, const DeviceLimits&) { return true; };
  for (int i = 0; i < 16; ++i) many = many.where("yes", yes);
  CHECK_THROWS_AS(many.where("one more", yes), UserError);
}
