// Behaviour of the search "model": what it finds, when it ends, what it makes of failures and of a
// cost model. Seeds are fixed.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kiln_test.hpp"
#include "unit/runtime/search/space_maker.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

namespace {

using Time = std::function<double(std::span<const std::int64_t>)>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// 4 tile sizes, 2 switches, a constraint: 4096 * 4 combinations, 12544 of them allowed.
DynamicSpace tiled() {
  DynamicSpace space;
  for (const char* name : {"bx", "by", "tx", "ty"})
    space.parameter(name, {1, 2, 4, 8, 16, 32, 64, 128}, 1);
  space.parameter("vector", {0, 1}, 0, FieldKind::boolean)
      .parameter("layout", {0, 1}, 0, FieldKind::enumeration)
      .where("threads", [](auto c, auto, const auto&) { return c[0] * c[1] <= 1024; });
  return space;
}

/// 1 at its optimum, 32 x 4 threads of 2 x 8 elements, vectors, layout 1.
double tiled_time(std::span<const std::int64_t> c) {
  constexpr double kOptimum[] = {5, 2, 1, 3};
  double log_time = 0.3 * static_cast<double>(c[4] == 0) + 0.2 * static_cast<double>(c[5] == 0);
  for (std::size_t i = 0; i < 4; ++i)
    log_time += 0.1 * std::pow(std::log2(static_cast<double>(c[i])) - kOptimum[i], 2);
  return std::exp(log_time);
}

struct Outcome {
  double best = kInfinity;
  std::vector<Values> proposed;
};

/// Up to `most` evaluations in batches of `batch`.
Outcome search(const SearchProblem& problem, const Time& time, std::size_t most,
               std::size_t batch = 1, const std::string& name = "model") {
  const auto strategy = make_strategy(name, problem);
  Outcome outcome;
  while (outcome.proposed.size() < most) {
    const auto some = strategy->propose(std::min(batch, most - outcome.proposed.size()));
    if (some.empty()) break;
    for (const Values& config : some) {
      const double seconds = time(config);
      if (seconds < outcome.best) outcome.best = seconds;
      strategy->observe(config, seconds);
      outcome.proposed.push_back(config);
    }
  }
  return outcome;
}

double mean_best(const SearchSpace& space, const Time& time, std::size_t most,
                 std::size_t batch = 1, const std::string& name = "model",
                 const decltype(SearchProblem::predicted)& predicted = {}) {
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    sum += search({space, seed, most, predicted}, time, most, batch, name).best;
  return sum / 10;
}

/// A wrong turn in the order of a cost model: a fixed random number per config.
double random_guess(std::span<const std::int64_t> config) {
  std::uint64_t mix = 3;
  for (const std::int64_t v : config)
    mix = (mix ^ static_cast<std::uint64_t>(v + 9)) * 0x9e3779b97f4a7c15, mix ^= mix >> 31;
  return 1 + static_cast<double>(mix % 1000);
}

}  // namespace

TEST_CASE("model: the optimum of a smooth space in few evaluations", "[search]") {
  const DynamicSpace dynamic = tiled();
  const SearchSpace space(dynamic, kProblem, kLimits);
  const double by_chance = mean_best(space, tiled_time, 40, 1, "random");
  CHECK(by_chance > 1.4);
  CHECK(mean_best(space, tiled_time, 40) < 1.05);
  CHECK(mean_best(space, tiled_time, 40, 4) < 1.1);
  CHECK(mean_best(space, tiled_time, 80, 16) < 1.1);
}

