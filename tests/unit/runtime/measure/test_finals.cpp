#include <cmath>
#include <limits>
#include <map>

#include "kiln_test.hpp"
#include "race_fixture.hpp"
#include "runtime/measure/finals.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Noise;
using kiln::test::Race;

namespace {

const auto never = [] { return false; };

struct Final : Race {
  FinalsOptions options;
  FinalsResult result;

  void clock(const std::function<double(double)>& shows) { bench.device->clock = shows; }
  std::size_t hold(const std::function<bool()>& stop = never) {
    result = finals(*trials, contestants, options, stop);
    return result.winner;
  }
};

struct Outcome {
  double mean_regret = 0, worst_regret = 0;
  double worst_against_default = -1;  ///< of picks
  double agreement = 0;               ///< share of the most frequent pick
};

/// Many processes, each with its own noise, hold the same final.
Outcome repeat(const std::vector<double>& seconds, const Noise& noise, double budget = 2) {
  constexpr int kProcesses = 40;
  const double best = *std::min_element(seconds.begin(), seconds.end());
  Outcome outcome;
  std::map<std::size_t, int> picks;
  for (std::uint64_t seed = 1; seed <= kProcesses; ++seed) {
    Final f;
    f.options.seconds = budget;
    for (std::size_t i = 0; i < seconds.size(); ++i) f.enter(static_cast<int>(i) + 1, seconds[i]);
    Random random(seed * 7919);
    Noise mine = noise;
    f.clock([&](double s) { return s * mine(random); });
    const std::size_t pick = f.hold();
    const double regret = seconds[pick] / best - 1;
    outcome.mean_regret += regret / kProcesses;
    outcome.worst_regret = std::max(outcome.worst_regret, regret);
    outcome.worst_against_default =
        std::max(outcome.worst_against_default, seconds[pick] / seconds[0] - 1);
    ++picks[pick];
  }
  for (const auto& [pick, count] : picks)
    outcome.agreement = std::max(outcome.agreement, count / double(kProcesses));
  return outcome;
}

/// Times of a real space: a default far behind, and eight candidates that nearly tie.
const std::vector<double> kCrowd{1.30e-3,  1.012e-3, 1.004e-3, 1.000e-3, 1.008e-3,
                                 1.002e-3, 1.020e-3, 1.015e-3, 1.001e-3};

}  // namespace

TEST_CASE("the fastest wins when nobody ties with it", "[runtime][finals]") {
  Final f;
  for (const double s : {1.2e-3, 1.1e-3, 1.0e-3, 1.3e-3})
    f.enter(static_cast<int>(f.contestants.size()) + 1, s);
  CHECK(f.hold() == 2);
  CHECK(f.result.warnings.empty());
  CHECK(f.result.behind[2].estimate == 0);
  CHECK(f.result.behind[0].estimate == Approx(std::log(1.2)));
  // Certain at the first look: the time limit was not used up.
  CHECK(f.result.rounds < 120);
  for (const Contestant& c : f.contestants) CHECK(c.samples.size() == f.result.rounds);
}

TEST_CASE("inside the tie band the order of preference decides", "[runtime][finals]") {
  Final f;
  for (const double s : {1.100e-3, 1.004e-3, 1.000e-3, 1.002e-3})
    f.enter(static_cast<int>(f.contestants.size()) + 1, s);
  CHECK(f.hold() == 1);
  f.options.tie_band = 0.003;
  CHECK(f.hold() == 2);
  f.options.tie_band = 0.2;
  CHECK(f.hold() == 0);
}

TEST_CASE("the default stays unless somebody is certainly faster", "[runtime][finals]") {
  // With noise this large and time this short nothing is certain.
  int kept = 0, replaced = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Final f;
    f.options.seconds = 0;
    f.options.least_rounds = 9;
    f.enter(1, 1.02e-3);
    f.enter(2, 1.00e-3);
    Random random(seed);
    Noise noise{.deviation = 0.10};
    f.clock([&](double s) { return s * noise(random); });
    kept += f.hold() == 0;
    f.options.must_beat = 0;  // without the privilege the faster one often wins
    replaced += f.hold() == 1;
  }
  CHECK(kept >= 38);
  CHECK(replaced > 10);
}

