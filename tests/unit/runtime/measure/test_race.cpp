#include <cmath>
#include <limits>
#include <set>

#include "kiln_test.hpp"
#include "race_fixture.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Noise;
using kiln::test::Race;
using RaceOptions = kiln::runtime::RaceOptions;

namespace {

std::size_t all_rounds(const RaceOptions& options = {}) {
  return static_cast<std::size_t>(options.rounds + options.final_rounds);
}

}  // namespace

TEST_CASE("candidates that may still win stay to the end", "[runtime][measure]") {
  Race race;
  race.enter(1, 1.000e-3);
  race.enter(2, 1.001e-3);
  race.enter(4, 1.500e-3);
  race.enter(8, 9.000e-3);
  race.run();
  CHECK(race.contestants[0].samples.size() == all_rounds());
  CHECK(race.contestants[1].samples.size() == all_rounds());
  CHECK(race.contestants[2].samples.size() < 5);
  CHECK(race.contestants[3].samples.size() == 1);
  CHECK_FALSE(race.contestants[2].active);
  CHECK_FALSE(race.contestants[3].active);
  CHECK(median(race.contestants[1].samples) == Approx(1.001e-3));
  for (const Contestant& c : race.contestants) CHECK(c.failure.empty());
  CHECK(race.report.warnings.empty());
}

TEST_CASE("the kept one gives three samples however slow it is", "[runtime][measure]") {
  Race race;
  race.enter(1, 0.1);
  race.enter(2, 1e-3);
  race.run();
  CHECK(race.contestants[0].samples.size() == 3);
  Race other;
  other.enter(1, 1e-3);
  other.enter(2, 0.1);
  other.run();
  CHECK(other.contestants[1].samples.size() == 1);
}

TEST_CASE("the kept one stays while it is not far behind", "[runtime][measure]") {
  Race race;
  race.enter(1, 1.05e-3);
  race.enter(2, 1.00e-3);
  race.enter(4, 1.05e-3);
  race.run();
  CHECK(race.contestants[0].samples.size() == all_rounds());
  CHECK(race.contestants[2].samples.size() < all_rounds());
}

TEST_CASE("nobody is timed for much longer than its share", "[runtime][measure]") {
  Race race;
  race.enter(1, 0.5);
  race.enter(2, 0.5);
  race.run();
  for (const Contestant& c : race.contestants) {
    CHECK(c.samples.size() == 3);
    CHECK(c.failure.empty());
  }
}

TEST_CASE("short launches are timed in numbers", "[runtime][measure]") {
  Race race;
  race.enter(1, 0.25);
  RaceOptions options;
  options.sample_seconds = 1;
  options.warm_up_below = 2;
  options.contestant_seconds = 100;
  race.run(options);
  CHECK(race.contestants[0].launches == 4);
  CHECK(median(race.contestants[0].samples) == Approx(0.25));

  Race tiny;
  tiny.enter(1, 1e-300);
  tiny.run();
  CHECK(tiny.contestants[0].launches == 1000);
  CHECK(tiny.contestants[0].failure.empty());
}

TEST_CASE("what a launch costs beside its kernel rejects none", "[runtime][measure]") {
  Race race;
  race.enter(1, 1.9e-6);
  race.enter(2, 1.8e-6);
  race.enter(4, 9.0e-6);
  race.bench.device->clock = [](double s) { return s + 2.2e-6; };
  race.run();
  CHECK(race.contestants[1].samples.size() == all_rounds());
  CHECK(median(race.contestants[1].samples) < median(race.contestants[0].samples));
  CHECK(race.contestants[2].samples.size() == 1);
}

