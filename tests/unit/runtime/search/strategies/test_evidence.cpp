// What the search "model" makes of other problems' results: it begins where they ended, and is not
// led astray by what tells nothing.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kiln_test.hpp"
#include "unit/runtime/search/space_maker.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

DynamicSpace tiles() {
  DynamicSpace space;
  for (const char* name : {"bx", "by", "tx", "ty"})
    space.parameter(name, {1, 2, 4, 8, 16, 32, 64, 128}, 1);
  space.parameter("layout", {0, 1, 2}, 0, FieldKind::enumeration)
      .where("threads", [](auto c, auto, const auto&) { return c[0] * c[1] <= 1024; });
  return space;
}

/// One of a family: its optimum moves a little from problem to problem.
double family_time(int member, std::span<const std::int64_t> c) {
  const double optimum[] = {4.0 + 0.3 * (member % 3), 2.2, 1.1, 3.0 - 0.2 * (member % 2)};
  double log_time = 0.4 * static_cast<double>(c[4] != 1) + member;
  for (std::size_t i = 0; i < 4; ++i)
    log_time += 0.15 * std::pow(std::log2(static_cast<double>(c[i])) - optimum[i], 2);
  return c[2] * c[3] > 512 ? kNever : std::exp(log_time);
}

/// What a search of `count` random configs would have on record.
Evidence record_of(const SearchSpace& space, int member, std::size_t count, std::uint64_t seed) {
  Evidence evidence;
  Random random(seed);
  while (evidence.results.size() < count) {
    const Values config = space.values(*space.sample(random));
    evidence.results.push_back({config, family_time(member, config)});
  }
  return evidence;
}

double best_of(const SearchSpace& space, std::span<const Evidence> evidence, std::size_t most,
               std::uint64_t seed, int member = 7) {
  const auto strategy = make_strategy("model", {space, seed, most, {}, evidence});
  double best = kNever;
  for (std::size_t i = 0; i < most; ++i) {
    const auto some = strategy->propose(1);
    if (some.empty()) break;
    const double seconds = family_time(member, some[0]);
    strategy->observe(some[0], seconds);
    best = std::min(best, seconds);
  }
  return best;
}

double mean_best(const SearchSpace& space, std::span<const Evidence> evidence, std::size_t most) {
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) sum += best_of(space, evidence, most, seed);
  return sum / 5;
}

}  // namespace

TEST_CASE("a search begins where others of the kernel ended", "[runtime][search][evidence]") {
  const DynamicSpace dynamic = tiles();
  const SearchSpace space(dynamic, kProblem, kLimits);
  double optimum = kNever;
  for (const Point& point : space.enumerate())
    optimum = std::min(optimum, family_time(7, space.values(point)));
  std::vector<Evidence> evidence;
  for (int member = 0; member < 4; ++member)
    evidence.push_back(record_of(space, member, 120, static_cast<std::uint64_t>(member) + 1));
  CHECK(mean_best(space, evidence, 5) < 1.2 * optimum);
  CHECK(mean_best(space, evidence, 15) < 1.05 * optimum);
  CHECK(mean_best(space, evidence, 5) < 0.5 * mean_best(space, {}, 5));
}

TEST_CASE("evidence that tells nothing is soon ignored", "[runtime][search][evidence]") {
  const DynamicSpace dynamic = tiles();
  const SearchSpace space(dynamic, kProblem, kLimits);
  std::vector<Evidence> upside_down;
  for (int member = 0; member < 3; ++member) {
    Evidence& task = upside_down.emplace_back(
        record_of(space, member, 120, static_cast<std::uint64_t>(member) + 1));
    for (Evidence::Result& r : task.results) r.seconds = 1 / r.seconds;
  }
  double optimum = kNever;
  for (const Point& point : space.enumerate())
    optimum = std::min(optimum, family_time(7, space.values(point)));
  CHECK(mean_best(space, upside_down, 60) < 1.25 * optimum);
}