TEST_CASE("a device that slows down under load gets pauses", "[runtime][finals]") {
  // At lower clocks the two tie, and the first is preferred.
  Final f;
  f.enter(1, 1.1e-3);
  f.enter(2, 1.0e-3);
  double heat = 0, rested = 0;
  f.clock([&](double s) {
    heat += s;
    return heat > 12e-3 ? 1.3e-3 : s;
  });
  SECTION("with pauses") {
    f.options.rest = [&](double seconds) {
      heat = std::max(0.0, heat - 8 * seconds);
      rested += seconds;
    };
    CHECK(f.hold() == 1);
    CHECK(rested > 0);
    CHECK(f.result.warnings.empty());
    for (const Contestant& c : f.contestants) CHECK(c.samples.size() == f.result.rounds);
  }
  SECTION("without") {
    f.options.least_seconds = 0.05;
    f.options.must_beat = 1;
    CHECK(f.hold() == 0);
  }
}

TEST_CASE("noise that meets one round now and then gets no pauses", "[runtime][finals]") {
  Final f;
  f.enter(1, 1.1e-3);
  f.enter(2, 1.0e-3);
  int samples = 0, rests = 0;
  f.clock([&](double s) { return s * (++samples % 14 < 2 ? 1.3 : 1.0); });
  f.options.rest = [&](double) { ++rests; };
  CHECK(f.hold() == 1);
  CHECK(rests == 0);
}

TEST_CASE("a device that pauses do not make faster gets no more of them", "[runtime][finals]") {
  Final f;
  f.enter(1, 1.1e-3);
  f.enter(2, 1.0e-3);
  int samples = 0, rests = 0;
  f.clock([&](double s) { return s * (++samples > 12 ? 1.3 : 1.0); });
  f.options.rest = [&](double) { ++rests; };
  CHECK(f.hold() == 1);
  CHECK(rests > 0);
  CHECK(rests <= 2 * 12);
  for (const Contestant& c : f.contestants) CHECK(c.samples.size() == f.result.rounds);
}

TEST_CASE("picks are good and alike under all kinds of noise", "[runtime][finals][long]") {
  struct Kind {
    const char* name;
    Noise noise;
  };
  const Kind kinds[] = {
      {"quiet", {.deviation = 0.003}},
      {"noise", {.deviation = 0.02}},
      {"spikes", {.deviation = 0.01, .spikes = 0.15, .spike = 4}},
      {"drift", {.deviation = 0.005, .drift = 0.01}},
      {"two levels", {.deviation = 0.01, .second_level = 0.4, .second_factor = 1.3}},
      {"a lost core",
       {.deviation = 0.01, .second_level = 0.3, .second_factor = 2, .mood_lasts = 5}},
      {"all at once",
       {.deviation = 0.01,
        .spikes = 0.05,
        .second_level = 0.3,
        .second_factor = 1.2,
        .drift = 0.003}},
  };
  for (const Kind& kind : kinds) {
    CAPTURE(kind.name);
    const Outcome o = repeat(kCrowd, kind.noise);
    CAPTURE(o.mean_regret, o.worst_regret, o.agreement);
    CHECK(o.mean_regret < 0.005);
    CHECK(o.worst_regret < 0.0125);
    CHECK(o.worst_against_default < 0);
    CHECK(o.agreement > 0.5);
  }
}

TEST_CASE("a default that is the best is never lost", "[runtime][finals]") {
  for (const double deviation : {0.003, 0.02, 0.08}) {
    const Outcome o = repeat({1.000e-3, 1.003e-3, 1.010e-3, 1.020e-3, 1.001e-3},
                             {.deviation = deviation, .spikes = 0.05});
    CAPTURE(deviation, o.worst_against_default, o.agreement);
    CHECK(o.worst_against_default <= 0.005);
    CHECK(o.agreement > 0.95);
  }
}

TEST_CASE("a finalist that fails is out", "[runtime][finals]") {
  for (const int after : {0, 3, 30}) {
    Final f;
    for (const double s : {1.2e-3, 0.8e-3, 1.0e-3})
      f.enter(static_cast<int>(f.contestants.size()) + 1, s);
    f.options.least_seconds = 1;
    f.bench.of(2).launch_error = "gone";
    f.bench.of(2).fails_after = after;
    CHECK(f.hold() == 2);
    CHECK(f.contestants[1].failure == "gone");
  }
  Final all;
  all.enter(1, 1e-3);
  all.enter(2, 1e-3);
  for (const int a : {1, 2}) all.bench.of(a).launch_error = "gone";
  CHECK_FALSE(all.contestants[all.hold()].failure.size() == 0);
}

TEST_CASE("a clock that runs backwards lets nobody win by it", "[runtime][finals]") {
  for (const double nonsense : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    Final f;
    for (const double s : {1.2e-3, 1.1e-3, 1.0e-3})
      f.enter(static_cast<int>(f.contestants.size()) + 1, s);
    bool second = false;
    int shown = 0;
    f.bench.device->on_launch = [&](const std::string& entry, void**) {
      second = entry == "k<2, 0>";
    };
    f.clock([&](double s) { return second && ++shown > 20 ? nonsense : s; });
    CHECK(f.hold() == 2);
    CHECK_FALSE(f.contestants[1].failure.empty());
  }
}

