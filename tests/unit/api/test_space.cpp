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
  for (int i = 0; i < 64; ++i) many = many.where("yes", yes);
  CHECK(many.dynamic().constraints().size() == 64);
  CHECK_THROWS_AS(many.where("one more", yes), UserError);
}

TEST_CASE("values and constraints of one kind of target", "[api][space]") {
  constexpr auto space =
      TileSpace{{128, 4, false, Order::row, 2}}
          .values(&Tile::block, {64, 128, 256})
          .values_on(Target::Kind::host, &Tile::block, {8, 16})
          .values_on(Target::Kind::cuda, &Tile::items, {2, 4})
          .values_on(Target::Kind::host, &Tile::order, {Order::column})
          .where_on(Target::Kind::cuda, "whole warps",
                    [](const Tile& t, const Size&, const DeviceLimits& d) {
                      return t.block % d.warp_size == 0;
                    })
          .where_on(Target::Kind::host, "a host's tile is small",
                    [](const Tile& t, const Size&, const DeviceLimits&) { return t.block < 16; })
          .default_on(Target::Kind::host, {8, 4, false, Order::column, 2})
          .checked();
  const DynamicSpace dynamic = space.dynamic();
  const DynamicSpace gpu = dynamic.on(Target::Kind::cuda), host = dynamic.on(Target::Kind::host);
  CHECK(gpu.parameters()[0].values == Values{64, 128, 256});
  CHECK(host.parameters()[0].values == Values{8, 16});
  CHECK(gpu.parameters()[1].values == Values{2, 4});
  CHECK(host.parameters()[1].values == Values{4});  // no list: the default
  CHECK(gpu.parameters()[3].names == std::vector<std::string>{"row"});
  CHECK(host.parameters()[3].names == std::vector<std::string>{"column"});
  CHECK(dynamic.parameters()[0].values == Values{64, 128, 256, 8, 16});
  CHECK(dynamic.parameters()[3].names == std::vector<std::string>{"row", "column"});
  CHECK(gpu.default_config() == Values{128, 4, 0, 0, 2});
  CHECK(host.default_config() == Values{8, 4, 0, 1, 2});
  DeviceLimits on_gpu, on_host;
  on_gpu.compute_capability = 90;
  const auto reason = [&](const Values& config, const DeviceLimits& limits) {
    const Constraint* broken = dynamic.violated(config, Values{1000}, limits);
    return broken ? broken->reason : "";
  };
  CHECK(reason({128, 4, 0, 0, 2}, on_gpu).empty());
  CHECK(reason({8, 4, 0, 1, 2}, on_host).empty());
  CHECK(reason({16, 4, 0, 1, 2}, on_host) == "a host's tile is small");
  // From elsewhere, a config may have values of the other kind.
  CHECK(reason({8, 4, 0, 0, 2}, on_gpu) == "on GPUs parameter 'block' has values of its own");
  CHECK(reason({128, 4, 0, 1, 2}, on_host) == "on hosts parameter 'block' has values of its own");
  // A default that another target's list leaves out.
  CHECK_THROWS_AS(TileSpace({128, 4, false, Order::row, 2})
                      .values_on(Target::Kind::host, &Tile::block, {8})
                      .checked(),
                  UserError);
  CHECK_THROWS_AS(space.values_on(Target::Kind::host, &Tile::block, {8}), UserError);
}

TEST_CASE("a default of its own for an architecture", "[api][space]") {
  constexpr auto space = kSpace.default_on(ComputeCapability{90}, {256, 1, true, Order::row, 2})
                             .default_on(ComputeCapability{80}, {64, 1, true, Order::row, 2})
                             .default_on(Target::Kind::host, {64, 2, false, Order::column, 2})
                             .checked();
  const DynamicSpace dynamic = space.dynamic();
  const auto of = [&](const char* arch) { return dynamic.default_config(Target::parse(arch)); };
  CHECK(of("sm_75") == Values{128, 4, 0, 0, 2});
  CHECK(of("sm_80") == Values{64, 1, 1, 0, 2});
  CHECK(of("sm_89") == Values{64, 1, 1, 0, 2});
  CHECK(of("sm_90") == Values{256, 1, 1, 0, 2});
  CHECK(of("sm_90a") == Values{256, 1, 1, 0, 2});
  CHECK(of("sm_121f") == Values{256, 1, 1, 0, 2});
  CHECK(dynamic.default_config(Target::this_host()) == Values{64, 2, 0, 1, 2});
  CHECK(dynamic.default_config(Target::Kind::cuda) == Values{128, 4, 0, 0, 2});
  CHECK(dynamic.parse("items=4", Target::parse("sm_90a")) == Values{256, 4, 1, 0, 2});
  CHECK_THROWS_AS(kSpace.default_on(ComputeCapability{0}, {64, 1, true, Order::row, 2}), UserError);
  CHECK_THROWS_AS(space.default_on(ComputeCapability{90}, {64, 1, true, Order::row, 2}), UserError);
  const Tile outside{32, 1, true, Order::row, 2};
  CHECK_THROWS_AS(kSpace.default_on(ComputeCapability{90}, outside).checked(), UserError);
}
