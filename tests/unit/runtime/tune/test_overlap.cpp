// Launches that may begin before the one in front of them has ended: how they are timed.

#include "unit/runtime/tune/tuner_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// doubling() with `b` = 1: the launch is programmatic. Such a launch takes `overlapping` seconds
/// where it may overlap, and all others 1 ms.
struct Overlap {
  Bench bench;
  KernelDefinition kernel;
  int timed = 0, timed_programmatic = 0, verified = 0, verified_programmatic = 0;

  explicit Overlap(double overlapping, std::vector<std::int64_t> twins = {0, 1})
      : kernel(doubling({2}, 2, std::move(twins))) {
    const auto plain = kernel.launch;
    kernel.launch = [plain](std::span<const std::int64_t> c, std::span<const std::int64_t> p,
                            const DeviceLimits& limits) {
      Launch launch = plain(c, p, limits);
      launch.programmatic = c[1] != 0;
      return launch;
    };
    for (const int b : {0, 1}) bench.seconds(2, 0, b);
    FakeDevice& device = *bench.device;
    device.records = true;
    device.on_description = [this, &device, overlapping](const Launch& launch) {
      device.pass(launch.programmatic ? overlapping : kMs);
      ++(device.timing ? timed : verified);
      if (launch.programmatic) ++(device.timing ? timed_programmatic : verified_programmatic);
    };
  }

  TuneResult run(bool overlap) {
    TuneOptions options;
    options.overlap_launches = overlap;
    return tune(bench, kernel, options);
  }
};

}  // namespace

TEST_CASE("programmatic launches are timed one after the other, and verified as they are",
          "[runtime][tune]") {
  for (const double seconds : {kMs / 2, 1e-6}) {  // of which the short one is replayed in graphs
    CAPTURE(seconds);
    Overlap apart(seconds);
    const TuneResult r = apart.run(false);
    CHECK(apart.timed > 0);
    CHECK(apart.timed_programmatic == 0);
    CHECK(apart.verified_programmatic > 0);
    CHECK(apart.verified_programmatic < apart.verified);
    CHECK(find(r, {2, 1}).seconds == Approx(kMs));
  }
}

TEST_CASE("with overlap_launches they are timed as they are launched", "[runtime][tune]") {
  for (const double seconds : {kMs / 2, 1e-6}) {
    CAPTURE(seconds);
    Overlap overlapping(seconds);
    const TuneResult r = overlapping.run(true);
    CHECK(overlapping.timed_programmatic > 0);
    CHECK(overlapping.timed_programmatic < overlapping.timed);
    CHECK(find(r, {2, 1}).seconds == Approx(seconds));
    CHECK(r.winner().config == Values{2, 1});
  }
}

TEST_CASE("launches of a sample are a graph, or start one by one where that is asked for",
          "[runtime][tune]") {
  const auto captures = [](std::optional<Launching> launching, double seconds) {
    Bench bench;
    bench.device->records = true;
    for (const int a : {1, 2}) bench.seconds(a, seconds);
    TuneOptions options;
    options.launching = launching;
    CHECK(tune(bench, doubling({1, 2}), options).winner().status == CandidateStatus::measured);
    return bench.device->captures.load();
  };
  CHECK(captures({}, 1e-6) > 0);
  CHECK(captures(Launching::graph, 1e-6) > 0);
  CHECK(captures(Launching::eager, 1e-6) == 0);
  CHECK(captures(Launching::graph, kMs) == 0);  // a sample is one launch
}

TEST_CASE("of two equal twins the first in the space wins", "[runtime][tune]") {
  // The default is neither: it would win a tie in any order.
  for (const std::int64_t first : {0, 1}) {
    CAPTURE(first);
    Overlap twins(kMs / 2, {2, first, 1 - first});
    const auto launch = twins.kernel.launch;
    twins.kernel.launch = [launch](auto c, auto p, const DeviceLimits& limits) {
      Launch described = launch(c, p, limits);
      if (c[1] == 2) described.programmatic = false;
      return described;
    };
    twins.bench.seconds(2, kMs, 2);
    CHECK(twins.run(false).winner().config == Values{2, first});
  }
}

TEST_CASE("every draw is timed without overlap", "[runtime][tune][draws]") {
  Overlap apart(kMs / 2);
  apart.kernel.draws = {1, 1};
  apart.run(false);
  CHECK(apart.timed_programmatic == 0);
  Overlap overlapping(kMs / 2);
  overlapping.kernel.draws = {1, 1};
  CHECK(find(overlapping.run(true), {2, 1}).seconds == Approx(kMs / 2));
}
