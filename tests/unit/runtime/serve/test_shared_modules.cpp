// Which problems of a handle launch the same loaded kernel, and how long it stays.
#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "kiln_test.hpp"
#include "unit/runtime/serve/captures_fixture.hpp"
#include "unit/runtime/serve/modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// Launches run the default, and nothing is measured.
struct Untuned : Process {
  explicit Untuned(const fs::path& directory) : Process(directory) { options.mode = Mode::untuned; }
};

/// A variable, and launches that say what is in it.
struct Counting : Untuned {
  explicit Counting(const fs::path& directory) : Untuned(directory) {
    of(2).variables = {{"count", std::vector<std::byte>(sizeof(int))}};
    of(2).run_with = [this](void** args, auto& variables) {
      compute_doubling(args);
      std::memcpy(&seen, variables.at("count").data(), sizeof seen);
      const int next = seen + 1;
      std::memcpy(variables.at("count").data(), &next, sizeof next);
    };
  }
  int seen = -1;
};

}  // namespace

TEST_CASE("problems with the same config launch one loaded kernel", "[runtime][modules]") {
  const Directory directory;
  Untuned process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch_all(handle, 1, 100));
  CHECK(process.device->loads == 1);
  CHECK(process.device->live_kernels == 1);
  CHECK(runtime.metrics().modules_loaded == 1);
  SECTION("and another config launches another one, which is unloaded with its last problem") {
    const auto served = detail::Access::engine(runtime)->serving().handles().front();
    for (const int n : {1, 2})
      served->problems().choose(
          std::get<detail::Launchable>(served->load_config(Values{n}, Values{8, 0}, nullptr)));
    CHECK(process.device->live_kernels == 2);
    CHECK(launch_all(handle, 1, 4));
    served->problems().choose(
        std::get<detail::Launchable>(served->load_config(Values{1}, Values{4, 0}, nullptr)));
    CHECK(process.device->live_kernels == 3);
    served->problems().choose(
        std::get<detail::Launchable>(served->load_config(Values{2}, Values{4, 0}, nullptr)));
    CHECK(process.device->live_kernels == 2);
    CHECK(runtime.metrics().modules_unloaded_total == 1);
    CHECK(process.device->loads == 3);
  }
  SECTION("and another handle loads its own") {
    CHECK(launch(runtime.tuned(doubling()), 1));
    CHECK(process.device->loads == 2);
  }
}

TEST_CASE("threads that bring in many problems at once load one kernel",
          "[runtime][modules][threads]") {
  const Directory directory;
  Untuned process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] { wrong += !launch_all(handle, 1 + 50 * t, 51 + 50 * t); });
  }
  CHECK(wrong == 0);
  CHECK(process.device->loads == 1);
}

TEST_CASE("a load that fails is tried again by the next problem", "[runtime][modules]") {
  const Directory directory;
  Untuned process(directory.path());
  process.of(2).load_error = "no room";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK_THROWS_WITH(launch(handle, 1), Catch::Contains("no room"));
  CHECK_THROWS_WITH(launch(handle, 2), Catch::Contains("no room"));
  process.of(2).load_error.clear();
  CHECK(launch_all(handle, 3, 10));
  CHECK(process.device->loads == 1);
}

TEST_CASE("a bound on modules takes few problems where unloading needs all that share one",
          "[runtime][modules][bounds]") {
  const Directory directory;
  Untuned process(directory.path());
  process.options.max_module_bytes = 1;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch_all(handle, 1, 200));
  CHECK(runtime.metrics().problems_evicted_total <= 64);
  CHECK(process.device->loads == 1);
}

TEST_CASE("tunings that find the same config leave one kernel loaded", "[runtime][modules]") {
  const Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch_all(handle, 60, 70));
  CHECK(handle.config({65}) == Values{8, 0});
  CHECK(process.device->live_kernels == 1);
}

TEST_CASE("what asks for more of the device is loaded apart", "[runtime][modules]") {
  const Directory directory;
  Untuned process(directory.path());
  KernelDefinition kernel = doubling();
  kernel.launch = [launch = kernel.launch](std::span<const std::int64_t> c,
                                           std::span<const std::int64_t> p,
                                           const DeviceLimits& limits) {
    Launch asked = launch(c, p, limits);
    asked.shared_bytes = p[0] > 50 ? 1024 : 0;
    return asked;
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  CHECK(launch_all(handle, 1, 100));
  CHECK(process.device->loads == 2);
}

TEST_CASE("each problem has the variables of its kernel to itself", "[runtime][modules]") {
  const Directory directory;
  Counting process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  for (int round = 0; round < 3; ++round)
    for (const int n : {1, 2, 3}) {
      CHECK(launch(handle, n));
      CHECK(process.seen == round);
    }
  CHECK(process.device->live_kernels == 3);
  handle.at({2}).symbol("count").write(7);
  CHECK(launch(handle, 2));
  CHECK(process.seen == 7);
  CHECK(launch(handle, 1));
  CHECK(process.seen == 3);
}

TEST_CASE("where graphs are captured, problems leave and what was loaded for them stays",
          "[runtime][modules][captures][slow]") {
  constexpr int kMost = 1 << 16;  // problems, unless the program says otherwise
  const bool apart = GENERATE(false, true);
  CAPTURE(apart);
  const Directory directory;
  Capturer process(directory.path());
  process.options.mode = Mode::untuned;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(kCaptured), one(1);
  process.device->modules_apart = apart;
  launch(handle, b, {});
  process.graphs->begin(kStream);
  launch(handle, b, kStream);
  const auto graph = process.graphs->end(kStream);
  process.device->modules_apart = false;
  for (int n = 100; n < kMost + 200; ++n) {
    void* y = one.y.data();
    const void* x = one.x.data();
    int elements = 1;
    void* args[] = {&y, &x, &elements};
    handle.launch({}, Values{n}, args);
  }
  CHECK(runtime.metrics().problems_evicted_total >= kMost / 16);
  CHECK(runtime.metrics().problems.at({"doubling"}) <= kMost);
  CHECK(process.device->live_kernels == 1 + apart);
  process.graphs->run(CapturingDevice::instantiate(*graph));
  CHECK(b.doubled());
  // It was launched longest ago, so it has left; what comes back loads nothing.
  const int loads = process.device->loads;
  launch(handle, b, {});
  CHECK(process.device->loads == loads);
  CHECK(runtime.metrics().modules_unloaded_total == 0);
}
