#include "kiln_test.hpp"
#include "runtime/search/history.hpp"
#include "space_maker.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

TEST_CASE("a history tells results and the best", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("a", {1, 2, 3, 4}, 1);
  dynamic.where("not 4", [](auto c, auto, const auto&) { return c[0] != 4; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  History history(space);
  CHECK_FALSE(history.best());
  CHECK(history.propose({0}));
  CHECK_FALSE(history.propose({0}));
  CHECK_FALSE(history.result({0}));
  history.observe(Values{1}, 2.0);
  CHECK(history.result({0}) == 2.0);
  CHECK(history.best() == History::Best{{0}, 2.0});
  history.observe(Values{2}, 1.0);
  CHECK(history.best() == History::Best{{1}, 1.0});
  CHECK_FALSE(history.propose({1}));

  SECTION("the latest result of a config counts") {
    history.observe(Values{2}, 3.0);
    CHECK(history.best() == History::Best{{0}, 2.0});
    history.observe(Values{1}, kInfinity);
    CHECK(history.best() == History::Best{{1}, 3.0});
    history.observe(Values{2}, kInfinity);
    CHECK_FALSE(history.best());
  }
  SECTION("no number and no time are as infinite") {
    for (const double odd : {std::numeric_limits<double>::quiet_NaN(), -1.0, -kInfinity}) {
      history.observe(Values{3}, odd);
      CHECK(history.result({2}) == kInfinity);
    }
    CHECK(history.best() == History::Best{{1}, 1.0});
  }
  SECTION("what is not of the space is passed over") {
    for (const Values& odd : {Values{4}, Values{9}, Values{}, Values{1, 1}})
      history.observe(odd, 0.1);
    CHECK(history.best() == History::Best{{1}, 1.0});
    CHECK(history.points().size() == 2);
  }
}

TEST_CASE("unseen points are uniform and run out", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("a", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 1);
  dynamic.where("not 4", [](auto c, auto, const auto&) { return c[0] != 4; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  Random random(1);
  std::vector<int> last(10, 0);
  for (int i = 0; i < 9000; ++i) {
    History history(space);
    std::optional<Point> at;
    std::size_t count = 0;
    for (; auto next = history.unseen(random); ++count) {
      at = next;
      CHECK(history.propose(*next));
    }
    REQUIRE(count == 9);
    ++last[(*at)[0]];
  }
  CHECK(last[3] == 0);
  for (int d = 0; d < 10; ++d)
    if (d != 3) CHECK(std::abs(last[static_cast<std::size_t>(d)] - 1000) < 160);
}
