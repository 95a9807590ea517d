#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "kiln_test.hpp"
#include "runtime/region/schedule.hpp"

using kiln::runtime::RegionSchedule;
using Fate = RegionSchedule::Fate;
using Phase = RegionSchedule::Phase;

namespace {

constexpr float kFailed = std::numeric_limits<float>::infinity();

/// The time that a site takes in a run with a candidate (nothing: with what is in use).
using World = std::function<float(std::size_t site, std::optional<std::size_t> candidate)>;
using Verdict = std::function<bool(const std::vector<RegionSchedule::Place>&)>;
using Whole = std::function<float(const std::vector<RegionSchedule::Place>&)>;

/// Runs it to its end; how many runs that took. `whole`: the time of a run
int play(RegionSchedule& schedule, const World& world, const Verdict& wrong = {},
         const Whole& whole = {}) {
  int runs = 0;
  while (schedule.phase() != Phase::done) {
    const auto places = schedule.next();
    std::vector<float> seconds;
    for (std::size_t s = 0; s < places.size(); ++s)
      seconds.push_back(world(s, places[s].candidate));
    schedule.ran(seconds, seconds, wrong && wrong(places), whole ? whole(places) : 1);
    REQUIRE(++runs < 100000);
  }
  CHECK(schedule.next().empty());
  return runs;
}

RegionSchedule::Usable all(std::size_t count) { return RegionSchedule::Usable(count, true); }

}  // namespace

TEST_CASE("the longest list decides how many runs there are", "[runtime][region]") {
  RegionSchedule schedule({all(3), all(7), all(1)}, {1, 3, 0, 0.005F});
  const int runs =
      play(schedule, [](std::size_t, auto c) { return c ? 1.0F + 0.1F * float(*c) : 1.0F; });
  CHECK(runs == 7 * 4 + 4);
  CHECK(schedule.done() == 11);
  CHECK(schedule.total() == 11);
  CHECK(schedule.best(0) == 0U);
  // Far slower than the best: one timed run of it was enough.
  RegionSchedule again({all(7)}, {1, 3, 0, 0.005F});
  CHECK(play(again, [](std::size_t, auto c) { return *c > 2 ? 4.0F : 1.0F; }) == 7 * 4 + 4 - 4 * 2);
}

TEST_CASE("finals: the best few and the default take turns, one site at a time",
          "[runtime][region]") {
  RegionSchedule schedule({all(6), all(6)}, {1, 2, 2, 0.005F});
  std::vector<std::pair<std::size_t, std::size_t>> tried;
  while (schedule.phase() != Phase::done) {
    const auto places = schedule.next();
    std::vector<float> seconds;
    for (std::size_t s = 0; s < 2; ++s) {
      const std::size_t c = *places[s].candidate;
      if (schedule.phase() == Phase::finals && places[s].tried) tried.emplace_back(s, c);
      // In the sweep 5 looks best, in the finals it is not.
      seconds.push_back(c == 5   ? (schedule.phase() == Phase::sweep ? 0.5F : 0.9F)
                        : c == 3 ? 0.6F
                                 : 0.62F + 0.1F * float(c));
    }
    schedule.ran(seconds, seconds, false, 1);
  }
  const std::vector<std::pair<std::size_t, std::size_t>> wanted{
      {0, 0}, {0, 3}, {0, 5}, {0, 0}, {0, 3}, {0, 5}, {0, 0}, {0, 3}, {0, 5},
      {1, 0}, {1, 3}, {1, 5}, {1, 0}, {1, 3}, {1, 5}, {1, 0}, {1, 3}, {1, 5}};
  CHECK(tried == wanted);
  CHECK(schedule.best(0) == 3U);
  CHECK(schedule.best(1) == 3U);
  const auto times = schedule.times(0);
  CHECK(times[3] == Approx(0.6));
  CHECK(times[5] == Approx(0.9));
  for (const std::size_t c : {1, 2, 4}) CHECK(times[c] >= 0.9F);  // nobody else is put before
  CHECK(schedule.samples(0, 5) == std::vector<float>{0.9F, 0.9F});
  CHECK(schedule.samples(0, 1).size() == 2);
}

