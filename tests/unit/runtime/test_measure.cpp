#include <cmath>
#include <limits>

#include "fake_device.hpp"
#include "kiln_test.hpp"
#include "runtime/measure.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Bench;
using kiln::test::doubling;

namespace {

struct Race {
  Bench bench;
  KernelDefinition kernel = doubling();
  Values problem{100};
  DeviceWorkload workload{kernel, problem, bench.device, 1};
  std::vector<Contestant> contestants;

  void enter(int a, double seconds) {
    bench.seconds(a, seconds);
    codegen::Binary binary;
    const std::string entry = "k<" + std::to_string(a) + ", 0>";
    const auto code = std::as_bytes(std::span(entry));
    binary.code.assign(code.begin(), code.end());
    Contestant c;
    c.candidate = contestants.size();
    c.kernel = bench.device->load(binary, 0);
    c.geometry = {{1}, {1}, 0};
    contestants.push_back(std::move(c));
  }
  void run(const MeasureOptions& options = {}, std::size_t keep = 0) {
    measure(*bench.device, workload, contestants, options,
            [=](std::size_t candidate) { return candidate == keep; }, {});
  }
};

}  // namespace

TEST_CASE("median and deviation", "[runtime][measure]") {
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({7}) == 7);
  CHECK(std::isinf(median({})));
  CHECK(median({1, 1, 1, 1e9}) == 1);
  CHECK(relative_deviation({}) == 0);
  CHECK(relative_deviation({5}) == 0);
  CHECK(relative_deviation({1, 1, 1}) == 0);
  CHECK(relative_deviation({9, 10, 11}) == Approx(0.1));
  CHECK(relative_deviation({10, 10, 10, 1000}) == 0);
}

TEST_CASE("all that are near stay to the final", "[runtime][measure]") {
  Race race;
  race.enter(1, 1.00e-3);
  race.enter(2, 1.05e-3);
  race.enter(4, 1.50e-3);
  race.enter(8, 9.00e-3);
  race.run();
  const MeasureOptions options;
  const auto all = static_cast<std::size_t>(options.rounds + options.final_rounds);
  CHECK(race.contestants[0].samples.size() == all);
  CHECK(race.contestants[1].samples.size() == all);
  CHECK(race.contestants[2].samples.size() == static_cast<std::size_t>(options.rounds));
  CHECK(race.contestants[3].samples.size() == 1);
  CHECK(median(race.contestants[1].samples) == Approx(1.05e-3));
  for (const Contestant& c : race.contestants) CHECK(c.failure.empty());
}

TEST_CASE("the kept one gives three samples however slow it is", "[runtime][measure]") {
  Race race;
  race.enter(1, 0.1);
  race.enter(2, 1e-3);
  race.run();
  CHECK(race.contestants[0].samples.size() == 3);
  Race other;
  other.enter(1, 0.1);
  other.enter(2, 1e-3);
  other.run({}, 1);
  CHECK(other.contestants[0].samples.size() == 1);
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
  MeasureOptions options;
  options.sample_seconds = 1;
  race.run(options);
  CHECK(race.contestants[0].launches == 4);
  CHECK(median(race.contestants[0].samples) == Approx(0.25));

  Race tiny;
  tiny.enter(1, 1e-300);
  tiny.run();
  CHECK(tiny.contestants[0].launches == 1000);
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
  const double a = median(race.contestants[0].samples), b = median(race.contestants[1].samples);
  CHECK(std::abs(a / b - 1) < 0.03);
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
  CHECK(race.contestants[0].samples.size() == 17);
}

TEST_CASE("nobody to time", "[runtime][measure]") {
  Race race;
  race.run();
  CHECK(race.bench.device->timings == 0);
}
