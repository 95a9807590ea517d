// What every strategy promises, held against each of them on many random spaces.
#include <algorithm>
#include <map>

#include "kiln_test.hpp"
#include "space_maker.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

namespace {

enum class Hears { at_once, late, nothing, only_infinite, only_nan };

struct Way {
  Hears hears = Hears::at_once;
  std::uint64_t seed = 1;
  bool strangers = false;       ///< results of configs that were not proposed come in between
  std::size_t most = SIZE_MAX;  ///< proposals before we lose patience
  std::size_t budget = 0;
};

double heard(Hears hears, const Values& config) {
  if (hears == Hears::only_infinite) return kInfinity;
  if (hears == Hears::only_nan) return std::numeric_limits<double>::quiet_NaN();
  return time_of(config);
}

/// Runs a search to its end in batches of mixed sizes; checks each proposal as it comes.
std::vector<Values> run(const std::string& name, const DynamicSpace& dynamic,
                        const SearchSpace& space, const Way& way) {
  const auto strategy = make_strategy(name, {space, way.seed, way.budget, {}});
  Random random(99);
  std::vector<Values> proposed, unheard;
  std::set<Values> known;
  const auto stranger = [&] {
    Values config;
    for (const Parameter& p : dynamic.parameters())
      config.push_back(p.values[random.below(p.values.size())]);
    strategy->observe(config, time_of(config));
    known.insert(config);
  };
  if (way.strangers) {
    stranger();
    strategy->observe(Values{1, 2, 3, 4, 5, 6, 7, 8, 9}, 1.0);        // not of this space
    strategy->observe(Values(dynamic.parameters().size(), 77), 0.1);  // nor these values
  }
  for (std::size_t turn = 0; proposed.size() < way.most; ++turn) {
    const std::size_t count = std::vector<std::size_t>{1, 7, 64}[random.below(3)];
    const std::vector<Values> some = strategy->propose(count);
    if (some.empty()) {
      CHECK(strategy->propose(count).empty());  // over is over
      return proposed;
    }
    CHECK(some.size() <= count);
    for (const Values& config : some) {
      const bool fresh = known.insert(config).second;
      const bool allowed = !dynamic.violated(config, kProblem, kLimits) && space.point(config);
      if (!fresh || !allowed) {
        INFO(name << " turn " << turn << " " << dynamic.describe(config));
        CHECK(fresh);
        CHECK(allowed);
        return proposed;
      }
      proposed.push_back(config);
      unheard.push_back(config);
    }
    if (way.hears == Hears::nothing) continue;
    if (way.hears == Hears::late) {
      random.shuffle(unheard);
      for (std::size_t i = random.below(unheard.size() + 1); i-- > 0; unheard.pop_back())
        strategy->observe(unheard.back(), heard(way.hears, unheard.back()));
    } else {
      for (const Values& config : unheard) strategy->observe(config, heard(way.hears, config));
      unheard.clear();
    }
    if (way.strangers && random.chance(0.3)) stranger();
  }
  return proposed;
}

/// Strategies that never decide that they have seen enough.
bool goes_on_to_the_end(const std::string& name) { return name.rfind("model", 0) != 0; }

}  // namespace

TEST_CASE("on random spaces: nothing invalid, nothing twice, always an end", "[search][long]") {
  Random random(2);
  for (int s = 0; s < 60; ++s) {
    const DynamicSpace dynamic = random_space(random);
    const SearchSpace space(dynamic, kProblem, kLimits);
    const std::set<Values> all = allowed_configs(dynamic);
    for (const std::string& name : strategy_names()) {
      for (const Hears hears :
           {Hears::at_once, Hears::late, Hears::nothing, Hears::only_infinite, Hears::only_nan}) {
        const std::uint64_t seed = 1 + random.below(1000);
        const auto proposed = run(name, dynamic, space, {hears, seed});
        INFO(name << ", space " << s << ", hears " << static_cast<int>(hears));
        CHECK(proposed.empty() == all.empty());
        if (goes_on_to_the_end(name))
          CHECK(std::set<Values>(proposed.begin(), proposed.end()) == all);
      }
      run(name, dynamic, space, {Hears::late, 5, true});
      run(name, dynamic, space, {Hears::at_once, 6, true, SIZE_MAX, 10});
    }
  }
}