TEST_CASE("warm-up goes on until launches agree, and not for ever", "[runtime][measure]") {
  Race race;
  race.enter(1, 5e-3);
  int launch = 0;
  race.bench.device->clock = [&](double s) {
    return s * (launch++ < 5 ? 1 + 0.5 / launch : 1);  // 1.5, 1.25, 1.17, 1.125, 1.1, 1, 1
  };
  RaceOptions options;
  options.rounds = 1;
  options.final_rounds = 0;
  race.run(options);
  CHECK(launch == 5);  // 1.125 and 1.1 agree
  CHECK(race.contestants[0].samples == std::vector<double>{5e-3 * 1.1});

  Race restless;
  restless.enter(1, 5e-3);
  int count = 0;
  restless.bench.device->clock = [&](double s) { return s * (count++ % 2 ? 1 : 1.5); };
  restless.run(options);
  CHECK(count == options.warm_up_launches);
}

TEST_CASE("rounds are interleaved: a drift of the machine meets all alike", "[runtime][measure]") {
  Race race;
  race.enter(1, 1e-3);
  race.enter(2, 1e-3);
  race.bench.device->clock = [&](double s) {
    race.bench.device->pace *= 1.01;
    return s;
  };
  race.run();
  CHECK(race.contestants[0].active);
  CHECK(race.contestants[1].active);
  const double a = median(race.contestants[0].samples), b = median(race.contestants[1].samples);
  CHECK(std::abs(a / b - 1) < 0.03);
  // And it is said, with figures.
  REQUIRE(race.report.warnings.size() == 1);
  CHECK(race.report.warnings[0].find("% slower") != std::string::npos);
  CHECK(race.report.warnings[0].find("the default config") != std::string::npos);
}

TEST_CASE("a failure ends one contestant", "[runtime][measure]") {
  Race race;
  race.enter(1, 1e-3);
  race.enter(2, 1e-3);
  race.bench.of(2).launch_error = "gone";
  race.bench.of(2).fails_after = 4;
  race.run();
  CHECK(race.contestants[1].failure == "gone");
  CHECK_FALSE(race.contestants[1].active);
  CHECK(race.contestants[0].failure.empty());
  CHECK(race.contestants[0].samples.size() == all_rounds());
}

TEST_CASE("a clock that shows nonsense ends a contestant, and none of it wins",
          "[runtime][measure]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const double nonsense : {0.0, -1e-3, nan, inf, -inf}) {
    for (const int after : {0, 1, 4, 12}) {  // in the warm-up, in the rounds
      CAPTURE(nonsense, after);
      Race race;
      race.enter(1, 1e-3);
      race.enter(2, 0.95e-3);
      bool second = false;
      int shown = 0;
      race.bench.device->on_launch = [&](const std::string& entry, void**) {
        second = entry == "k<2, 0>";
      };
      race.bench.device->clock = [&](double s) {
        return second && shown++ >= after ? nonsense : s;
      };
      race.run();
      CHECK(race.contestants[1].failure.find("clock") != std::string::npos);
      CHECK_FALSE(race.contestants[1].active);
      CHECK(race.contestants[0].failure.empty());
      CHECK(race.contestants[0].samples.size() == all_rounds());
    }
  }
  // All of them: no crash, no hang.
  Race race;
  race.enter(1, 1e-3);
  race.enter(2, 1e-3);
  race.bench.device->clock = [](double) { return -1.0; };
  race.run();
  for (const Contestant& c : race.contestants) CHECK_FALSE(c.failure.empty());
}

TEST_CASE("nobody to time", "[runtime][measure]") {
  Race race;
  race.run();
  CHECK(race.bench.device->timings == 0);
}

TEST_CASE("the truly best is never dropped under modest noise", "[runtime][measure]") {
  int full = 0;
  double samples = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Race race;
    Random random(seed);
    Noise noise{.deviation = 0.02, .spikes = 0.05, .drift = 0.002};
    std::vector<int> order;
    for (int i = 0; i < 20; ++i) order.push_back(i);
    random.shuffle(order);
    for (const int i : order) race.enter(i + 1, 1e-3 * (1 + 0.01 * i));
    race.bench.device->clock = [&](double s) { return s * noise(random); };
    race.run({}, 1000);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Contestant& c = race.contestants[i];
      samples += static_cast<double>(c.samples.size());
      if (order[i] == 0) full += c.samples.size() == all_rounds();
    }
  }
  CHECK(full == 100);
  // And yet the race is worth it: a good part of the samples was not needed.
  CHECK(samples / (100 * 20 * static_cast<double>(all_rounds())) < 0.85);
}