TEST_CASE("a candidate outside the finals keeps its time, and is not chosen for it",
          "[runtime][region]") {
  RegionSchedule far({all(3)}, {1, 3, 2, 0.005F});
  play(far, [](std::size_t, auto c) { return std::vector{3.0F, 1.0F, 1.5F}[*c]; });
  CHECK(far.times(0) == std::vector{3.0F, 1.0F, 1.5F});  // the third was not in the band

  // The sweep was so slow for the finalists that the third would seem to be faster.
  RegionSchedule disturbed({all(3)}, {1, 3, 2, 0.005F});
  play(disturbed, [&](std::size_t, auto c) {
    const bool sweep = disturbed.phase() == Phase::sweep;
    return std::vector{sweep ? 60.0F : 1.9F, sweep ? 2.0F : 1.9F, 2.7F}[*c];
  });
  CHECK(disturbed.best(0) == 0U);
  CHECK(disturbed.times(0)[2] > 1.9F * 1.005F);
}

TEST_CASE("the default stays unless it is beaten by the margin", "[runtime][region]") {
  for (const float margin : {0.005F, 0.2F}) {
    RegionSchedule schedule({all(2)}, {0, 1, 1, margin});
    play(schedule, [](std::size_t, auto c) { return *c == 1 ? 0.9F : 1.0F; });
    CHECK(schedule.best(0) == (margin < 0.1F ? 1U : 0U));
  }
}

TEST_CASE("what cannot be used is not run, what fails is not run again", "[runtime][region]") {
  RegionSchedule schedule({{true, false, true, true}, {}}, {1, 3, 3, 0.005F});
  std::vector<std::size_t> seen;
  play(schedule, [&](std::size_t s, auto c) {
    if (s == 1) {
      CHECK_FALSE(c);
      return 1.0F;
    }
    seen.push_back(*c);
    return *c == 2 ? kFailed : 1.0F;
  });
  CHECK(std::count(seen.begin(), seen.end(), 1) == 0);
  CHECK(std::count(seen.begin(), seen.end(), 2) == 1);
  CHECK(schedule.fate(0, 1) == Fate::refused);
  CHECK(schedule.fate(0, 2) == Fate::failed);
  CHECK(schedule.fate(0, 3) == Fate::measured);
  CHECK(schedule.times(0)[2] == kFailed);
}

TEST_CASE("a default that fails leaves its site to others, or to what is in use",
          "[runtime][region]") {
  RegionSchedule schedule({all(2), all(2)}, {1, 3, 3, 0.005F});
  play(schedule, [](std::size_t s, auto c) { return s == 1 || *c == 0 ? kFailed : 1.0F; });
  CHECK(schedule.best(0) == 1U);
  CHECK_FALSE(schedule.best(1));
}

TEST_CASE("a finalist that fails, or is missed, ends the finals of its site", "[runtime][region]") {
  bool finals = false;
  RegionSchedule schedule({all(2)}, {1, 3, 3, 0.005F});
  SECTION("fails") {
    play(schedule, [&](std::size_t, auto c) {
      finals |= schedule.phase() == Phase::finals;
      return *c == 1 ? (finals ? kFailed : 0.9F) : 1.0F;
    });
    CHECK(schedule.best(0) == 0U);
  }
  SECTION("is not launched") {
    play(schedule, [&](std::size_t, auto c) {
      if (schedule.phase() == Phase::finals) return 0.0F;
      return *c == 1 ? 0.9F : 1.0F;
    });
    CHECK(schedule.best(0) == 1U);
  }
  SECTION("is wrong now") {
    play(
        schedule, [&](std::size_t, auto c) { return *c == 1 ? 0.9F : 1.0F; },
        [&](const auto& places) {
          return schedule.phase() == Phase::finals && places[0].candidate == 1U;
        });
    CHECK(schedule.best(0) == 0U);
    CHECK(schedule.fate(0, 1) == Fate::wrong);
  }
  CHECK(schedule.hopeless().empty());
}

