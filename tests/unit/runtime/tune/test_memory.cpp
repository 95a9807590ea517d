// Tuning where device memory is short: what is skipped, that it is said, and that the program's
// part stays the program's.
#include <string>

#include "kiln/communicators.hpp"
#include "kiln/workspace.cuh"
#include "runtime/device/spare_memory.hpp"
#include "tuner_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using kiln::runtime::OutOfMemory;

namespace {

constexpr std::int64_t kElements = 1000;

/// doubling() whose configs take workspaces of `a` times 100,000 bytes, but for the default.
KernelDefinition with_workspaces() {
  KernelDefinition k = doubling();
  k.workspace = {
      .size =
          [](std::span<const std::int64_t> c, std::span<const std::int64_t>, const DeviceLimits&) {
            return WorkspaceSize{static_cast<std::size_t>(c[0]) * 100'000, 2};
          },
      .only_if = [](std::span<const std::int64_t> c) { return c[0] != 2; }};
  return k;
}

TuneResult tune_in(Bench& bench, std::size_t spare, std::size_t reserve,
                   const TuneResult* prior = nullptr) {
  bench.device->info().limits.l2_bytes = 100'000;
  bench.device->capacity = spare + reserve;
  bench.device->set_reserve(reserve);
  return tune(bench, with_workspaces(), {}, prior, kElements);
}

}  // namespace

TEST_CASE("a candidate whose workspace does not fit is skipped, said, and tried later",
          "[runtime][tune][memory]") {
  constexpr std::size_t kReserve = 5'000'000;
  Bench bench;
  bench.seconds(8, 1e-4);
  const TuneResult little = tune_in(bench, 1'300'000, kReserve);
  CHECK(bench.device->refused == 0);
  CHECK(bench.device->peak <= 1'300'000);
  const Candidate& large = test::find(little, {8, 0});
  CHECK(large.status == CandidateStatus::not_tried);
  CHECK(contains(large.reason, "a workspace of 800256 bytes: "));
  CHECK(contains(large.reason, " bytes of the device's memory are needed; "));
  CHECK(contains(large.reason, "5000000 are reserved"));
  CHECK(test::find(little, {1, 0}).status == CandidateStatus::measured);
  CHECK(little.winner().status == CandidateStatus::measured);
  CHECK_FALSE(little.complete);

  const TuneResult much = tune_in(bench, 100'000'000, kReserve, &little);
  CHECK(much.winner().config == Values{8, 0});
  CHECK(much.complete);
  // The others were not tried again.
  CHECK(much.evaluated == little.count(CandidateStatus::not_tried));
  CHECK(much.evaluated < 3);
}

TEST_CASE("a candidate that was timed before keeps its time while memory is short",
          "[runtime][tune][memory]") {
  Bench first, second;
  for (Bench* bench : {&first, &second}) {
    bench->seconds(8, 1e-4);
    bench->seconds(4, 1.02e-4);
  }
  const TuneResult known = tune_in(first, 100'000'000, 0);
  REQUIRE(known.winner().config == Values{8, 0});
  SECTION("to load it") {
    const TuneResult again = tune_in(second, 1'300'000, 0, &known);
    CHECK(test::find(again, {8, 0}).status == CandidateStatus::measured);
    CHECK(test::find(again, {8, 0}).seconds == test::find(known, {8, 0}).seconds);
    CHECK(again.count(CandidateStatus::measured) == 4);
  }
  SECTION("to verify it") {
    second.device->on_launch = [&](const std::string& entry, void**) {
      if (entry == "k<4, 0>" || entry == "k<8, 0>")
        throw OutOfMemory("cuLaunchKernel: out of memory");
    };
    const TuneResult again = tune_in(second, 100'000'000, 0, &known);
    for (const int a : {4, 8}) {
      CHECK(test::find(again, {a, 0}).status == CandidateStatus::measured);
      CHECK(test::find(again, {a, 0}).seconds == test::find(known, {a, 0}).seconds);
    }
  }
}

TEST_CASE("whatever memory there is, a tuning stays within it, and never asks for more",
          "[runtime][tune][memory]") {
  constexpr std::size_t kReserve = 3'000'000;
  std::size_t refused = 0, tried = 0;
  for (std::size_t spare = 0; spare < 4'000'000; spare += 50'021) {
    INFO(spare);
    Bench bench;
    try {
      const TuneResult result = tune_in(bench, spare, kReserve);
      ++tried;
      CHECK(result.winner().status == CandidateStatus::measured);
      for (const Candidate& c : result.candidates)
        CHECK(
            (c.status == CandidateStatus::measured || contains(c.reason, "3000000 are reserved")));
    } catch (const OutOfMemory& error) {
      ++refused;
      CHECK(contains(error.what(), "its arrays"));
      CHECK(bench.device->allocated == 0);
    }
    CHECK(bench.device->refused == 0);
    CHECK(bench.device->peak <= spare);
    CHECK(bench.device->live_allocations == 0);
  }
  CHECK(refused > 3);
  CHECK(tried > 30);
}

TEST_CASE("memory that others take while a tuning runs costs it candidates, not the run",
          "[runtime][tune][memory]") {
  Bench bench;
  bench.device->on_load = [&](const std::string& entry) {
    // From the second candidate on the device promises what it does not have.
    if (entry != "k<2, 0>") bench.device->taken_by_others = 9'500'000;
  };
  const TuneResult result = tune_in(bench, 10'000'000, 0);
  CHECK(bench.device->refused > 0);
  CHECK(result.winner().status == CandidateStatus::measured);
  const Candidate& large = test::find(result, {8, 0});
  CHECK(large.status == CandidateStatus::not_tried);
  CHECK(contains(large.reason, "could not be allocated: out of device memory"));
  CHECK_FALSE(result.complete);
}

TEST_CASE("what does not fit a cold cache is a warning of the result", "[runtime][tune][memory]") {
  Bench bench;
  bench.device->info().limits.l2_bytes = 10'000'000;
  bench.device->capacity = 1'000'000;
  const TuneResult result = tune(bench, doubling(), {}, nullptr, kElements);
  CHECK(result.winner().status == CandidateStatus::measured);
  REQUIRE(result.warnings.size() >= 2);
  CHECK(contains(result.warnings[0], "copies of the arrays, which keep its cache cold"));
  CHECK(contains(result.warnings[1], "the cache is not emptied between samples"));
}

TEST_CASE("a tuning in which nothing fits is no failure to be remembered",
          "[runtime][tune][memory]") {
  Bench bench;
  bench.device->info().limits.l2_bytes = 0;
  KernelDefinition kernel = with_workspaces();
  kernel.workspace.only_if = {};
  bench.device->capacity = 300'000;
  bench.device->set_reserve(1);
  try {
    tune(bench, kernel, {}, nullptr, kElements);
    FAIL("nothing was thrown");
  } catch (const OutOfMemory& error) {
    CHECK(contains(error.what(), "there is no memory to try any of 4 candidates"));
    CHECK(contains(error.what(), "a workspace of "));
  }
  CHECK(bench.device->refused == 0);
  // A failure of another kind is one.
  bench.device->capacity.reset();
  for (const int a : {1, 2, 4, 8}) bench.of(a).load_error = "broken";
  CHECK_THROWS_AS(tune(bench, kernel, {}, nullptr, kElements), TuningFailedError);
}

TEST_CASE("memory that is short while a candidate is verified postpones it",
          "[runtime][tune][memory]") {
  Bench bench;
  bench.device->on_launch = [&](const std::string& entry, void**) {
    if (entry == "k<4, 0>") throw OutOfMemory("cuLaunchKernel: out of memory");
  };
  const TuneResult result = tune(bench, doubling(), {}, nullptr, kElements);
  const Candidate& c = test::find(result, {4, 0});
  CHECK(c.status == CandidateStatus::not_tried);
  CHECK(contains(c.reason, "cuLaunchKernel: out of memory"));
  CHECK_FALSE(result.complete);
}

TEST_CASE("memory that is short where a rank cannot have a worker postpones the candidate",
          "[runtime][tune][memory]") {
  Bench bench;
  bench.device->info().id = "cuda:0";  // the worker's executable is missing
  const KernelDefinition kernel = doubling();
  runtime::KernelMaker maker(kernel, Values{kElements}, bench.device, bench.builder, 1, {},
                             {.executable = "/nowhere/kiln-worker"});
  maker.isolate_in_step(std::move(thread_communicators(1).front()), {});
  SECTION("to load it") {
    bench.device->on_load = [](const std::string& entry) {
      if (entry == "k<4, 0>") throw OutOfMemory("no memory for its code");
      if (entry == "k<8, 0>") throw EnvironmentError("broken");
    };
    CHECK_FALSE(maker.measure_in_workers({1, 0}, {}));  // it can run in this process
    const auto postponed = maker.measure_in_workers({4, 0}, {});
    REQUIRE(postponed);
    CHECK(postponed->status == CandidateStatus::not_tried);
    CHECK(contains(postponed->reason, "no memory for its code"));
    CHECK(maker.measure_in_workers({8, 0}, {})->status == CandidateStatus::launch_failed);
  }
  SECTION("for its data") {
    bench.device->capacity = 1000;
    bench.device->set_reserve(1);
    const auto postponed = maker.measure_in_workers({4, 0}, {});
    REQUIRE(postponed);
    CHECK(postponed->status == CandidateStatus::not_tried);
    CHECK_THAT(postponed->reason, Catch::Contains("its arrays"));
  }
}

TEST_CASE("a kernel's code and stacks count as its own memory", "[runtime][tune][memory]") {
  Bench bench;
  bench.device->info().limits.multiprocessors = 10;
  bench.device->info().limits.max_threads_per_multiprocessor = 1000;
  bench.of(8).resources.stack = 2000;  // 20 MB
  bench.of(4).resources.stack = 1000;  // there already
  bench.device->capacity = 20'000'000;
  const TuneResult result = tune(bench, doubling(), {}, nullptr, kElements);
  CHECK(test::find(result, {4, 0}).status == CandidateStatus::measured);
  const Candidate& large = test::find(result, {8, 0});
  CHECK(large.status == CandidateStatus::not_tried);
  CHECK(contains(large.reason, "its code and its threads' stacks: 200000"));
}
