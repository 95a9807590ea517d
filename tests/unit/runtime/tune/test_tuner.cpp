#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <mutex>

#include "tuner_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a clear winner wins, and every candidate is accounted for", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(8, 0.5 * kMs);
  const TuneResult r = tune(bench, doubling());
  CHECK(r.winner().config == Values{8, 0});
  CHECK(r.winner().seconds == Approx(0.5 * kMs));
  CHECK(r.speedup() == Approx(2));
  CHECK(r.default_candidate().config == Values{2, 0});
  CHECK(r.default_index == 0);
  CHECK(r.count(CandidateStatus::measured) == 4);
  CHECK(r.complete);
  CHECK_FALSE(r.from_store);
  CHECK(r.compiled == 4);
  CHECK(r.problem == Values{100});
  CHECK(r.describe(r.winner()) == "a=8,b=0");
  // Everybody near the front is timed often, not once.
  CHECK(r.winner().samples.size() > 4);
  CHECK(r.default_candidate().samples.size() > 4);
}

TEST_CASE("the reference runs while the first candidates compile", "[runtime][tuner]") {
  Bench bench;
  std::promise<void> compiling;
  std::once_flag once;
  bench.compiler->on_compile = [&](const codegen::Source&) {
    std::call_once(once, [&] { compiling.set_value(); });
  };
  KernelDefinition kernel = doubling();
  kernel.reference = [compiles = compiling.get_future().share(), right = kernel.reference](
                         auto problem, auto args) {
    CHECK(compiles.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    right(problem, args);
  };
  CHECK(tune(bench, kernel).count(CandidateStatus::measured) == 4);
}

TEST_CASE("what a reference throws is no candidate's fault", "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.reference = [](auto, auto) { throw UserError("no reference for today"); };
  CHECK(message([&] { tune(bench, kernel); }) == "no reference for today");
}

TEST_CASE("candidates near the leader stay in the race", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(2, kMs);
  for (int a : {1, 4, 8}) bench.seconds(a, 0.95 * kMs);
  const TuneResult r = tune(bench, doubling());
  for (const Candidate& c : r.candidates) CHECK(c.samples.size() > 10);
}

TEST_CASE("a hopeless candidate is dropped early, the default less so", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(2, 100 * kMs);
  bench.seconds(1, 50 * kMs);
  bench.seconds(4, kMs);
  const TuneResult r = tune(bench, doubling());
  CHECK(find(r, {1, 0}).status == CandidateStatus::measured);
  CHECK(find(r, {1, 0}).samples.size() <= 2);
  CHECK(r.default_candidate().samples.size() >= 3);
}

TEST_CASE("the default is kept within the noise", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(2, kMs);
  bench.seconds(8, 0.996 * kMs);
  CHECK(tune(bench, doubling()).winner_index == 0);

  SECTION("whichever of the two is noisy") {
    bench.seconds(8, 0.97 * kMs);
    int sample = 0;
    bench.device->clock = [&](double s) {
      const bool default_ran = std::fmod(s / kMs, 1.0) < 1e-6 || std::fmod(s / kMs, 1.0) > 1 - 1e-6;
      return default_ran ? s * (0.9 + 0.1 * (++sample % 3)) : s;
    };
    const TuneResult r = tune(bench, doubling({2, 8}));
    CHECK(r.winner_index == 0);
  }
  SECTION("but not beyond it") {
    bench.seconds(8, 0.97 * kMs);
    CHECK(tune(bench, doubling()).winner().config == Values{8, 0});
  }
}

TEST_CASE("the default is that of the device's kind of target", "[runtime][tuner]") {
  Bench bench;  // a host
  KernelDefinition kernel = doubling();
  kernel.space.default_on(Target::Kind::host, {4, 0});
  CHECK(tune(bench, kernel).default_candidate().config == Values{4, 0});
  bench.device->info().target = {Target::Kind::cuda, "sm_90a"};
  const TuneResult r = tune(bench, kernel);
  CHECK(r.default_candidate().config == Values{2, 0});
  CHECK(r.winner_index == 0);
  CHECK(r.candidates.size() == 4);
}

TEST_CASE("ties go to the config of least expected cost, then to the order of the space",
          "[runtime][tuner]") {
  Bench bench;
  bench.seconds(2, 2 * kMs);
  bench.seconds(4, 1.002 * kMs);
  bench.seconds(1, 1.004 * kMs);
  bench.seconds(8, kMs);
  const auto winner = [&](std::vector<std::int64_t> values, auto cost) {
    KernelDefinition kernel = doubling(std::move(values));
    kernel.cost = [cost](std::span<const std::int64_t> c, std::span<const std::int64_t>,
                         const DeviceLimits&) { return cost(c[0]); };
    return tune(bench, kernel).winner().config[0];
  };
  const auto same = [](std::int64_t) { return 1.0; };
  CHECK(winner({1, 2, 4, 8}, same) == 1);
  CHECK(winner({8, 4, 2, 1}, same) == 8);
  CHECK(winner({1, 2, 4, 8}, [](std::int64_t a) { return a == 4 ? 1.0 : 2.0; }) == 4);
}

TEST_CASE("wrong and fast is disqualified, and its element named", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(8, 1e-6);
  bench.of(8).run = [](void** args) {
    test::compute_doubling(args);
    (*static_cast<float**>(args[0]))[17] += 1;
  };
  const TuneResult r = tune(bench, doubling());
  CHECK(r.winner_index == 0);
  const Candidate& wrong = find(r, {8, 0});
  CHECK(wrong.status == CandidateStatus::wrong_result);
  CHECK(contains(wrong.reason, "element 17 of argument 0"));
  CHECK(contains(wrong.reason, "(1 of 100 differ)"));
  CHECK(wrong.max_error > 1);
  CHECK(wrong.samples.empty());
}

TEST_CASE("an element that is not written is caught", "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  const auto write_none = [](void**) {};

  SECTION("of floats") {}
  SECTION("of integers, where the poison itself would be right") {
    kernel.arguments = {"int*", "int"};
    kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
      w.output<int>(static_cast<std::size_t>(p[0])).scalar<int>(static_cast<int>(p[0]));
    };
    kernel.reference = [](std::span<const std::int64_t> p, std::span<void* const> args) {
      for (int i = 0; i < p[0]; ++i) static_cast<int*>(args[0])[i] = -1;
    };
    bench.device->compute = [](void** args) {
      for (int i = 0; i < *static_cast<int*>(args[1]); ++i) (*static_cast<int**>(args[0]))[i] = -1;
    };
  }
  SECTION("where NaNs are expected") {
    kernel.reference = [](std::span<const std::int64_t> p, std::span<void* const> args) {
      for (int i = 0; i < p[0]; ++i)
        static_cast<float*>(args[0])[i] = std::numeric_limits<float>::quiet_NaN();
    };
    bench.device->compute = [](void** args) {
      for (int i = 0; i < *static_cast<int*>(args[2]); ++i)
        (*static_cast<float**>(args[0]))[i] = std::numeric_limits<float>::quiet_NaN();
    };
  }
  SECTION("by the default of a kernel without a reference") { kernel.reference = nullptr; }

  bench.of(2).run = write_none;
  bench.of(2).seconds = 1e-6;
  const TuneResult r = tune(bench, kernel);
  CHECK(r.default_candidate().status == CandidateStatus::wrong_result);
  CHECK(r.count(CandidateStatus::measured) == 3);
  CHECK(r.winner_index != 0);
}