TEST_CASE("the seed names the search", "[search]") {
  Random random(3);
  std::map<std::string, int> differ;
  for (int s = 0; s < 30; ++s) {
    const DynamicSpace dynamic = random_space(random);
    const SearchSpace space(dynamic, kProblem, kLimits);
    for (const std::string& name : strategy_names()) {
      for (const Hears hears : {Hears::at_once, Hears::late}) {
        const Way way{hears, 11, s % 2 == 0};
        const auto first = run(name, dynamic, space, way);
        // Another search on the same space does not disturb.
        const auto other = run(name, dynamic, space, {hears, 12, s % 2 == 0});
        const SearchSpace again(dynamic, kProblem, kLimits);
        INFO(name << ", space " << s);
        CHECK(run(name, dynamic, again, way) == first);
        differ[name] += other != first;
      }
    }
  }
  for (const std::string& name : strategy_names())
    if (name != "exhaustive") CHECK(differ[name] > 0);
}

TEST_CASE("spaces with little in them", "[search]") {
  for (const std::string& name : strategy_names()) {
    INFO(name);
    SECTION("no parameter: the empty config, once " + name) {
      const DynamicSpace dynamic;
      const SearchSpace space(dynamic, kProblem, kLimits);
      CHECK(run(name, dynamic, space, {}) == std::vector<Values>{{}});
      const auto told = make_strategy(name, {space});
      told->observe(Values{}, 1.0);
      CHECK(told->propose(3).empty());
    }
    SECTION("one value each " + name) {
      DynamicSpace dynamic;
      dynamic.parameter("a", {3}, 3).parameter("b", {4}, 4);
      const SearchSpace space(dynamic, kProblem, kLimits);
      for (const Hears hears : {Hears::at_once, Hears::nothing, Hears::only_infinite})
        CHECK(run(name, dynamic, space, {hears}) == std::vector<Values>{{3, 4}});
    }
    SECTION("one allowed config " + name) {
      DynamicSpace dynamic;
      dynamic.parameter("a", {1, 2, 3, 4, 5, 6}, 1).parameter("b", {1, 2, 3, 4, 5, 6}, 1);
      dynamic.where("seven", [](auto c, auto, const auto&) { return c[0] == 5 && c[1] == 2; });
      const SearchSpace space(dynamic, kProblem, kLimits);
      for (const Hears hears : {Hears::at_once, Hears::nothing, Hears::only_infinite})
        CHECK(run(name, dynamic, space, {hears}) == std::vector<Values>{{5, 2}});
    }
    SECTION("none " + name) {
      DynamicSpace dynamic;
      dynamic.parameter("a", {1, 2, 3}, 1);
      dynamic.where("never", [](auto, auto, const auto&) { return false; });
      const SearchSpace space(dynamic, kProblem, kLimits);
      CHECK(run(name, dynamic, space, {}).empty());
      const auto told = make_strategy(name, {space});
      told->observe(Values{1}, 1.0);  // the default need not be allowed
      CHECK(told->propose(3).empty());
    }
  }
}

TEST_CASE("what the device cannot launch is not proposed", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("a", {1, 2, 3, 4, 5, 6}, 1).parameter("b", {1, 2, 3, 4, 5, 6}, 1);
  dynamic.where("a is not 3", [](auto c, auto, const auto&) { return c[0] != 3; });
  const SearchSpace space(dynamic, kProblem, kLimits, [](auto c) { return c[0] * c[1] <= 12; });
  for (const std::string& name : strategy_names()) {
    INFO(name);
    const auto proposed = run(name, dynamic, space, {});
    CHECK_FALSE(proposed.empty());
    for (const Values& c : proposed) CHECK(c[0] * c[1] <= 12);
  }
}

TEST_CASE("nothing outside of the author's list is proposed", "[search]") {
  Random random(7);
  int lists = 0;
  for (int s = 0; s < 60; ++s) {
    const DynamicSpace dynamic = random_space(random);
    std::vector<Values> list;
    std::set<Values> expected;
    const std::set<Values> all = allowed_configs(dynamic);
    for (int i = 0; i < 12; ++i) {
      Values config;  // with or without the constraints' consent, some of them twice
      for (const Parameter& p : dynamic.parameters())
        config.push_back(p.values[random.below(p.values.size())]);
      if (all.count(config)) expected.insert(config);
      list.push_back(std::move(config));
    }
    list.push_back(Values(dynamic.parameters().size(), 77));  // outside of the space
    if (expected.empty()) continue;
    ++lists;
    const SearchSpace space(dynamic, kProblem, kLimits, {}, list);
    for (const std::string& name : strategy_names())
      for (const Hears hears : {Hears::at_once, Hears::late, Hears::nothing, Hears::only_infinite})
        for (const bool strangers : {false, true}) {
          INFO(name << ", space " << s << ", hears " << static_cast<int>(hears));
          const auto proposed = run(name, dynamic, space, {hears, 3, strangers});
          CHECK(std::all_of(proposed.begin(), proposed.end(),
                            [&](const Values& c) { return expected.count(c) == 1; }));
          if (goes_on_to_the_end(name) && !strangers) CHECK(proposed.size() == expected.size());
        }
  }
  CHECK(lists > 30);
}

