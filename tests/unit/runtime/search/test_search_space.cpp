#include <algorithm>
#include <map>
#include <thread>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/search/search_space.hpp"
#include "space_maker.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

TEST_CASE("points and values", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("a", {4, 1, 2}, 4).parameter("b", {7, 3}, 7);
  dynamic.where("not both", [](auto c, auto, const auto&) { return c[0] != 2 || c[1] != 3; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  CHECK(space.dimensions() == 2);
  CHECK(space.arity(0) == 3);
  CHECK(space.values({2, 0}) == Values{2, 7});
  CHECK(space.point(Values{1, 3}) == Point{1, 1});
  CHECK_FALSE(space.point(Values{5, 3}));
  CHECK_FALSE(space.point(Values{1}));
  CHECK(space.allowed(Point{0, 1}));
  CHECK_FALSE(space.allowed(Point{2, 1}));
  const auto all = space.enumerate();
  CHECK(std::vector<Point>(all.begin(), all.end()) ==
        std::vector<Point>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}});
}

TEST_CASE("scales say how far values are apart", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("powers", {8, 1, 2, 4, 16}, 8)
      .parameter("steps", {32, 64, 96, 128, 160}, 32)
      .parameter("from zero", {0, 1, 2, 4}, 0)
      .parameter("one", {9}, 9)
      .parameter("truth", {0, 1}, 0, FieldKind::boolean)
      .parameter("names", {0, 1, 2}, 0, FieldKind::enumeration);
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto scale = [&](std::size_t d) {
    return std::vector<double>(space.scale(d).begin(), space.scale(d).end());
  };
  const std::vector<double> powers{0.75, 0, 0.25, 0.5, 1};
  for (std::size_t i = 0; i < 5; ++i) CHECK(scale(0)[i] == Approx(powers[i]).margin(1e-12));
  for (std::size_t i = 0; i < 5; ++i)
    CHECK(scale(1)[i] == Approx(0.25 * static_cast<double>(i)).margin(1e-12));
  CHECK(scale(2) == std::vector<double>{0, 0.25, 0.5, 1});
  CHECK(scale(3) == std::vector<double>{0});
  CHECK(space.ordered(0));
  CHECK_FALSE(space.ordered(3));
  CHECK_FALSE(space.ordered(4));
  CHECK_FALSE(space.ordered(5));
  CHECK(space.rank(0, 0) == 3);
  CHECK(space.place(0, 3) == 0);
}