TEST_CASE("without a reference candidates are held against the default", "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.reference = nullptr;
  bench.seconds(8, 1e-6);
  bench.of(8).run = [](void** args) {
    for (int i = 0; i < 100; ++i) (*static_cast<float**>(args[0]))[i] = 0;
  };
  const TuneResult r = tune(bench, kernel);
  CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
  CHECK(r.count(CandidateStatus::measured) == 3);
}

TEST_CASE("in/out arguments are as new at every launch", "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.arguments = {"float*", "int"};
  kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
    w.in_out<float>(static_cast<std::size_t>(p[0])).scalar<int>(static_cast<int>(p[0]));
  };
  kernel.reference = [](std::span<const std::int64_t> p, std::span<void* const> args) {
    for (int i = 0; i < p[0]; ++i) static_cast<float*>(args[0])[i] *= 2;
  };
  std::vector<float> first;
  int launches = 0, stale = 0;
  bench.device->compute = [&](void** args) {
    float* x = *static_cast<float**>(args[0]);
    if (first.empty()) first.assign(x, x + 100);
    ++launches;
    stale += !std::equal(first.begin(), first.end(), x);
    for (int i = 0; i < 100; ++i) x[i] *= 2;
  };
  const TuneResult r = tune(bench, kernel);
  CHECK(r.count(CandidateStatus::measured) == 4);
  CHECK(launches > 40);
  CHECK(stale == 0);
}