TEST_CASE("among similar problems one that is unlike the others does no harm",
          "[runtime][search][evidence]") {
  const DynamicSpace dynamic = tiles();
  const SearchSpace space(dynamic, kProblem, kLimits);
  std::vector<Evidence> evidence{record_of(space, 0, 120, 1), record_of(space, 1, 120, 2),
                                 record_of(space, 2, 120, 3)};
  for (Evidence::Result& r : evidence[0].results) r.seconds = 1 / r.seconds;
  CHECK(mean_best(space, evidence, 10) < 0.9 * mean_best(space, {}, 10));
}

TEST_CASE("evidence may be empty, foreign, or all failures", "[runtime][search][evidence]") {
  const DynamicSpace dynamic = tiles();
  const SearchSpace space(dynamic, kProblem, kLimits);
  const double alone = best_of(space, {}, 12, 3);
  Evidence nothing, foreign, failing, broken;
  foreign.results = {{{3, 5, 7, 9, 11}, 1.0}, {{1, 1}, 1.0}, {{}, 1.0}};
  failing.results = {{{1, 1, 1, 1, 0}, kNever}, {{2, 2, 2, 2, 1}, kNever}};
  broken.results = {{{1, 1, 1, 1, 0}, std::nan("")}, {{2, 2, 2, 2, 1}, -1}, {{4, 4, 4, 4, 1}, 0}};
  for (const Evidence& useless : {nothing, foreign, failing, broken})
    CHECK(best_of(space, std::span(&useless, 1), 12, 3) == alone);
  // One result tells nothing of the others, nor do many that are equal.
  Evidence one, equal = record_of(space, 0, 50, 1);
  one.results = {{{16, 4, 2, 8, 1}, 1e-3}};
  for (Evidence::Result& r : equal.results) r.seconds = 1e-3;
  for (const Evidence& useless : {one, equal}) {
    const auto with = make_strategy("model", {space, 3, 12, {}, std::span(&useless, 1)});
    const auto without = make_strategy("model", {space, 3, 12});
    for (int i = 0; i < 12; ++i) {
      const auto proposed = with->propose(1);
      REQUIRE(proposed == without->propose(1));
      for (const auto& strategy : {with.get(), without.get()})
        strategy->observe(proposed[0], family_time(7, proposed[0]));
    }
  }
  // Every config that is known elsewhere fails here.
  const Evidence known = record_of(space, 0, 50, 1);
  const auto strategy = make_strategy("model", {space, 1, 60, {}, std::span(&known, 1)});
  std::set<Values> proposed;
  for (int i = 0; i < 60; ++i)
    for (const Values& config : strategy->propose(1)) {
      CHECK(proposed.insert(config).second);
      strategy->observe(config, kNever);
    }
  CHECK(proposed.size() == 60);
}

TEST_CASE("a parameter that was not told does not matter", "[runtime][search][evidence]") {
  const DynamicSpace dynamic = tiles();
  const SearchSpace space(dynamic, kProblem, kLimits);
  std::vector<Evidence> evidence{record_of(space, 0, 150, 1), record_of(space, 2, 150, 2)};
  for (Evidence& task : evidence) {
    task.unknown = {false, false, false, false, true};
    for (Evidence::Result& r : task.results) r.config[4] = 12345;
  }
  CHECK(mean_best(space, evidence, 10) < 0.7 * mean_best(space, {}, 10));
}

TEST_CASE("with evidence the same seed proposes the same", "[runtime][search][evidence]") {
  const DynamicSpace dynamic = tiles();
  const SearchSpace space(dynamic, kProblem, kLimits);
  const std::vector<Evidence> evidence{record_of(space, 0, 80, 1), record_of(space, 1, 80, 2)};
  const auto all = [&] {
    std::vector<Values> configs;
    const auto strategy = make_strategy("model", {space, 5, 30, {}, evidence});
    while (configs.size() < 30)
      for (Values& config : strategy->propose(3)) {
        strategy->observe(config, family_time(7, config));
        configs.push_back(std::move(config));
      }
    return configs;
  };
  CHECK(all() == all());
}
