// kiln::measure, which users call by themselves.
#include <cmath>
#include <limits>

#include "kiln/measure.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using kiln::test::Directory;
using kiln::test::Process;

namespace {

struct TimedWork {
  Directory directory;
  Process process{directory.path()};
  Runtime runtime = process.runtime();
  std::shared_ptr<runtime::Module> kernel;

  explicit TimedWork(double seconds = 1e-3) {
    process.device->compute = nullptr;
    process.of(1).seconds = seconds;
    codegen::Binary binary;
    const std::string entry = "k<1, 0>";
    const auto code = std::as_bytes(std::span(entry));
    binary.code = std::vector<std::byte>(code.begin(), code.end());
    kernel = process.device->load(binary, {});
  }
  std::function<void(Stream)> work() {
    return
        [this](Stream stream) { process.device->launch(*kernel, {{1}, {1}, 0}, stream, nullptr); };
  }
  kiln::test::FakeDevice& device() { return *process.device; }
};

bool says(const Timing& t, const std::string& part) {
  for (const std::string& w : t.warnings)
    if (w.find(part) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("a measurement says how long, how sure and from what", "[runtime][timing]") {
  TimedWork s;
  int sample = 0;
  s.device().clock = [&](double seconds) { return seconds * (1 + 0.01 * (sample++ % 5)); };
  MeasureOptions options;
  options.samples = 100;
  options.cold_cache = false;
  const Timing t = measure(s.runtime, s.work(), options);
  REQUIRE(t.samples.size() == 100);
  CHECK(t.launches == 1);
  CHECK(t.warm_up == 2);
  CHECK(t.min == Approx(1.00e-3));
  CHECK(t.max == Approx(1.04e-3));
  CHECK(t.median == Approx(1.02e-3));
  CHECK(t.mean == Approx(1.02e-3));
  CHECK(t.p05 == Approx(1.00e-3));
  CHECK(t.p25 == Approx(1.01e-3));
  CHECK(t.p75 == Approx(1.03e-3));
  CHECK(t.p95 == Approx(1.04e-3));
  CHECK(t.quantile(0.5) == t.median);
  CHECK(t.quantile(0) == t.min);
  CHECK(t.relative_deviation == Approx(0.01 / 1.02));
  CHECK(t.warnings.empty());
  CHECK_FALSE(t.replayed);
  CHECK_FALSE(t.cold);
  CHECK_THROWS_AS(t.quantile(1.1), UserError);
  CHECK_THROWS_AS(t.quantile(std::nan("")), UserError);
}

TEST_CASE("time or samples end it, whichever comes first", "[runtime][timing]") {
  TimedWork s(1e-2);
  MeasureOptions options;
  options.seconds = 1;
  const auto taken = measure(s.runtime, s.work(), options).samples.size();
  CHECK(taken > 80);
  CHECK(taken <= 100);
  options.samples = 7;
  CHECK(measure(s.runtime, s.work(), options).samples.size() == 7);
  options.samples = 2;
  CHECK(measure(s.runtime, s.work(), options).samples.size() == 2);
  TimedWork slow(10);
  options.samples = 0;
  const Timing t = measure(slow.runtime, slow.work(), options);
  CHECK(t.samples.size() == options.least_samples);
  CHECK(t.warm_up == 1);
}

TEST_CASE("short calls share a sample when that is allowed", "[runtime][timing]") {
  TimedWork s(1.001e-6);
  s.device().info().limits.l2_bytes = 1 << 16;
  MeasureOptions options;
  options.samples = 10;
  Timing t = measure(s.runtime, s.work(), options);
  CHECK(t.cold);
  CHECK(t.launches == 1);
  options.cold_cache = false;
  t = measure(s.runtime, s.work(), options);
  CHECK_FALSE(t.cold);
  CHECK(t.launches == 100);
  CHECK(t.median == Approx(1.001e-6));
  int before = 0;
  options.before = [&](Stream) { ++before; };
  t = measure(s.runtime, s.work(), options);
  CHECK(t.launches == 1);
  CHECK(before == 10 + static_cast<int>(t.warm_up));
}

TEST_CASE("what comes before a sample is not timed", "[runtime][timing]") {
  TimedWork s;
  s.device().info().limits.l2_bytes = 1 << 16;
  std::size_t fills = 0, wrong = 0;
  s.device().on_fill = [&](void*, std::size_t bytes) {
    ++fills;
    wrong += s.device().timing || bytes < (1u << 16);
  };
  MeasureOptions options;
  options.samples = 10;
  int before = 0;
  options.before = [&](Stream) {
    ++before;
    wrong += s.device().timing;
  };
  const Timing t = measure(s.runtime, s.work(), options);
  CHECK(wrong == 0);
  CHECK(fills == 10 + t.warm_up);
  CHECK(before == static_cast<int>(fills));
  CHECK(t.median == Approx(1e-3));
  CHECK(s.device().live_allocations == 0);
}

TEST_CASE("graphs are used where they can be", "[runtime][timing]") {
  TimedWork s(1.001e-6);
  MeasureOptions options;
  options.samples = 10;
  options.cold_cache = false;
  CHECK_FALSE(measure(s.runtime, s.work(), options).replayed);
  s.device().records = true;
  int calls = 0;
  const Timing t = measure(
      s.runtime,
      [&](Stream stream) {
        ++calls;
        s.work()(stream);
      },
      options);
  CHECK(t.replayed);
  CHECK(t.launches == 100);
  CHECK(t.median == Approx(1.001e-6));
  CHECK(calls < 150);  // recorded once, replayed ten times
  options.graph_replay = false;
  CHECK_FALSE(measure(s.runtime, s.work(), options).replayed);
  options.graph_replay = true;
  options.before = [](Stream) {};
  CHECK_FALSE(measure(s.runtime, s.work(), options).replayed);
}

TEST_CASE("nonsense is refused, with the field and its value", "[runtime][timing]") {
  TimedWork s;
  CHECK_THROWS_AS(measure(s.runtime, {}), UserError);
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    MeasureOptions options;
    options.seconds = bad;
    CHECK_THROWS_AS(measure(s.runtime, s.work(), options), UserError);
    options = {};
    options.sample_seconds = bad;
    CHECK_THROWS_AS(measure(s.runtime, s.work(), options), UserError);
  }
  MeasureOptions options;
  options.least_samples = 0;
  CHECK_THROWS_AS(measure(s.runtime, s.work(), options), UserError);
  for (const double shown : {0.0, -1.0, std::nan("")}) {
    s.device().clock = [=](double) { return shown; };
    CHECK_THROWS_AS(measure(s.runtime, s.work()), EnvironmentError);
  }
}

TEST_CASE("what work throws comes out, and nothing leaks", "[runtime][timing]") {
  TimedWork s;
  s.device().info().limits.l2_bytes = 1 << 16;
  int calls = 0;
  CHECK_THROWS_AS(measure(s.runtime,
                          [&](Stream) {
                            if (++calls > 3) throw std::out_of_range("mine");
                            s.work()({});
                          }),
                  std::out_of_range);
  CHECK(s.device().live_allocations == 0);
}

TEST_CASE("drift, noise and a warm cache are said", "[runtime][timing]") {
  TimedWork s;
  MeasureOptions options;
  options.samples = 40;
  const Timing warm = measure(s.runtime, s.work(), options);
  CHECK_FALSE(warm.cold);
  CHECK(says(warm, "cache is unknown"));
  s.device().info().limits.l2_bytes = 1 << 16;
  s.device().memory = 1 << 10;
  const Timing refused = measure(s.runtime, s.work(), options);
  CHECK_FALSE(refused.cold);
  CHECK(says(refused, "out of device memory"));

  options.cold_cache = false;
  int sample = 0;
  s.device().clock = [&](double seconds) { return seconds * (sample++ < 22 ? 1 : 1.25); };
  const Timing drift = measure(s.runtime, s.work(), options);
  CHECK(says(drift, "25.0 % slower"));
  s.device().clock = [&](double seconds) { return seconds * (1 + 0.3 * (sample++ % 3)); };
  CHECK(says(measure(s.runtime, s.work(), options), "samples differ by"));
}