TEST_CASE("one candidate's failure leaves the others going", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(4, 0.5 * kMs);
  SECTION("compiling: the log is the reason") {
    bench.of(8).compile_log = "k.cu(3): error: tile too large";
    const TuneResult r = tune(bench, doubling());
    CHECK(find(r, {8, 0}).status == CandidateStatus::compile_failed);
    CHECK(contains(find(r, {8, 0}).reason, "tile too large"));
    CHECK(r.winner().config == Values{4, 0});
  }
  SECTION("loading") {
    bench.of(8).load_error = "no room for the module";
    const TuneResult r = tune(bench, doubling());
    CHECK(find(r, {8, 0}).status == CandidateStatus::launch_failed);
    CHECK(find(r, {8, 0}).reason == "no room for the module");
    CHECK(r.winner().config == Values{4, 0});
  }
  SECTION("launching") {
    for (int works : {0, 1, 2, 5}) {
      Bench fresh;
      fresh.seconds(4, 0.5 * kMs);
      fresh.of(8).launch_error = "illegal instruction";
      fresh.of(8).fails_after = works;
      fresh.of(8).seconds = 1e-9;
      const TuneResult r = tune(fresh, doubling());
      CHECK(find(r, {8, 0}).status == CandidateStatus::launch_failed);
      CHECK(find(r, {8, 0}).reason == "illegal instruction");
      CHECK(r.winner().config == Values{4, 0});
    }
  }
  SECTION("the default itself: something else wins, and a warning says so") {
    bench.of(2).compile_log = "no";
    const TuneResult r = tune(bench, doubling());
    CHECK(r.default_candidate().config == Values{2, 0});
    CHECK(r.winner().config == Values{4, 0});
    CHECK(r.speedup() == 1.0);
    REQUIRE(r.warnings.size() == 1);
    CHECK(contains(r.warnings[0], "a=2,b=0"));
  }
}

TEST_CASE("nothing usable is an error with every reason", "[runtime][tuner]") {
  Bench bench;
  bench.of(1).compile_log = "bad template";
  bench.of(2).launch_error = "fault";
  bench.of(4).run = [](void**) {};
  KernelDefinition kernel = doubling();
  kernel.space.where("a is not 8", [](auto c, auto, const DeviceLimits&) { return c[0] != 8; });
  try {
    tune(bench, kernel);
    FAIL("nothing was thrown");
  } catch (const TuningFailedError& error) {
    REQUIRE(error.reasons().size() == 3);
    std::map<std::string, std::string> reasons;
    for (const auto& r : error.reasons()) reasons[r.config] = r.reason;
    CHECK(contains(reasons["a=1,b=0"], "compile_failed: bad template"));
    CHECK(contains(reasons["a=2,b=0"], "launch_failed: fault"));
    CHECK(contains(reasons["a=4,b=0"], "wrong_result"));
    const auto has = [&](CandidateStatus status) {
      return std::ranges::count(error.reasons(), status, &TuningFailedError::Reason::status) == 1;
    };
    CHECK(has(CandidateStatus::compile_failed));
    CHECK(has(CandidateStatus::launch_failed));
    CHECK(has(CandidateStatus::wrong_result));
    CHECK(contains(error.what(), "1 configs were ruled out beforehand: a is not 8"));
    CHECK(contains(error.what(), "doubling"));
    CHECK(contains(error.what(), "n=100"));
  }
  CHECK(bench.device->live_kernels == 0);
  CHECK(bench.device->live_allocations == 0);
}

TEST_CASE("constraints cost no compile", "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.space.where("at most 2", [](auto c, auto, const DeviceLimits&) { return c[0] <= 2; });
  const TuneResult r = tune(bench, kernel);
  CHECK(bench.compiler->compiles == 2);
  CHECK(r.candidates.size() == 2);
  CHECK(r.space.allowed == 2);
  REQUIRE(r.space.rejected.size() == 1);
  CHECK(r.space.rejected[0].reason == "at most 2");
  CHECK(r.space.rejected[0].count == 2);
  CHECK(r.complete);

  SECTION("one that rejects everything is named") {
    KernelDefinition none = doubling();
    none.space.where("pigs fly", [](auto, auto, const DeviceLimits&) { return false; });
    const int before = bench.compiler->compiles;
    const std::string text = message([&] { tune(bench, none); });
    CHECK(contains(text, "4 configs were ruled out beforehand: pigs fly"));
    CHECK(bench.compiler->compiles == before);
  }
  SECTION("a violating default is replaced") {
    KernelDefinition other = doubling();
    other.space.where("not 2", [](auto c, auto, const DeviceLimits&) { return c[0] != 2; });
    const TuneResult without = tune(bench, other);
    CHECK(without.winner_index != 0);
    CHECK(without.default_candidate().status == CandidateStatus::violates_constraint);
  }
  SECTION("constraints see the problem and the device") {
    KernelDefinition sees = doubling();
    sees.space.where("sees", [](auto, auto p, const DeviceLimits& limits) {
      return p[0] == 77 && limits.warp_size == 32;
    });
    CHECK(tune(bench, sees, {}, nullptr, 77).count(CandidateStatus::measured) == 4);
  }
}