TEST_CASE("a machine that is slow for a while does not cost the best its place",
          "[runtime][measure]") {
  int lost = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Race race;
    Random random(seed);
    // As if another process took a core: dozens of samples take three times as long.
    Noise noise{.deviation = 0.01, .second_level = 0.4, .second_factor = 3, .mood_lasts = 10};
    for (int i = 0; i < 20; ++i) race.enter(i + 1, 1e-3 * (i == 13 ? 1 : 1.3 + 0.02 * i));
    race.bench.device->clock = [&](double s) { return s * noise(random); };
    race.run();
    lost += race.contestants[13].samples.size() < all_rounds();
  }
  CHECK(lost == 0);
}

TEST_CASE("launches go from copy to copy, and the cache is filled outside the timed region",
          "[runtime][measure]") {
  Race race(1 << 14);
  race.enter(1, 1e-5);
  std::set<const void*> outputs;
  std::size_t fills = 0, timed_fills = 0, repeated = 0;
  const void* last = nullptr;
  race.bench.device->on_launch = [&](const std::string&, void** args) {
    const void* out = *static_cast<void**>(args[0]);
    repeated += out == last;
    last = out;
    outputs.insert(out);
  };
  race.bench.device->on_fill = [&](void*, std::size_t bytes) {
    fills += bytes == 2u << 14;
    timed_fills += race.bench.device->timing;
  };
  race.run();
  CHECK(race.workload->copies() > 30);
  CHECK(outputs.size() == race.workload->copies());
  CHECK(repeated == 0);
  CHECK(fills == static_cast<std::size_t>(race.bench.device->timings));
  CHECK(timed_fills == 0);
  CHECK(race.contestants[0].launches == 10);

  outputs.clear();
  fills = 0;
  RaceOptions warm;
  warm.cold_cache = false;
  race.run(warm);
  CHECK(outputs.size() == 1);
  CHECK(fills == 0);
}

TEST_CASE("where little time is left, no copies are made to keep the host's caches cold",
          "[runtime][measure]") {
  for (const bool little : {false, true}) {
    Race race(1 << 20);
    race.bench.device->host = true;
    race.enter(1, 1e-3);
    const std::size_t before = race.bench.device->allocated;
    RaceOptions options;
    if (little) options.deadline = TimeLimit::already_passed();
    race.run(options);
    INFO("little time: " << little);
    CHECK((race.bench.device->allocated == before) == little);
    CHECK_FALSE(race.contestants[0].samples.empty());
  }
}

TEST_CASE("samples of several launches are replayed where the device can", "[runtime][measure]") {
  for (const bool can : {true, false}) {
    for (const bool want : {true, false}) {
      Race race(1 << 14);
      race.bench.device->records = can;
      race.enter(1, 1e-5);
      race.enter(2, 2e-2);  // a long launch has nothing to gain
      RaceOptions options;
      options.graph_replay = want;
      options.give_up_factor = 1e9;
      options.confidence = 1 - 1e-15;
      options.final_factor = 1e9;
      race.run(options);
      CHECK(race.bench.device->captures == (can && want ? 1 : 0));
      CHECK(race.contestants[0].rig->recorded() == (can && want));
      CHECK_FALSE(race.contestants[1].rig->recorded());
      CHECK(race.contestants[0].launches == 10);
      CHECK(race.contestants[0].samples.size() == all_rounds(options));
      CHECK(median(race.contestants[0].samples) == Approx(1e-5));
    }
  }
}

TEST_CASE("a replay that fails ends its contestant", "[runtime][measure]") {
  Race race;
  race.bench.device->records = true;
  race.enter(1, 1e-5);
  race.enter(2, 1e-5);
  race.bench.of(2).launch_error = "gone";
  race.bench.of(2).fails_after = 50;
  race.run();
  CHECK(race.contestants[1].failure == "gone");
  CHECK(race.contestants[0].samples.size() == all_rounds());
}