TEST_CASE("what was chosen before stays, unless whole runs are faster without it",
          "[runtime][region]") {
  RegionSchedule schedule({all(3), all(3), all(3)}, {1, 3, 3, 0.005F}, {1, 1, {}});
  // By each site's own times the last candidate is the fastest.
  const World world = [](std::size_t, auto c) { return 1.0F - 0.1F * float(*c); };
  std::vector<std::vector<std::size_t>> rivals;
  const auto whole = [&](float before) {
    return [&, before](const auto& places) {
      if (schedule.phase() != Phase::rivals) return 1.0F;
      auto& run = rivals.emplace_back();
      for (const auto& place : places) {
        CHECK_FALSE(place.tried);
        run.push_back(*place.candidate);
      }
      return run[0] == 1 ? before : 1.0F;
    };
  };
  const std::vector<std::size_t> best{2, 2, 2}, earlier{1, 1, 2};
  const auto chosen = [&] {
    return std::vector<std::size_t>{*schedule.best(0), *schedule.best(1), *schedule.best(2)};
  };
  SECTION("they are slower") {
    play(schedule, world, {}, whole(0.99F));
    const std::vector<std::vector<std::size_t>> turns{best, earlier, best, earlier,
                                                      best, earlier, best, earlier};
    CHECK(rivals == turns);
    CHECK(chosen() == earlier);
    const std::vector<float> times = schedule.times(0);
    CHECK(times[1] == Approx(0.9));
    for (const std::size_t c : {0, 2}) CHECK(times[c] > 0.9F * 1.005F);
    CHECK(schedule.times(2)[2] == Approx(0.8));
  }
  SECTION("they are as fast") {
    play(schedule, world, {}, whole(1));
    CHECK(chosen() == earlier);
  }
  SECTION("they are faster") {
    play(schedule, world, {}, whole(1.01F));
    CHECK(chosen() == best);
    CHECK(schedule.times(0)[2] == Approx(0.8));
  }
  const auto of_before = [&](const auto& places) {
    return schedule.phase() == Phase::rivals && places[0].candidate == 1U;
  };
  SECTION("what was chosen before gives wrong results") {
    play(schedule, world, of_before, whole(0.5F));
    CHECK(chosen() == best);
    CHECK(schedule.hopeless().empty());
  }
  SECTION("what was chosen before fails") {
    play(
        schedule,
        [&](std::size_t s, auto c) {
          return schedule.phase() == Phase::rivals && *c == 1 ? kFailed : world(s, c);
        },
        {}, whole(0.5F));
    CHECK(chosen() == best);
  }
  SECTION("they give wrong results together") {
    play(
        schedule, world,
        [&](const auto& places) {
          return schedule.phase() == Phase::rivals && places[0].candidate == 2U;
        },
        whole(0.5F));
    CHECK_FALSE(schedule.hopeless().empty());
  }
  SECTION("the default was chosen before, for one of two") {
    RegionSchedule two({all(3), all(3)}, {1, 3, 3, 0.005F}, {0, 1});
    play(two, world, {}, [&](const auto& places) {
      return places[0].candidate == 0U && places[1].candidate == 1U ? 0.5F : 1.0F;
    });
    CHECK(two.best(0) == 0U);
    CHECK(two.best(1) == 1U);
  }
  SECTION("they would be faster, but the runs end before that is known") {
    int with = 0;  // runs after which the new ones are chosen
    for (int most = 0;; ++most) {
      RegionSchedule ending({all(3), all(3), all(3)}, {1, 3, 3, 0.005F}, {1, 1, {}});
      int runs = 0;
      for (; runs < most && ending.phase() != Phase::done; ++runs) {
        std::vector<float> seconds;
        for (std::size_t s = 0; const auto& place : ending.next())
          seconds.push_back(world(s++, place.candidate));
        const bool before = ending.phase() == Phase::rivals && ending.next()[0].candidate == 1U;
        ending.ran(seconds, seconds, false, before ? 2.0F : 1.0F);
      }
      const bool over = ending.phase() == Phase::done, decided = ending.phase() == Phase::closing;
      const bool measured = ending.fate(0, 1) == Fate::measured;
      ending.end();
      CHECK(ending.phase() == Phase::done);
      if (over || decided) {
        CHECK(ending.best(0) == 2U);
        ++with;
      } else if (measured) {
        CHECK(ending.best(0) == 1U);
        CHECK(ending.times(0)[2] > ending.times(0)[1]);
      }
      if (over) break;
    }
    CHECK(with > 1);
  }
  SECTION("nothing else was chosen before") {
    RegionSchedule same({all(3)}, {1, 3, 3, 0.005F}, {{2}});
    RegionSchedule none({all(3)}, {1, 3, 3, 0.005F});
    CHECK(play(same, world) == play(none, world));
  }
}