TEST_CASE("over the device's limits: rejected without a compile", "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  Launch bad;
  std::string expected;
  SECTION("threads") {
    bad.block = {1024, 2};
    expected = "2048 threads";
  }
  SECTION("block extent") {
    bad.block = {1, 1, 65};
    expected = "1x1x65";
  }
  SECTION("no threads") {
    bad.block = {0};
    expected = "no threads";
  }
  SECTION("threads that wrap around") {
    bad.block = {1u << 31, 1u << 31, 4};
    expected = "a block of 2147483648x2147483648x4";
  }
  SECTION("grid") {
    bad.grid = {1, 65536};
    expected = "1x65536x1";
  }
  SECTION("shared memory") {
    bad.shared_bytes = 48 * 1024 + 1;
    expected = "49153 bytes of dynamic shared memory";
  }
  SECTION("shared memory, as large as it gets") {
    bad.shared_bytes = 0xffffffffu;
    expected = "4294967295 bytes";
  }
  kernel.launch = [bad](auto c, auto) { return c[0] == 8 ? bad : Launch{}; };
  const TuneResult r = tune(bench, kernel);
  CHECK(r.candidates.size() == 3);
  REQUIRE(r.space.rejected.size() == 1);
  CHECK(r.space.rejected[0].count == 1);
  CHECK(bench.compiler->compiles == 3);

  // The default is tried in any case, so it says what is wrong with it.
  kernel.space.default_on(Target::Kind::host, {8, 0});
  const TuneResult without = tune(bench, kernel);
  CHECK(without.default_candidate().status == CandidateStatus::exceeds_limits);
  CHECK(contains(without.default_candidate().reason, expected));
  CHECK(without.winner_index != 0);
}

TEST_CASE("compiled resources over the device's limits are never launched", "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.launch = [](auto, auto) { return Launch{{1}, {512}, 1024}; };
  std::string expected;
  SECTION("registers") {
    bench.device->info().limits.compute_capability = 80;
    bench.of(8).resources.registers = 200;
    expected = "200 registers for each of 512 threads";
  }
  SECTION("launch bounds") {
    bench.of(8).resources.max_threads = 256;
    expected = "__launch_bounds__ allows 256";
  }
  SECTION("static and dynamic shared memory together") {
    bench.of(8).resources.static_shared = 48 * 1024 - 1023;
    expected = "49153 bytes of shared memory";
  }
  SECTION("occupancy") {
    bench.of(8).occupancy = 0;
    expected = "not one block";
  }
  bench.of(8).launch_error = "must not be launched";
  const TuneResult r = tune(bench, kernel);
  CHECK(find(r, {8, 0}).status == CandidateStatus::exceeds_limits);
  CHECK(contains(find(r, {8, 0}).reason, expected));
}

TEST_CASE("a clock that lies never wins and never hangs", "[runtime][tuner]") {
  const double lie = GENERATE(0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity());
  Bench bench;
  bench.seconds(8, 0.125 * kMs);
  int honest = 0;
  SECTION("about one candidate") {
    SECTION("from the start") {}
    SECTION("after a while") { honest = 4; }
    bench.device->clock = [&](double s) {
      const bool is8 = std::fabs(std::remainder(s, 0.125 * kMs)) < 1e-12 &&
                       std::fabs(std::remainder(s, kMs)) > 1e-12;
      return is8 && honest-- <= 0 ? lie : s;
    };
    const TuneResult r = tune(bench, doubling());
    CHECK(r.winner_index == 0);
    CHECK(find(r, {8, 0}).status == CandidateStatus::launch_failed);
    CHECK(contains(find(r, {8, 0}).reason, "clock"));
  }
  SECTION("about all") {
    bench.device->clock = [&](double) { return lie; };
    CHECK_THROWS_AS(tune(bench, doubling()), TuningFailedError);
  }
}