TEST_CASE("a huge space with a short list: the whole list is proposed", "[search]") {
  DynamicSpace dynamic;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"})
    dynamic.parameter(name, {0, 1, 2, 3, 4, 5, 6, 7}, 0);
  Random random(11);
  std::vector<Values> list;  // hardly two of which differ in one parameter alone
  for (int i = 0; i < 50; ++i)
    for (Values& config = list.emplace_back(); config.size() < 7;)
      config.push_back(static_cast<std::int64_t>(random.below(8)));
  const std::set<Values> expected(list.begin(), list.end());
  const SearchSpace space(dynamic, kProblem, kLimits, {}, list);
  for (const std::string& name : strategy_names()) {
    INFO(name);
    const auto proposed = run(name, dynamic, space, {Hears::at_once, 5});
    CHECK(std::set<Values>(proposed.begin(), proposed.end()) == expected);
  }
}

TEST_CASE("a huge space with tight constraints", "[search]") {
  const DynamicSpace dynamic = tight_space();
  const SearchSpace space(dynamic, kProblem, kLimits);
  REQUIRE_FALSE(space.enumerable());
  for (const std::string& name : strategy_names()) {
    for (const Hears hears : {Hears::at_once, Hears::late, Hears::nothing, Hears::only_infinite}) {
      INFO(name << ", hears " << static_cast<int>(hears));
      const auto proposed = run(name, dynamic, space, {hears, 4, false, 150, 150});
      CHECK(proposed.size() >= 150);
    }
    run(name, dynamic, space, {Hears::late, 4, true, 100});
  }
}

TEST_CASE("a huge space with next to nothing allowed still ends", "[search]") {
  DynamicSpace dynamic;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"})
    dynamic.parameter(name, {0, 1, 2, 3, 4, 5, 6, 7}, 0);
  SECTION("nothing") {
    dynamic.where("never", [](auto, auto, const auto&) { return false; });
    const SearchSpace space(dynamic, kProblem, kLimits);
    for (const std::string& name : strategy_names()) CHECK(run(name, dynamic, space, {}).empty());
  }
  SECTION("islands far from each other") {
    for (std::size_t d = 1; d < 7; ++d)
      dynamic.where("all alike", [d](auto c, auto, const auto&) { return c[d] == c[0]; });
    const SearchSpace space(dynamic, kProblem, kLimits);
    for (const std::string& name : strategy_names())
      for (const Hears hears : {Hears::at_once, Hears::nothing}) {
        INFO(name);
        CHECK(run(name, dynamic, space, {hears}).size() == 8);
      }
  }
}

TEST_CASE("the good is found sooner than by chance", "[search]") {
  DynamicSpace dynamic;
  for (const char* name : {"a", "b", "c", "d"})
    dynamic.parameter(name, {1, 2, 4, 8, 16, 32, 64}, 1);
  dynamic.where("a product", [](auto c, auto, const auto&) { return c[0] * c[1] <= 1024; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto bowl = [](const Values& c) {
    double time = 1;
    for (std::size_t i = 0; i < c.size(); ++i)
      time += std::fabs(std::log2(static_cast<double>(c[i])) - 1 - static_cast<double>(i));
    return time;
  };
  const auto best_of = [&](const std::string& name) {
    double sum = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const auto strategy = make_strategy(name, {space, seed, 100, {}});
      double best = kInfinity;
      for (std::size_t n = 0; n < 100;) {
        const auto some = strategy->propose(std::min<std::size_t>(4, 100 - n));
        if (some.empty()) break;
        n += some.size();
        for (const Values& config : some) {
          best = std::min(best, bowl(config));
          strategy->observe(config, bowl(config));
        }
      }
      sum += best;
    }
    return sum / 20;
  };
  const double chance = best_of("random");
  for (const std::string& name : strategy_names()) {
    if (name == "random" || name == "exhaustive") continue;
    INFO(name);
    CHECK(best_of(name) < 1 + 0.5 * (chance - 1));
  }
}