TEST_CASE("time is kept, but for a least number of rounds", "[runtime][finals]") {
  Final f;
  f.enter(1, 1.0);
  f.enter(2, 1.0);
  f.options.seconds = 1;
  f.hold();
  CHECK(f.result.rounds == 7);
  Final longer;
  longer.enter(1, 1.0e-2);
  longer.enter(2, 1.005e-2);  // on the edge of the band: never certain
  Random random(1);
  Noise noise{.deviation = 0.05};
  longer.clock([&](double s) { return s * noise(random); });
  longer.options.seconds = 1;
  longer.hold();
  CHECK(longer.bench.device->timings > 80);
  CHECK(longer.bench.device->timings < 120);
}

TEST_CASE("a final that is stopped answers at once", "[runtime][finals]") {
  Final f;
  for (const double s : {1.2e-3, 1.1e-3, 1.0e-3})
    f.enter(static_cast<int>(f.contestants.size()) + 1, s);
  // Before the first round: by what was known before, which then stays.
  f.contestants[0].samples = {3e-3, 3.01e-3, 3e-3, 3.02e-3};
  f.contestants[1].samples = {1e-3, 1.01e-3, 1e-3, 1.02e-3};
  f.contestants[2].samples = {2e-3};
  CHECK(f.hold([] { return true; }) == 1);
  CHECK(f.result.rounds == 0);
  CHECK(f.contestants[0].samples.size() == 4);
  CHECK(f.bench.device->timings == 0);
  // Later on: by what the final has seen so far.
  int asked = 0;
  CHECK(f.hold([&] { return ++asked > 30; }) == 2);
  CHECK(f.result.rounds > 20);
  CHECK(f.result.rounds < 30);
}

TEST_CASE("a choice from samples that are there", "[runtime][finals]") {
  Final f;
  for (int i = 0; i < 4; ++i) f.enter(i + 1, 1e-3);
  auto& c = f.contestants;
  c[0].samples = {2.00e-3, 2.01e-3, 2.00e-3, 2.02e-3};
  c[1].samples = {1.002e-3, 1.002e-3, 1.002e-3};
  c[2].samples = {1.000e-3, 1.000e-3, 1.001e-3};
  CHECK(choose(c, f.options) == 1);
  f.options.tie_band = 1e-4;
  CHECK(choose(c, f.options) == 2);
  c[2].failure = "gone";
  CHECK(choose(c, f.options) == 1);
  // A single sample of a faster candidate proves nothing against the default.
  c[3].samples = {0.5e-3};
  CHECK(choose(c, f.options) == 0);
  f.options.must_beat = 0;
  CHECK(choose(c, f.options) == 3);
  for (Contestant& each : c) each.samples.clear();
  CHECK(choose(c, f.options) == 0);
}

TEST_CASE("a drift and too much noise are said", "[runtime][finals]") {
  Final f;
  f.enter(1, 1.0e-3);
  f.enter(2, 1.001e-3);
  f.options.seconds = 1;
  f.options.tie_band = 1e-6;
  f.clock([&](double s) {
    if (f.bench.device->timings == 120) f.bench.device->pace = 1.2;
    return s;
  });
  f.hold();
  REQUIRE(f.result.warnings.size() >= 1);
  CHECK(f.result.warnings[0].find("20.0 % slower") != std::string::npos);

  Final noisy;
  noisy.enter(1, 1.0e-3);
  noisy.enter(2, 1.0e-3);
  noisy.options.seconds = 0.4;
  Random random(1);
  Noise noise{.deviation = 0.2};
  noisy.clock([&](double s) { return s * noise(random); });
  noisy.hold();
  REQUIRE(noisy.result.warnings.size() == 1);
  CHECK(noisy.result.warnings[0].find("tie band (0.5 %)") != std::string::npos);
}

TEST_CASE("finalists run cold and replayed, too", "[runtime][finals]") {
  for (const bool cold : {true, false}) {
    Race race(1 << 14);
    race.bench.device->records = true;
    race.enter(1, 1e-5);
    race.enter(2, 2e-5);
    std::size_t fills = 0;
    race.bench.device->on_fill = [&](void*, std::size_t) { ++fills; };
    FinalsOptions options;
    options.cold_cache = cold;
    options.seconds = 0.1;
    finals(*race.trials, race.contestants, options, never);
    CHECK(race.contestants[0].rig->recorded());
    CHECK(race.contestants[1].launches == 15);
    CHECK((fills > 0) == cold);
  }
}
