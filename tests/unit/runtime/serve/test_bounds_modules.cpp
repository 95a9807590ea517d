// Binaries that are loaded: their bytes are bounded, whatever loads them.
#include <string_view>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/bounds.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/problems.hpp"
#include "unit/runtime/serve/modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr std::uint64_t kModuleBytes = std::string_view("k<2, 0>").size();

/// Holds so many modules, one for each problem, and any number of problems.
struct Modules : Process {
  Modules(const Directory& directory, std::uint64_t most) : Process(directory.path()) {
    options.mode = Mode::untuned;
    options.max_problems = 0;
    options.max_module_bytes = most * kModuleBytes;
    options.tuning.max_evaluations = 1;
    device->modules_apart = true;
  }
};

}  // namespace

TEST_CASE("modules are bounded, whatever loads them", "[runtime][bounds]") {
  const Directory directory;
  Modules process(directory, 20);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  bool right = true, within = true;
  const auto each = [&](const auto& load) {
    for (int n = 100; n < 200; ++n) {
      load(n);
      within = within && runtime.metrics().module_bytes <= 20 * kModuleBytes;
    }
  };
  SECTION("launches of what was prepared") {
    each([&](int n) {
      right = !handle.prepare({n}) && right;
      // Nothing else has come since, so it is still there.
      const int loads = process.device->loads;
      right = launch(handle, n) && process.device->loads == loads && right;
    });
  }
  SECTION("tunings") {
    each([&](int n) {
      const TuneResult result = handle.tune({n});
      right = result.winner().status == CandidateStatus::measured && right;
    });
  }
  SECTION("verifications") {
    each([&](int n) { right = handle.verify({n}).right && right; });
  }
  SECTION("kernels with a config of the program's, each with a handle of its own") {
    std::vector<DynamicTuned> handles;
    each([&](int n) {
      handles.push_back(handle.with_config({2, 0}));
      right = launch(handles.back(), n) && right;
    });
  }
  CHECK(right);
  CHECK(within);
  CHECK(runtime.metrics().modules_unloaded_total >= 80);
}

TEST_CASE("what was just prepared or tuned stays before what was not launched for longer",
          "[runtime][bounds]") {
  const Directory directory;
  Modules process(directory, 40);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch_all(handle, 100, 136));
  // The hand comes to these first.
  for (int n = 1; n <= 8; ++n) {
    if (n % 2)
      handle.prepare({n});
    else
      handle.tune({n});
  }
  CHECK(runtime.metrics().problems_evicted_total > 0);
  const int loads = process.device->loads;
  CHECK(launch_all(handle, 1, 9));
  CHECK(process.device->loads == loads);
}

TEST_CASE("while candidates are timed nothing leaves for its bytes", "[runtime][bounds]") {
  const Directory directory;
  Modules process(directory, 4);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  runtime::Bounds& bounds = detail::Access::engine(runtime)->bounds();
  {
    const runtime::Bounds::Hold outer(bounds);
    {
      const runtime::Bounds::Hold inner(bounds);
      CHECK(launch_all(handle, 100, 110));
    }
    CHECK(launch_all(handle, 110, 112));
    CHECK(runtime.metrics().problems_evicted_total == 0);
  }
  CHECK(runtime.metrics().module_bytes <= 4 * kModuleBytes);
  CHECK(launch_all(handle, 100, 112));
  CHECK(runtime.metrics().module_bytes <= 4 * kModuleBytes);
}

TEST_CASE("on a sealed runtime nothing leaves, also where more is loaded than may be",
          "[runtime][bounds]") {
  const Directory directory;
  Modules process(directory, 1);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Manifest manifest;
  for (int n = 50; n < 60; ++n)
    manifest.wanted.push_back({"doubling", {}, process.device->info().target.arch, {{"n", n}}, {}});
  REQUIRE(runtime.prepare(manifest, {.work = PrepareWork::compile}).ready() == 10);
  runtime.seal(OnUnprepared::error);
  const int loads = process.device->loads;
  CHECK(launch_all(handle, 50, 60));
  for (int n = 100; n < 110; ++n) CHECK_FALSE(handle.prepare({n}));
  CHECK(launch_all(handle, 50, 60));
  CHECK(launch_all(handle, 100, 110));
  CHECK(process.device->loads == loads + 10);
  CHECK(runtime.metrics().problems_evicted_total == 0);
}

TEST_CASE("whatever is published, all handles keep to their bound, and the new problem stays",
          "[runtime][problems][bounds]") {
  const Values problem{7, 7};
  runtime::Problems* self = nullptr;
  int asked = 0;
  std::size_t left = 0;
  const auto keep_all = [&] {
    ++asked;
    left += self->evict(8);
  };
  runtime::Problems problems({}, {.keep_all = keep_all});
  self = &problems;
  const auto ready = [&](std::int64_t config) {
    detail::Launchable made;
    made.problem = problem;
    made.config = {config};
    return made;
  };
  SECTION("a making") {
    problems.make(problem, [&] { return ready(1); });
  }
  SECTION("a stand-in") {
    problems.stand_in(problem, runtime::Standing::meanwhile, [&] { return ready(1); });
  }
  SECTION("a choice") { problems.choose(ready(1)); }
  SECTION("a choice over another one") { CHECK(problems.choose_over(nullptr, ready(1))); }
  CHECK(asked == 1);
  CHECK(left == 0);
  CHECK(problems.served(problem, runtime::Standing::meanwhile));
  // Nothing is published, so nobody is asked.
  problems.make(Values{8, 8}, [] { return runtime::Problems::Unmade{}; });
  CHECK_THROWS(problems.make(Values{9, 9}, []() -> runtime::Problems::Made { throw 7; }));
  problems.evict(0);
  CHECK(asked == 1);
}