TEST_CASE("model: switches that hardly matter, in a space too large to list", "[search]") {
  DynamicSpace dynamic = tiled();
  for (const char* name : {"u", "v", "w", "x", "y", "z"})
    dynamic.parameter(name, {0, 1}, 0, FieldKind::boolean);
  for (const char* name : {"k", "l"}) dynamic.parameter(name, {1, 2, 4, 8}, 1);
  const SearchSpace space(dynamic, kProblem, kLimits);
  REQUIRE(space.enumerate().empty());
  const Time time = [](auto c) {
    double log_time = std::log(tiled_time(c));
    for (std::size_t i = 6; i < 12; ++i) log_time += 0.002 * static_cast<double>(c[i]);
    for (std::size_t i = 12; i < 14; ++i) log_time += 0.1 * static_cast<double>(c[i] != 2);
    return std::exp(log_time);
  };
  CHECK(mean_best(space, time, 25) < 1.4);
  CHECK(mean_best(space, time, 50) < 1.2);
}

TEST_CASE("model: a little noise does not mislead it", "[search]") {
  const DynamicSpace dynamic = tiled();
  const SearchSpace space(dynamic, kProblem, kLimits);
  Random random(4);
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Outcome outcome = search(
        {space, seed, 60, {}},
        [&](auto config) {
          const double outlier = random.chance(0.02) ? 1.2 : 1;
          return tiled_time(config) * outlier * (1 + 0.01 * random.uniform());
        },
        60);
    sum += outcome.best;
  }
  CHECK(sum / 10 < 1.1);
}

TEST_CASE("model: without a budget it ends by itself, near the optimum", "[search]") {
  const DynamicSpace dynamic = tiled();
  const SearchSpace space(dynamic, kProblem, kLimits);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Outcome outcome = search({space, seed, 0, {}}, tiled_time, SIZE_MAX);
    INFO("seed " << seed);
    CHECK(outcome.best < 1.02);
    CHECK(outcome.proposed.size() >= 40);
    CHECK(outcome.proposed.size() <= 200);
  }
  // The search ends soon if all configs are equally fast, or if none works.
  CHECK(search({space, 1, 0, {}}, [](auto) { return 1.0; }, SIZE_MAX).proposed.size() <= 400);
  CHECK(search({space, 1, 0, {}}, [](auto) { return kInfinity; }, SIZE_MAX).proposed.size() <= 400);
  CHECK(search({space, 1, 0, {}}, [](auto) { return kNaN; }, SIZE_MAX).proposed.size() <= 400);
}

TEST_CASE("model: a budget is spent to the end, a small space to its last config", "[search]") {
  const DynamicSpace dynamic = tiled();
  const SearchSpace space(dynamic, kProblem, kLimits);
  CHECK(search({space, 1, 450, {}}, tiled_time, 450).proposed.size() == 450);
  CHECK(search({space, 1, 3, {}}, tiled_time, 3).proposed.size() == 3);

  DynamicSpace few;
  few.parameter("a", {1, 2, 4, 8}, 1).parameter("b", {0, 1, 2}, 0, FieldKind::enumeration);
  const SearchSpace small(few, kProblem, kLimits);
  const Time rough = [](auto c) { return time_of(Values(c.begin(), c.end())); };
  for (const std::size_t budget : {0, 5, 100})
    CHECK(search({small, 1, budget, {}}, rough, SIZE_MAX).proposed.size() == 12);
}

TEST_CASE("model: leaves a region that always fails", "[search]") {
  const DynamicSpace dynamic = tiled();
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto fails = [](std::span<const std::int64_t> c) { return c[2] * c[3] > 32; };
  const Time time = [&](auto c) { return fails(c) ? kInfinity : tiled_time(c); };
  std::size_t failed = 0, all_failing = 0;
  for (const Point& point : space.enumerate()) all_failing += fails(space.values(point));
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Outcome outcome = search({space, seed, 60, {}}, time, 60);
    sum += outcome.best;
    failed += static_cast<std::size_t>(
        std::count_if(outcome.proposed.begin(), outcome.proposed.end(), fails));
  }
  CHECK(sum / 10 < 1.05);
  const double share =
      static_cast<double>(all_failing) / static_cast<double>(space.enumerate().size());
  CHECK(share > 0.4);
  // Although the optimum lies at its edge.
  CHECK(static_cast<double>(failed) / 600 < 0.75 * share);
}

