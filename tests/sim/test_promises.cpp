// A few thousand seeds of what rank_simulation runs at length, and proof that it can fail.
#include <algorithm>
#include <vector>

#include "groups.hpp"
#include "kiln_test.hpp"
#include "world.hpp"

using sim::Sabotage;

namespace {

constexpr std::uint64_t kSeeds = 3000;
const sim::Limits kSmall{64};

sim::Outcome play(std::uint64_t seed, Sabotage sabotage = Sabotage::none) {
  sim::Scenario scenario = sim::draw(seed, kSmall);
  scenario.sabotage = sabotage;
  return sim::World(scenario).run();
}

/// Violations among some seeds that say this.
int noticed(Sabotage sabotage, const std::string& text, std::uint64_t seeds = 1500) {
  int count = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    for (const std::string& v : play(seed, sabotage).violations)
      count += v.find(text) != std::string::npos;
  return count;
}

}  // namespace

TEST_CASE("all promises hold, whatever goes wrong", "[sim]") {
  int plans = 0, defaults = 0, faulted = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const sim::Outcome outcome = play(seed);
    for (const std::string& text : outcome.violations) FAIL_CHECK(text);
    plans += outcome.plans > 0;
    defaults += outcome.defaults > 0;
    faulted += outcome.faulted;
  }
  // The seeds are worth something: each end is reached often.
  CHECK(plans > 1000);
  CHECK(defaults > 500);
  CHECK(faulted > 500);
}

TEST_CASE("all promises hold in groups of ranks, and for all ranks after them", "[sim]") {
  int jobs = 0, plans_after = 0, missing = 0, one_fails = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const sim::Scenario job = sim::draw(seed, kSmall);
    const int size = static_cast<int>(job.ranks.size());
    if (size < 4) continue;
    const int groups = 2 + static_cast<int>(seed) % (std::min(size / 2, 8) - 1);
    const auto played = sim::in_groups(job, groups);
    REQUIRE(played.size() == static_cast<std::size_t>(groups) + 1);
    int failed = 0;
    for (const sim::Played& p : played) {
      for (const std::string& text : p.outcome.violations) FAIL_CHECK(text);
      failed += p.outcome.faulted;
    }
    ++jobs;
    plans_after += played.back().outcome.plans > 0;
    missing += played.back().scenario.faulty;
    // What befalls one group leaves the others alone.
    one_fails += failed > 0 && failed < groups;
  }
  CHECK(jobs > 1500);
  CHECK(plans_after > 500);
  CHECK(missing > 100);
  CHECK(one_fails > 300);
}

TEST_CASE("all promises hold with 4096 ranks", "[sim][long]") {
  std::uint64_t seed = 1;
  while (sim::draw(seed).ranks.size() != 4096) ++seed;
  const sim::Outcome outcome = sim::World(sim::draw(seed)).run();
  for (const std::string& text : outcome.violations) FAIL_CHECK(text);
  CHECK(outcome.plans + outcome.defaults + outcome.crashed == 4096);
}

TEST_CASE("the same seed is the same run", "[sim]") {
  for (std::uint64_t seed = 1; seed < 100; ++seed) {
    const sim::Outcome one = play(seed), two = play(seed);
    CHECK(one.trace == two.trace);
    CHECK(one.plans == two.plans);
  }
  CHECK(play(1).trace != play(2).trace);
}

TEST_CASE("a rank that skips an exchange because it has everything is noticed", "[sim][long]") {
  CHECK(noticed(Sabotage::hit_skips_exchange, "holds a plan, rank") > 0);
}

TEST_CASE("a save before the end is noticed", "[sim][long]") {
  CHECK(noticed(Sabotage::saves_early, "saved before all had agreed") > 0);
}

TEST_CASE("a plan without confirmation is noticed", "[sim][long]") {
  CHECK(noticed(Sabotage::no_confirmation, "holds a plan, rank") > 0);
}

TEST_CASE("a register that does not keep its word is noticed", "[sim][long]") {
  CHECK(noticed(Sabotage::lying_register, "holds a plan, rank") > 0);
}

TEST_CASE("waiting without a deadline is noticed", "[sim][long]") {
  CHECK(noticed(Sabotage::no_deadlines, "never ends") > 0);
}

TEST_CASE("a plan that some rank cannot build is noticed", "[sim][long]") {
  CHECK(noticed(Sabotage::blind_vouching, "has not built") > 0);
}

TEST_CASE("a rank that gives up but goes on is noticed", "[sim][long]") {
  // The gap of the last exchange is small: it takes more seeds to fall into it.
  CHECK(noticed(Sabotage::forgets_abort, "one of another choice", 4000) > 0);
}
