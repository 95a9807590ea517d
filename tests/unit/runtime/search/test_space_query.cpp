#include "kiln/config.hpp"
#include "kiln/space_query.hpp"
#include "kiln_test.hpp"
#include "space_maker.hpp"

struct QueriedConfig {
  int block;
  int items;
};
KILN_CONFIG(QueriedConfig, block, items)
struct QueriedProblem {
  int n;
};
KILN_PROBLEM(QueriedProblem, n)

using namespace kiln;
using kiln::test::kLimits;

namespace {

DynamicSpace typed() {
  return Space<QueriedConfig, QueriedProblem>{{64, 1}}
      .values(&QueriedConfig::block, {64, 128, 2048})
      .values(&QueriedConfig::items, {1, 2, 4})
      .where("the device's block",
             [](const QueriedConfig& c, const QueriedProblem&, const DeviceLimits& l) {
               return c.block <= l.max_threads_per_block;
             })
      .where("no more than the problem",
             [](const QueriedConfig& c, const QueriedProblem& p, const DeviceLimits&) {
               return c.block * c.items <= p.n;
             })
      .dynamic();
}

}  // namespace

TEST_CASE("every combination with its reason", "[search]") {
  const DynamicSpace space = typed();
  std::vector<std::string> told;
  CHECK(for_each_config(space, Values{256}, kLimits, [&](auto config, const Constraint* violated) {
    told.push_back(space.describe(config));
    if (violated) told.back().append(": ").append(violated->reason);
    return true;
  }));
  CHECK(told == std::vector<std::string>{"block=64,items=1", "block=64,items=2", "block=64,items=4",
                                         "block=128,items=1", "block=128,items=2",
                                         "block=128,items=4: no more than the problem",
                                         "block=2048,items=1: the device's block",
                                         "block=2048,items=2: the device's block",
                                         "block=2048,items=4: the device's block"});
  int visits = 0;
  CHECK_FALSE(for_each_config(space, Values{256}, kLimits,
                              [&](auto, const Constraint*) { return ++visits < 2; }));
  CHECK(visits == 2);
}

TEST_CASE("counting agrees with walking", "[search]") {
  const SpaceCount count = count_configs(typed(), Values{256}, kLimits);
  CHECK(count.combinations == 9);
  CHECK(count.allowed == 5);
  CHECK(count.exact);
  REQUIRE(count.rejected.size() == 2);
  CHECK(count.rejected[0].reason == "the device's block");
  CHECK(count.rejected[0].count == 3);
  CHECK(count.rejected[1].count == 1);

  runtime::Random random(9);
  for (int s = 0; s < 50; ++s) {
    const DynamicSpace space = test::random_space(random);
    const SpaceCount some = count_configs(space, test::kProblem, kLimits);
    CHECK(some.allowed == static_cast<double>(test::allowed_configs(space).size()));
    double sum = some.allowed;
    for (const auto& r : some.rejected) sum += r.count;
    CHECK(sum == some.combinations);
  }
}

TEST_CASE("a huge space is estimated, and says so", "[search]") {
  DynamicSpace space;
  std::vector<std::int64_t> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) space.parameter(name, values, 0);
  space.where("a tenth", [](auto c, auto, const auto&) { return c[0] < 10; });
  const SpaceCount count = count_configs(space, test::kProblem, kLimits);
  CHECK(count.combinations == 1e12);
  CHECK_FALSE(count.exact);
  CHECK(count.allowed == Approx(1e11).epsilon(0.02));
  REQUIRE(count.rejected.size() == 1);
  CHECK(count.rejected[0].count + count.allowed == Approx(1e12).epsilon(1e-9));
  CHECK(count_configs(space, test::kProblem, kLimits).allowed == count.allowed);
}

TEST_CASE("a space without parameters has one config", "[search]") {
  const SpaceCount count = count_configs(DynamicSpace{}, test::kProblem, kLimits);
  CHECK(count.combinations == 1);
  CHECK(count.allowed == 1);
}