TEST_CASE("model: a cost model helps when right in its order, and hardly harms when wrong",
          "[search][long]") {
  const DynamicSpace dynamic = tiled();
  const SearchSpace space(dynamic, kProblem, kLimits);
  const double alone = mean_best(space, tiled_time, 16);
  const auto roughly = [](auto c) {  // a distorted scale, and the tiles' heights left out
    return 1e-6 * std::pow(tiled_time(Values{c[0], c[1], c[2], 8, c[4], c[5]}), 3);
  };
  CHECK(mean_best(space, tiled_time, 16, 1, "model", roughly) < 1 + 0.5 * (alone - 1));
  const double random = mean_best(space, tiled_time, 50, 1, "model", random_guess);
  CHECK(random < 1.1);
  const auto opposite = [](auto c) { return 1 / tiled_time(c); };
  CHECK(mean_best(space, tiled_time, 50, 1, "model", opposite) < 1.1);
  for (const double guess : {0.0, 1.0, -1.0, kNaN, kInfinity})
    CHECK(mean_best(space, tiled_time, 50, 1, "model", [=](auto) { return guess; }) < 1.15);
}

TEST_CASE("model: goes on from what others measured", "[search]") {
  const DynamicSpace dynamic = tiled();
  const SearchSpace space(dynamic, kProblem, kLimits);
  double told = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto strategy = make_strategy("model", {space, seed, 12, {}});
    Random random(seed + 100);
    for (int i = 0; i < 60; ++i) {
      const Values config = space.values(*space.sample(random));
      strategy->observe(config, tiled_time(config));
    }
    double best = kInfinity;
    for (int i = 0; i < 12; ++i) {
      const Values config = strategy->propose(1).at(0);
      best = std::min(best, tiled_time(config));
      strategy->observe(config, tiled_time(config));
    }
    told += best / 10;
  }
  CHECK(told < 1.05);
  CHECK(mean_best(space, tiled_time, 12) > 1.2);
}

TEST_CASE("model: the latest result of a config counts", "[search]") {
  DynamicSpace dynamic;
  std::vector<std::int64_t> values(400);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  dynamic.parameter("a", values, 0);
  const SearchSpace space(dynamic, kProblem, kLimits);
  const auto strategy = make_strategy("model", {space, 1, 100, {}});
  const auto time = [](std::int64_t a) { return 1 + std::fabs(static_cast<double>(a) - 300) / 50; };
  // First told the mirror image, which would draw the search to 99.
  for (const bool mirrored : {true, false})
    for (const std::int64_t a : {10, 60, 110, 160, 210, 260, 310, 360, 390})
      strategy->observe(Values{a}, time(mirrored ? 399 - a : a));
  int near = 0;
  for (int i = 0; i < 6; ++i) {
    const Values config = strategy->propose(1).at(0);
    near += config[0] > 200;
    strategy->observe(config, time(config[0]));
  }
  CHECK(near >= 5);
}

TEST_CASE("model: a space too large to list", "[search]") {
  DynamicSpace dynamic;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"})
    dynamic.parameter(name, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, 1);
  dynamic.where("ab", [](auto c, auto, const auto&) { return c[0] * c[1] <= 1 << 14; });
  const SearchSpace space(dynamic, kProblem, kLimits);
  REQUIRE_FALSE(space.enumerable());
  const Time time = [](auto c) {
    double log_time = 0;
    for (std::size_t i = 0; i < c.size(); ++i)
      log_time +=
          0.05 * std::pow(std::log2(static_cast<double>(c[i])) - 1 - static_cast<double>(i), 2);
    return std::exp(log_time);
  };
  CHECK(mean_best(space, time, 60, 1, "random") > 2);
  CHECK(mean_best(space, time, 60) < 1.15);
  // A batch larger than what the search keeps in mind at once, and no answer to it.
  const auto deaf = make_strategy("model", {space, 1, 1000, {}});
  CHECK(deaf->propose(1000).size() == 1000);
}
