#include <clocale>
#include <set>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "space_maker.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

namespace {

DynamicSpace small() {
  DynamicSpace space;
  space.parameter("a", {1, 2}, 1).parameter("b", {7, 8}, 8);
  return space;
}

std::string refusal(const std::string& name) {
  const DynamicSpace dynamic = small();
  const SearchSpace space(dynamic, kProblem, kLimits);
  try {
    make_strategy(name, {space});
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<Values> drain(Strategy& strategy, std::size_t count) {
  std::vector<Values> all;
  for (auto some = strategy.propose(count); !some.empty(); some = strategy.propose(count))
    for (const Values& config : some) {
      all.push_back(config);
      strategy.observe(config, time_of(config));
    }
  return all;
}

}  // namespace

TEST_CASE("exhaustive: all, in the order of the space", "[search]") {
  const DynamicSpace dynamic = small();
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto strategy = make_strategy("exhaustive", {space});
  strategy->observe(Values{1, 8}, 1.0);
  CHECK(drain(*strategy, 2) == std::vector<Values>{{1, 7}, {2, 7}, {2, 8}});
}

TEST_CASE("exhaustive does not list a huge space first", "[search]") {
  DynamicSpace dynamic;
  std::vector<std::int64_t> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  for (const char* name : {"a", "b", "c", "d"}) dynamic.parameter(name, values, 0);
  std::size_t asked = 0;
  dynamic.where("even", [&](auto c, auto, const auto&) { return ++asked, c[3] % 2 == 0; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto strategy = make_strategy("exhaustive", {space});
  CHECK(strategy->propose(3) == std::vector<Values>{{0, 0, 0, 0}, {0, 0, 0, 2}, {0, 0, 0, 4}});
  CHECK(strategy->propose(1) == std::vector<Values>{{0, 0, 0, 6}});
  CHECK(asked < 20);
}

TEST_CASE("exhaustive: the rest of a sparse space is listed, not walked to", "[search]") {
  DynamicSpace dynamic;
  std::vector<std::int64_t> values(64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"})
    dynamic.parameter(name, values, 0);
  for (std::size_t d = 0; d + 1 < 8; ++d)  // 64 of 2.8e14
    dynamic.where("each is one more",
                  [d](auto c, auto, const auto&) { return c[d + 1] == (c[d] + 1) % 64; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto strategy = make_strategy("exhaustive", {space});
  strategy->observe(Values{5, 6, 7, 8, 9, 10, 11, 12}, 1.0);
  const std::vector<Values> all = drain(*strategy, 10);
  CHECK(all.size() == 63);
  CHECK(std::set<Values>(all.begin(), all.end()).size() == 63);
  for (const Values& config : all) CHECK_FALSE(dynamic.violated(config, kProblem, kLimits));
}

TEST_CASE("an unknown strategy: those that exist are listed", "[search]") {
  for (const char* name : {"", "Exhaustive", "exhaustive ", "randon", ":seeds=1", "auto "}) {
    const std::string text = refusal(name);
    INFO("'" << name << "': " << text);
    CHECK(contains(text, "unknown strategy"));
    CHECK(contains(text, "auto"));
    for (const std::string& known : strategy_names()) CHECK(contains(text, known));
  }
}

TEST_CASE("the default strategy is one of them", "[search]") {
  const auto names = strategy_names();
  CHECK(std::count(names.begin(), names.end(), default_strategy()) == 1);
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  CHECK(refusal("auto").empty());
  const DynamicSpace dynamic = tight_space();
  const SearchSpace space(dynamic, kProblem, kLimits);
  CHECK(make_strategy("auto", {space, 3, 20, {}})->propose(20) ==
        make_strategy(default_strategy(), {space, 3, 20, {}})->propose(20));
}

TEST_CASE("options in a strategy's name", "[search]") {
  for (const char* good :
       {"coordinate_descent:radius=2", "coordinate_descent:radius=2,all_directions=1",
        "local_search:seeds=3,climbs=1", "genetic:population=4,children=2,mutation=0.1",
        "iterated_local_search:tolerance=0,patience=1,changes=3,seeds=1",
        "simulated_annealing:hot=1,cold=0.01,steps=5,seeds=1",
        "differential_evolution:population=5,factor=0.5,crossover=1"}) {
    INFO(good);
    CHECK(refusal(good) == "");
    const DynamicSpace dynamic = small();
    const SearchSpace space(dynamic, kProblem, kLimits);
    CHECK(drain(*make_strategy(good, {space}), 2).size() == 4);
  }
  CHECK(contains(refusal("coordinate_descent:width=2"), "unknown option 'width'"));
  CHECK(contains(refusal("coordinate_descent:width=2"), "all_directions"));
  CHECK(contains(refusal("coordinate_descent:width=2"), "radius"));
  CHECK(contains(refusal("exhaustive:radius=2"), "it has none"));
  CHECK(contains(refusal("coordinate_descent:radius=0"), "between 1 and"));
  CHECK(contains(refusal("coordinate_descent:radius=1.5"), "radius=1.5 is not a whole number"));
  CHECK(contains(refusal("coordinate_descent:radius=1,radius=2"), "twice"));
  for (const char* odd : {"coordinate_descent:", "coordinate_descent:radius", "genetic:=1",
                          "coordinate_descent:radius=", "coordinate_descent:radius=two",
                          "coordinate_descent:radius=2,", "coordinate_descent:radius=2x",
                          "genetic:population=nan", "genetic:population=1e999"}) {
    INFO(odd << ": " << refusal(odd));
    CHECK(contains(refusal(odd), "is not KEY=NUMBER"));
  }
}

TEST_CASE("a strategy's options are read alike in every locale", "[search]") {
  const std::string before = std::setlocale(LC_NUMERIC, nullptr);
  const char* found = nullptr;
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"})
    if (!found) found = std::setlocale(LC_NUMERIC, name);
  if (!found) KILN_SKIP("no locale that writes a decimal comma is installed");
  const bool comma = std::localeconv()->decimal_point[0] == ',';
  const std::string point = refusal("simulated_annealing:hot=0.05"),
                    with_comma = refusal("simulated_annealing:hot=0,05");
  std::setlocale(LC_NUMERIC, before.c_str());
  CHECK(comma);
  CHECK(point == "");
  CHECK(contains(with_comma, "is not KEY=NUMBER"));
}

TEST_CASE("coordinate descent moves along fields, all of them when asked", "[search]") {
  DynamicSpace dynamic;
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 1; i <= 64; ++i) sizes.push_back(i);
  dynamic.parameter("size", sizes, 16).parameter("stages", {1, 2, 3, 4}, 2);
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto first_moves = [&](const std::string& name, std::size_t count) {
    const auto strategy = make_strategy(name, {space});
    strategy->observe(Values{16, 2}, 1.0);
    std::set<Values> proposed;
    while (proposed.size() < count) {
      const auto some = strategy->propose(count - proposed.size());
      for (const Values& config : some) {
        proposed.insert(config);
        strategy->observe(config, 2.0);  // nothing helps
      }
    }
    return proposed;
  };
  CHECK(first_moves("coordinate_descent", 7) ==
        std::set<Values>{{8, 2}, {32, 2}, {15, 2}, {17, 2}, {16, 1}, {16, 3}, {16, 4}});
  const auto wide = first_moves("coordinate_descent:radius=2", 9);
  CHECK(wide.count({14, 2}) == 1);
  CHECK(wide.count({18, 2}) == 1);
  CHECK(wide.count({16, 4}) == 1);
  const auto all = first_moves("coordinate_descent:all_directions=1", 19);
  CHECK(all.count({32, 3}) == 1);
  CHECK(all.count({15, 1}) == 1);
}

TEST_CASE("a cost model's promises are tried first", "[search]") {
  const DynamicSpace dynamic = tight_space();
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto promise = [](std::span<const std::int64_t> c) {
    return std::fabs(std::log2(static_cast<double>(c[0])) - 5);
  };
  const auto mean = [&](const SearchProblem& search) {
    double sum = 0, count = 0;
    const auto strategy = make_strategy("local_search:seeds=20", search);
    for (const Values& config : strategy->propose(20)) {
      sum += promise(config);
      ++count;
    }
    return sum / count;
  };
  CHECK(mean({space, 1, 0, promise}) < 0.5 * mean({space, 1, 0, {}}));
}

TEST_CASE("a constraint that throws ends the search, not the process", "[search]") {
  DynamicSpace dynamic;
  dynamic.parameter("a", {1, 2, 3, 4}, 1);
  dynamic.where("odd", [](auto c, auto, const auto&) -> bool {
    if (c[0] == 3) throw std::runtime_error("no such size");
    return true;
  });
  const SearchSpace space(dynamic, kProblem, kLimits);
  for (const std::string& name : strategy_names()) {
    INFO(name);
    CHECK_THROWS_AS(drain(*make_strategy(name, {space}), 2), std::runtime_error);
  }
}