TEST_CASE("nothing right is left", "[runtime][region]") {
  RegionSchedule schedule({all(3), all(3)}, {1, 3, 3, 0.005F});
  SECTION("from the start") {
    CHECK(play(schedule, [](auto, auto) { return 1.0F; }, [](const auto&) { return true; }) == 1);
  }
  SECTION("in the closing runs") {
    play(
        schedule, [](auto, auto) { return 1.0F; },
        [&](const auto&) { return schedule.phase() == Phase::closing; });
  }
  CHECK_FALSE(schedule.hopeless().empty());
}

TEST_CASE("whatever the runs are like, it ends, and never runs what it knows to fail",
          "[runtime][region]") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](unsigned n) { return random() % (n + 1); };
    std::vector<RegionSchedule::Usable> sites(up_to(4));
    for (auto& usable : sites) {
      usable.resize(up_to(6));
      for (std::size_t c = 0; c < usable.size(); ++c) usable[c] = up_to(5) != 0;
    }
    const auto make = [&] {
      std::vector<std::optional<std::size_t>> incumbents(sites.size());
      for (std::size_t s = 0; s < sites.size(); ++s)
        if (seed % 2 == 1 && !sites[s].empty()) incumbents[s] = seed % sites[s].size();
      return RegionSchedule(sites, {int(seed % 3), 1 + int(seed % 4), seed % 5, 0.005F},
                            incumbents);
    };
    RegionSchedule schedule = make(), twin = make();
    const unsigned failing = up_to(20), missing = up_to(20), wrong = up_to(60);
    int runs = 0;
    while (schedule.phase() != Phase::done) {
      const auto places = schedule.next();
      REQUIRE(places.size() == sites.size());
      std::vector<float> seconds, own;
      for (std::size_t s = 0; s < places.size(); ++s) {
        if (places[s].candidate) {
          const Fate fate = schedule.fate(s, *places[s].candidate);
          REQUIRE((fate == Fate::open || fate == Fate::measured));
        }
        const bool fails = failing > 0 && up_to(20) < failing / 2;
        seconds.push_back(fails                                    ? kFailed
                          : missing > 0 && up_to(20) < missing / 2 ? 0
                                                                   : 1 + float(up_to(100)) / 100);
        own.push_back(1 + float(up_to(100)));  // decides nothing
      }
      const bool is_wrong = wrong > 50 && up_to(9) == 0;
      const auto whole = float(up_to(100));
      schedule.ran(seconds, seconds, is_wrong, whole);
      const auto same = twin.next();
      for (std::size_t s = 0; s < places.size(); ++s)
        REQUIRE((same[s].candidate == places[s].candidate && same[s].tried == places[s].tried));
      twin.ran(seconds, own, is_wrong, whole);
      REQUIRE(++runs < 10000);
    }
    CHECK(twin.phase() == Phase::done);
    for (std::size_t s = 0; s < sites.size(); ++s) {
      const auto best = schedule.best(s);
      if (best) CHECK(schedule.fate(s, *best) == Fate::measured);
    }
  }
}
