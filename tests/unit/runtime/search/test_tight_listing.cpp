#include <algorithm>

#include "kiln_test.hpp"
#include "runtime/search/tight_listing.hpp"
#include "space_maker.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

namespace {

std::set<Values> listed(const SearchSpace& space) {
  std::set<Values> configs;
  const std::vector<Point> points = list_tight(space);
  CHECK(std::is_sorted(points.begin(), points.end()));
  for (const Point& p : points) CHECK(configs.insert(space.values(p)).second);
  return configs;
}

DynamicSpace cube(std::size_t dimensions, std::int64_t values) {
  DynamicSpace space;
  std::vector<std::int64_t> list;
  for (std::int64_t v = 1; v <= values; ++v) list.push_back(v);
  for (std::size_t d = 0; d < dimensions; ++d) space.parameter(numbered(d), list, 1);
  return space;
}

}  // namespace

TEST_CASE("a tight space is listed whole", "[search]") {
  const DynamicSpace dynamic = tight_space();
  const SearchSpace space(dynamic, kProblem, kLimits);
  CHECK(listed(space) == allowed_configs(dynamic));
  CHECK(space.enumerate().size() == allowed_configs(dynamic).size());
  CHECK_FALSE(space.count().exact);
  CHECK(space.count().allowed == static_cast<double>(space.enumerate().size()));
}

TEST_CASE("a chain of constraints is listed, however many combinations there are", "[search]") {
  DynamicSpace dynamic;
  for (std::size_t d = 0; d < 20; ++d) dynamic.parameter(numbered(d), {1, 2, 4, 8, 16}, 1);
  for (std::size_t d = 0; d + 1 < 20; ++d)
    dynamic.where("a product", [d](auto c, auto, const auto&) { return c[d] * c[d + 1] == 16; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  const std::set<Values> all = listed(space);
  CHECK(all.size() == 5);
  for (const Values& config : all) CHECK_FALSE(dynamic.violated(config, kProblem, kLimits));
}

TEST_CASE("what is listed is right, or nothing is", "[search]") {
  Random random(8);
  int whole = 0;
  for (int s = 0; s < 60; ++s) {
    DynamicSpace dynamic = cube(6, 6);
    for (std::size_t i = 3 + random.below(3); i-- > 0;) {
      const std::size_t a = random.below(6), b = random.below(6), e = random.below(6);
      const auto limit = static_cast<std::int64_t>(1 + random.below(30));
      switch (random.below(4)) {
        case 0:
          dynamic.where("equal", [=](auto c, auto, const auto&) { return c[a] == c[b]; });
          break;
        case 1:
          dynamic.where("product", [=](auto c, auto, const auto&) { return c[a] * c[b] == limit; });
          break;
        case 2:
          dynamic.where("sum",
                        [=](auto c, auto, const auto&) { return c[a] + c[b] + c[e] <= limit; });
          break;
        default:
          dynamic.where("sometimes",
                        [=](auto c, auto, const auto&) { return c[a] < 5 ? c[b] > 3 : c[e] == 2; });
      }
    }
    const SearchSpace space(dynamic, kProblem, kLimits,
                            [](auto c) { return c[0] + c[1] * c[2] < 30; });
    const std::set<Values> found = listed(space);
    if (found.empty()) continue;
    ++whole;
    std::set<Values> all = allowed_configs(dynamic);
    std::erase_if(all, [](const Values& c) { return c[0] + c[1] * c[2] >= 30; });
    INFO("space " << s);
    CHECK(found == all);
  }
  CHECK(whole > 10);
}

TEST_CASE("a constraint over everything: listed by spreading", "[search]") {
  DynamicSpace dynamic = cube(8, 8);
  dynamic.where("a sum", [](auto c, auto, const auto&) {
    std::int64_t sum = 0;
    for (const std::int64_t x : c) sum += x;
    return sum == 58 && c[0] % 2 == 1;
  });
  const SearchSpace space(dynamic, kProblem, kLimits);
  const std::set<Values> found = listed(space);
  CHECK(found.size() > 100);
  CHECK((found == allowed_configs(dynamic)));

  SECTION("islands are not taken for the whole") {
    DynamicSpace two = cube(8, 8);
    two.where("a sum, at either end", [](auto c, auto, const auto&) {
      std::int64_t sum = 0;
      for (const std::int64_t x : c) sum += x;
      return sum == 60 || sum == 12;
    });
    const SearchSpace apart(two, kProblem, kLimits);
    const std::set<Values> some = listed(apart);
    CHECK((some.empty() || some == allowed_configs(two)));
  }
}

TEST_CASE("nothing is listed where that would not help", "[search]") {
  SECTION("not rare") {
    DynamicSpace dynamic = cube(8, 8);
    dynamic.where("half", [](auto c, auto, const auto&) { return c[0] % 2 == 0; });
    CHECK(listed(SearchSpace(dynamic, kProblem, kLimits)).empty());
  }
  SECTION("too many, though rare") {
    DynamicSpace dynamic = cube(12, 8);
    dynamic.where("a", [](auto c, auto, const auto&) { return c[0] == 3 && c[1] == 4; });
    dynamic.where("b", [](auto c, auto, const auto&) { return c[2] == 3 && c[3] == 4; });
    CHECK(listed(SearchSpace(dynamic, kProblem, kLimits)).empty());
  }
  SECTION("none to start from") {
    DynamicSpace dynamic = cube(8, 8);
    dynamic.where("never", [](auto, auto, const auto&) { return false; });
    CHECK(listed(SearchSpace(dynamic, kProblem, kLimits)).empty());
  }
}

TEST_CASE("a parameter that is looked at in rare cases hides nothing", "[search]") {
  DynamicSpace dynamic = cube(8, 8);
  dynamic.where("c and d alike where a and b are 7", [](auto c, auto, const auto&) {
    if (c[0] == 7 && c[1] == 7) return c[2] == c[3];
    return c[0] * c[1] == 12 && c[4] == c[5] && c[6] == 3;
  });
  const SearchSpace space(dynamic, kProblem, kLimits);
  const std::set<Values> found = listed(space);
  if (!found.empty()) CHECK(found == allowed_configs(dynamic));
  Random random(1);
  for (int i = 0; i < 100; ++i) CHECK(space.allowed(*space.sample(random)));
}

TEST_CASE("checks are made in their order, and may rely on that", "[search]") {
  DynamicSpace dynamic = cube(8, 8);
  int wrong = 0;
  dynamic.where("different", [](auto c, auto, const auto&) { return c[0] - c[1] == 4; })
      .where("a quotient", [&](auto c, auto, const auto&) {
        if (c[0] == c[1]) return ++wrong, false;  // divides by zero
        return 64 / (c[0] - c[1]) == c[2] * 8;
      });
  const SearchSpace space(dynamic, kProblem, kLimits, [&](auto c) {
    wrong += c[0] - c[1] != 4;
    return c[3] == 1;
  });
  list_tight(space);
  Random random(1);
  for (int i = 0; i < 20; ++i) {
    const auto point = space.sample(random);
    REQUIRE(point);
    space.neighbours(*point, Neighbourhood::hamming);
    space.pairs(*point, 10, random);
    space.found_by_walking(random);
  }
  space.count();
  CHECK(wrong == 0);
}