TEST_CASE("neighbours", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("a", {4, 1, 2, 8}, 4).parameter("k", {0, 1, 2}, 0, FieldKind::enumeration);
  dynamic.where("not 8 with 1", [](auto c, auto, const auto&) { return c[0] != 8 || c[1] != 1; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto of = [&](const Values& config, Neighbourhood kind) {
    std::set<Values> values;
    for (const Point& p : space.neighbours(*space.point(config), kind))
      values.insert(space.values(p));
    return values;
  };
  CHECK(of({4, 0}, Neighbourhood::adjacent) == std::set<Values>{{2, 0}, {8, 0}, {4, 1}, {4, 2}});
  CHECK(of({4, 1}, Neighbourhood::adjacent) == std::set<Values>{{2, 1}, {4, 0}, {4, 2}});
  CHECK(of({1, 0}, Neighbourhood::hamming) ==
        std::set<Values>{{2, 0}, {4, 0}, {8, 0}, {1, 1}, {1, 2}});
}

TEST_CASE("pairs change two parameters, all of them where they are few", "[search]") {
  Random random(5);
  for (int s = 0; s < 40; ++s) {
    const DynamicSpace dynamic = random_space(random);
    const SearchSpace space(dynamic, kProblem, kLimits);
    const auto at = space.sample(random);
    if (!at) continue;
    std::set<Point> expected;
    for (const Point& p : space.enumerate()) {
      int changes = 0;
      for (std::size_t d = 0; d < p.size(); ++d) changes += p[d] != (*at)[d];
      if (changes == 2) expected.insert(p);
    }
    const auto found = space.pairs(*at, SIZE_MAX, random);
    CHECK(found.size() == expected.size());
    CHECK(std::set<Point>(found.begin(), found.end()) == expected);
    CHECK(space.pairs(*at, 1, random).size() == std::min<std::size_t>(1, expected.size()));
  }
}

TEST_CASE("samples are allowed and uniform", "[search]") {
  SECTION("where all can be listed") {
    DynamicSpace dynamic;
    dynamic.parameter("a", {1, 2, 3, 4}, 1).parameter("b", {1, 2, 3, 4}, 1);
    dynamic.where("ordered", [](auto c, auto, const auto&) { return c[0] <= c[1]; });
    const SearchSpace space(dynamic, kProblem, kLimits);
    Random random(1);
    std::map<Point, int> seen;
    for (int i = 0; i < 10000; ++i) ++seen[*space.sample(random)];
    CHECK(seen.size() == 10);
    for (const auto& [point, count] : seen) {
      CHECK(space.allowed(point));
      CHECK(std::abs(count - 1000) < 160);
    }
  }
  SECTION("where they are too many") {
    DynamicSpace dynamic;
    for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"})
      dynamic.parameter(name, {1, 2, 3, 4, 5, 6, 7, 8}, 1);
    dynamic.where("ordered", [](auto c, auto, const auto&) { return c[0] <= c[1]; });
    const SearchSpace space(dynamic, kProblem, kLimits);
    REQUIRE_FALSE(space.enumerable());
    CHECK(space.enumerate().empty());
    Random random(1);
    std::vector<int> seen(8, 0);
    for (int i = 0; i < 36000; ++i) {
      const auto point = space.sample(random);
      REQUIRE(space.allowed(*point));
      ++seen[(*point)[0]];
    }
    for (int a = 0; a < 8; ++a)
      CHECK(std::abs(seen[static_cast<std::size_t>(a)] - 1000 * (8 - a)) < 350);
  }
  SECTION("where they are rare") {
    const DynamicSpace dynamic = tight_space();
    const SearchSpace space(dynamic, kProblem, kLimits);
    Random random(1);
    std::set<Point> seen;
    for (int i = 0; i < 500; ++i) {
      const auto point = space.sample(random);
      REQUIRE(point);
      REQUIRE(space.allowed(*point));
      seen.insert(*point);
    }
    CHECK(seen.size() > 300);
  }
  SECTION("where there is none") {
    DynamicSpace dynamic;
    for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"})
      dynamic.parameter(name, {1, 2, 3, 4, 5, 6, 7, 8}, 1);
    dynamic.where("never", [](auto, auto, const auto&) { return false; });
    const SearchSpace space(dynamic, kProblem, kLimits);
    Random random(1);
    CHECK_FALSE(space.sample(random));
    CHECK(space.count().allowed == 0);
    CHECK_FALSE(space.count().exact);
  }
}

TEST_CASE("a walk crosses plateaus", "[search]") {
  DynamicSpace dynamic;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"})
    dynamic.parameter(name, {1, 2, 3, 4, 5, 6, 7, 8}, 1);
  dynamic.where("three at once",
                [](auto c, auto, const auto&) { return c[0] == 8 && c[1] == 8 && c[2] == 8; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  Random random(1);
  int found = 0;
  for (int i = 0; i < 100; ++i) {
    const auto point = space.found_by_walking(random);
    if (!point) continue;
    CHECK(space.allowed(*point));
    ++found;
  }
  CHECK(found > 20);
}

TEST_CASE("counts name what refuses", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("a", {1, 2, 3, 4}, 1).parameter("b", {1, 2, 3, 4}, 1);
  dynamic.where("a is not 4", [](auto c, auto, const auto&) { return c[0] != 4; })
      .where("nothing", [](auto, auto, const auto&) { return true; })
      .where("b is not 4", [](auto c, auto, const auto&) { return c[1] != 4; });
  const SearchSpace space(dynamic, kProblem, kLimits, [](auto c) { return c[0] * c[1] < 9; });
  const SpaceCount count = space.count();
  CHECK(count.combinations == 16);
  CHECK(count.exact);
  CHECK(count.allowed == 8);
  REQUIRE(count.rejected.size() == 3);
  CHECK(count.rejected[0].reason == "a is not 4");
  CHECK(count.rejected[0].count == 4);
  CHECK(count.rejected[1].reason == "b is not 4");
  CHECK(count.rejected[1].count == 3);
  CHECK(count.rejected[2].count == 1);
}

TEST_CASE("one space serves several threads", "[search]") {
  const DynamicSpace dynamic = tight_space();
  DynamicSpace small;
  small.parameter("a", {1, 2, 3, 4}, 1).parameter("b", {1, 2, 3, 4}, 1);
  const SearchSpace tight(dynamic, kProblem, kLimits), listed(small, kProblem, kLimits);
  std::vector<Point> found(4);
  std::vector<std::size_t> sizes(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Random random(7);
      found[t] = *tight.sample(random);
      sizes[t] = listed.enumerate().size();
    });
  for (std::thread& t : threads) t.join();
  for (std::size_t t = 0; t < 4; ++t) {
    CHECK(found[t] == found[0]);
    CHECK(sizes[t] == 16);
  }
}

TEST_CASE("a parameter with more values than a search takes", "[search]") {
  DynamicSpace dynamic;
  std::vector<std::int64_t> values(65537);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  dynamic.parameter("many", values, 0);
  try {
    const SearchSpace space(dynamic, kProblem, kLimits);
    FAIL("accepted");
  } catch (const UserError& error) {
    CHECK(std::string(error.what()).find("'many' has 65537 values") != std::string::npos);
  }
}

TEST_CASE("a list that somebody has is used as it is", "[search]") {
  DynamicSpace dynamic;
  std::vector<std::int64_t> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  for (const char* name : {"a", "b", "c", "d"}) dynamic.parameter(name, values, 0);
  const SearchSpace space(dynamic, kProblem, kLimits, {}, {{3, 2, 1, 0}, {0, 1, 2, 3}});
  REQUIRE(space.enumerate().size() == 2);
  CHECK(space.enumerate()[0] == Point{0, 1, 2, 3});
  Random random(1);
  for (int i = 0; i < 20; ++i) {
    const auto point = space.sample(random);
    REQUIRE(point);
    CHECK((*point == Point{3, 2, 1, 0} || *point == Point{0, 1, 2, 3}));
  }
}

TEST_CASE("a search knows the values of its device's kind alone", "[runtime][search]") {
  DynamicSpace space;
  space.parameter("a", {1, 2, 3}, 1).parameter("b", {0, 1}, 0);
  space.values_on(Target::Kind::host, "a", {7, 2});
  space.where_on(Target::Kind::cuda, "never here", [](auto, auto, const auto&) -> bool {
    throw UserError("a GPU's constraint was asked on the host");
  });
  const Values problem;
  DeviceLimits host, gpu;
  gpu.compute_capability = 90;
  const SearchSpace on_host(space, problem, host);
  std::vector<Values> all;
  for (const Point& point : on_host.enumerate()) all.push_back(on_host.values(point));
  CHECK(all == std::vector<Values>{{7, 0}, {7, 1}, {2, 0}, {2, 1}});
  CHECK(on_host.count().combinations == 4);
  CHECK_FALSE(on_host.point(Values{1, 0}));
  CHECK_THROWS_AS(SearchSpace(space, problem, gpu).enumerate(), UserError);
  std::vector<Values> visited;
  for_each_config(space, problem, host, [&](auto config, const Constraint* violated) {
    CHECK_FALSE(violated);
    visited.emplace_back(config.begin(), config.end());
    return true;
  });
  CHECK(visited == all);
}

TEST_CASE("neighbours in an author's list are listed", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("a", {1, 2, 4, 8}, 1).parameter("b", {1, 2, 4, 8}, 1).parameter("c", {0, 1}, 0);
  const std::vector<Values> list{{1, 1, 0}, {2, 1, 0}, {8, 1, 0}, {4, 4, 0}, {8, 8, 1}, {9, 9, 9}};
  const SearchSpace space(dynamic, kProblem, kLimits, {}, list);
  CHECK(space.count().allowed == 5);
  const auto all = [&](const std::vector<Point>& points) {
    std::set<Values> configs;
    for (const Point& p : points) configs.insert(space.values(p));
    CHECK(configs.size() == points.size());
    return configs;
  };
  const Point first = *space.point(list[0]), alone = *space.point(list[4]);
  CHECK(all(space.neighbours(first, Neighbourhood::adjacent)) == std::set<Values>{{2, 1, 0}});
  CHECK(all(space.neighbours(first, Neighbourhood::hamming)) ==
        std::set<Values>{{2, 1, 0}, {8, 1, 0}});
  Random random(1);
  CHECK(all(space.pairs(first, 9, random)) == std::set<Values>{{4, 4, 0}});
  // Nothing is near: what differs in the fewest parameters.
  CHECK(space.neighbours(alone, Neighbourhood::hamming).empty());
  CHECK(all(space.pairs(alone, 9, random)) == std::set<Values>{{8, 1, 0}});
  // A config that is not listed has listed neighbours.
  const Values outside{4, 1, 0};
  CHECK(space.admitted(outside));
  CHECK_FALSE(space.allowed(outside));
  CHECK(all(space.neighbours(*space.point(outside), Neighbourhood::adjacent)) ==
        std::set<Values>{{2, 1, 0}, {8, 1, 0}});
  CHECK(space.pairs(first, 0, random).empty());
}
