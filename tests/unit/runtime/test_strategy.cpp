#include <set>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/strategy.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

const DeviceLimits kLimits;
const Values kProblem{1};

std::unique_ptr<Strategy> make(const std::string& name, const DynamicSpace& space) {
  return make_strategy(name, {space, space.default_config(), kProblem, kLimits, 7});
}

std::vector<Values> drain(Strategy& strategy, std::size_t count) {
  std::vector<Values> all;
  for (;;) {
    const auto some = strategy.propose(count);
    CHECK(some.size() <= count);
    if (some.empty()) return all;
    for (const Values& v : some) {
      all.push_back(v);
      strategy.observe(v, 1.0);
    }
  }
}

}  // namespace

TEST_CASE("every strategy keeps the contract", "[runtime][strategy]") {
  DynamicSpace space;
  space.parameter("a", {1, 2, 3}, 2).parameter("b", {0, 1}, 0).parameter("c", {5}, 5);
  for (const std::string& name : strategy_names()) {
    INFO(name);
    for (std::size_t count : {1u, 2u, 64u}) {
      const auto strategy = make(name, space);
      const auto all = drain(*strategy, count);
      const std::set<Values> distinct(all.begin(), all.end());
      CHECK(distinct.size() == all.size());                // none twice
      CHECK(distinct.count(space.default_config()) == 0);  // proposed by the tuner
      for (const Values& v : all) CHECK(v.size() == 3);
      CHECK(strategy->propose(count).empty());  // over is over
    }
  }
}

TEST_CASE("exhaustive: all, in the order of the space", "[runtime][strategy]") {
  DynamicSpace space;
  space.parameter("a", {1, 2}, 1).parameter("b", {7, 8}, 8);
  const auto strategy = make("exhaustive", space);
  CHECK(drain(*strategy, 2) == std::vector<Values>{{1, 7}, {2, 7}, {2, 8}});
}

TEST_CASE("a space without parameters has its default alone", "[runtime][strategy]") {
  DynamicSpace space;
  CHECK(make("exhaustive", space)->propose(10).empty());
}

TEST_CASE("an unknown strategy", "[runtime][strategy]") {
  DynamicSpace space;
  for (const char* name : {"", "Exhaustive", "exhaustive "}) try {
      make(name, space);
      FAIL("accepted: " << name);
    } catch (const UserError& error) {
      for (const std::string& known : strategy_names())
        CHECK(std::string(error.what()).find(known) != std::string::npos);
    }
}
