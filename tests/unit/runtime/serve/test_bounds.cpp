// What a handle keeps of its problems: which leave, which stay, and that launches never notice.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/background/background_tuning.hpp"
#include "unit/runtime/serve/captures_fixture.hpp"
#include "unit/runtime/serve/modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// Launches run the default, and nothing is measured. Each problem has a module of its own.
struct Bounded : Process {
  Bounded(const Directory& directory, std::size_t most) : Process(directory.path()) {
    options.mode = Mode::untuned;
    options.max_problems = most;
    device->modules_apart = true;
  }
};

std::uint64_t problems_of(const Runtime& runtime) {
  return runtime.metrics().problems.at({"doubling"});
}

void swap(const Runtime& runtime, int n, int a) {
  const auto served = detail::Access::engine(runtime)->serving().handles().front();
  auto made = served->load_config(Values{n}, Values{a, 0}, nullptr);
  served->problems().choose(std::get<detail::Launchable>(std::move(made)));
}

/// Of this process, resident.
std::size_t resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

}  // namespace

TEST_CASE("a handle holds as many problems as it may, and what is launched often stays",
          "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 16);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch(handle, 7));
  const int loads = process.device->loads;
  bool right = true;
  for (int n = 100; n < 300; ++n) {
    right = launch(handle, 7) && launch(handle, n) && right;
    if (problems_of(runtime) > 16 || process.device->live_kernels > 16) right = false;
  }
  CHECK(right);
  CHECK(process.device->loads == loads + 200);  // 7 was never loaded again
  const RuntimeMetrics metrics = runtime.metrics();
  CHECK(metrics.problems_evicted_total == 201 - problems_of(runtime));
  CHECK(metrics.modules_unloaded_total == metrics.problems_evicted_total);
  CHECK(metrics.modules_loaded == problems_of(runtime));
  SECTION("one that has left is made ready again") {
    CHECK(launch(handle, 100));
    CHECK(process.device->loads == loads + 201);
    CHECK(process.compiler->compiles == 1);
  }
}

TEST_CASE("without a bound nothing leaves", "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 0);
  process.options.max_module_bytes = 0;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch_all(handle, 1, 200));
  swap(runtime, 1, 8);
  CHECK(process.device->live_kernels == 200);
  CHECK(runtime.metrics().problems_evicted_total == 0);
}

TEST_CASE("what a held kernel needs stays", "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 4);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(50);
  {
    const DynamicBound bound = handle.at({50});
    const int loads = process.device->loads;
    CHECK(launch_all(handle, 100, 200));
    bound({}, b.y.data(), static_cast<const float*>(b.x.data()), 50);
    CHECK(b.doubled());
    CHECK(launch(handle, 50));
    CHECK(process.device->loads == loads + 100);
    swap(runtime, 50, 8);  // another config takes its place
    std::fill(b.y.begin(), b.y.end(), 0.0f);
    bound({}, b.y.data(), static_cast<const float*>(b.x.data()), 50);
    CHECK(b.doubled());
  }
  CHECK(launch_all(handle, 300, 310));
  CHECK(process.device->live_kernels <= 4);
}

TEST_CASE("a bound kernel outlasts its handle and its runtime", "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 2);
  Buffers b(50);
  {
    std::optional<DynamicBound> bound;
    {
      const Runtime runtime = process.runtime();
      const auto handle = runtime.tuned(doubling());
      bound = handle.at({50});
      CHECK(launch_all(handle, 60, 70));
    }
    (*bound)({}, b.y.data(), static_cast<const float*>(b.x.data()), 50);
    CHECK(b.doubled());
  }
  CHECK(process.device->live_kernels == 0);
}

TEST_CASE("what was prepared stays, whatever is launched", "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 4);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Manifest manifest;
  for (int n = 50; n < 60; ++n)
    manifest.wanted.push_back({"doubling", {}, process.device->info().target.arch, {{"n", n}}, {}});
  const PrepareReport report = runtime.prepare(manifest, {.work = PrepareWork::compile});
  REQUIRE(report.ready() == 10);
  CHECK(launch_all(handle, 100, 200));
  const int loads = process.device->loads;
  CHECK(launch_all(handle, 50, 60));
  CHECK(process.device->loads == loads);
  CHECK(problems_of(runtime) <= 10 + 4);
  runtime.seal(OnUnprepared::error);
  CHECK(launch_all(handle, 50, 60));
  // What was launched before may be launched on the sealed runtime, so it does not leave any more.
  for (int n = 300; n < 320; ++n) handle.tune({n});
  CHECK(launch(handle, 199));
}

TEST_CASE("what is missing or has failed leaves as well", "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 8);
  process.options.mode = Mode::collect;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(1);
  for (int n = 1; n < 100; ++n) handle({}, Values{n}, b.y.data(), b.x.data(), n);
  CHECK(problems_of(runtime) <= 8);
}

TEST_CASE("problems that wait to be tuned may leave, and do not hold up the rest",
          "[runtime][bounds][background]") {
  const Directory directory;
  Bounded process(directory, 8);
  process.options.mode = Mode::background;
  process.options.background.publish = Publish::at_commit;
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch_all(handle, 100, 200));
  // One may have been taken off the list to be compiled for.
  CHECK(problems_of(runtime) <= 8 + 1);
  CHECK_FALSE(runtime.settled());
  std::size_t published = 0;
  const TuningWindow window = runtime.window();
  while (!runtime.settled()) {
    published += runtime.commit().changes.size();
    std::this_thread::yield();
  }
  CHECK(published > 0);
  CHECK(published <= 8 + 1);
  CHECK(launch_all(handle, 100, 200));
}

TEST_CASE("a problem whose search has begun stays", "[runtime][bounds][background]") {
  const Directory directory;
  Bounded process(directory, 8);
  process.options.mode = Mode::background;
  // The background is held up in another problem, so that the one that has begun waits in its
  // queue.
  std::latch inside(1), gate(1);
  std::atomic<bool> blocked{false};
  KernelDefinition kernel = doubling();
  kernel.space.where("none", [&, launcher = std::this_thread::get_id()](auto, auto problem,
                                                                        const DeviceLimits&) {
    if (problem[0] == 100 && std::this_thread::get_id() != launcher && !blocked.exchange(true)) {
      inside.count_down();
      gate.wait();
    }
    return true;
  });
  const Runtime runtime = process.runtime();
  const auto times =
      dynamic_cast<runtime::BackgroundTuning&>(*detail::Access::engine(runtime)->background())
          .times();
  const auto handle = runtime.tuned(kernel);
  CHECK(launch(handle, 60));
  std::atomic<int> loads{0};
  // The first candidates are measured, and the search never comes to its end.
  process.device->on_load = [&](const std::string&) {
    if (++loads >= 3) times->interrupt();
  };
  {
    const TuningWindow window = runtime.window();
    while (loads < 4) std::this_thread::yield();
  }
  process.device->on_load = {};
  CHECK(launch(handle, 100));
  inside.wait();
  // The hand goes up: what comes lies behind it, so it soon begins anew.
  for (int n = 199; n > 100; --n) CHECK(launch(handle, n));
  CHECK(runtime.metrics().problems_evicted_total > 0);
  const int before = process.device->loads;
  CHECK(launch(handle, 60));
  CHECK(process.device->loads == before);
  gate.count_down();
}

TEST_CASE("the default is kept loaded once, however often problems are prepared",
          "[runtime][bounds][prepare]") {
  const Directory directory;
  Bounded process(directory, 4);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  for (const int n : {50, 40}) {
    Manifest manifest;
    manifest.wanted.push_back({"doubling", {}, process.device->info().target.arch, {{"n", n}}, {}});
    REQUIRE(runtime.prepare(manifest, {.work = PrepareWork::compile}).ready() == 1);
  }
  swap(runtime, 50, 8);
  swap(runtime, 40, 8);
  CHECK(process.device->live_kernels == 2 + 1);
}

TEST_CASE("modules are bounded over all handles of a runtime", "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 0);
  constexpr std::uint64_t kBytes = std::string_view("k<2, 0>").size();
  process.options.max_module_bytes = 20 * kBytes;
  const Runtime runtime = process.runtime();
  const auto hot = runtime.tuned(doubling()), cold = runtime.tuned(doubling());
  CHECK(launch_all(hot, 1, 5));
  const int loads = process.device->loads;
  bool right = true, within = true;
  for (int n = 100; n < 300; ++n) {
    right = launch_all(hot, 1, 5) && launch(cold, n) && right;
    within = within && runtime.metrics().module_bytes <= 20 * kBytes;
  }
  CHECK(right);
  CHECK(within);
  CHECK(process.device->loads == loads + 200);  // those of `hot` were never loaded again
  CHECK(runtime.metrics().modules_unloaded_total >= 180);
}

TEST_CASE("ten thousand configs one after the other leave one loaded", "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 100);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch(handle, 60));
  int most = 0;
  for (int i = 0; i < 10000; ++i) {
    swap(runtime, 60, 1 << (i % 4));
    most = std::max(most, process.device->live_kernels.load());
  }
  CHECK(most <= 3);
  CHECK(launch(handle, 60));
  std::printf("modules loaded %d, at a time %d\n", process.device->loads.load(), most);
}

TEST_CASE("where graphs are captured, nothing leaves unless the program says so",
          "[runtime][bounds][captures]") {
  const Directory directory;
  Capturer process(directory.path());
  process.options.mode = Mode::untuned;
  Buffers b(kCaptured);
  const auto captured = [&](const DynamicTuned& handle) {
    process.graphs->begin(kStream);
    launch(handle, b, kStream);
  };
  SECTION("by default") {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    launch(handle, b, {});
    captured(handle);
    const auto graph = process.graphs->end(kStream);
    for (int a : {1, 4, 8}) swap(runtime, kCaptured, a);
    CHECK(process.device->live_kernels == 4);
    process.graphs->run(CapturingDevice::instantiate(*graph));
    CHECK(b.doubled());
  }
  SECTION("and then what a graph retains stays") {
    process.options.max_problems = 4;
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    launch(handle, b, {});
    captured(handle);
    runtime.retain(kStream);
    const auto graph = process.graphs->end(kStream);
    swap(runtime, kCaptured, 8);
    CHECK(launch_all(handle, 100, 200));
    while (process.device->live_kernels > 5) std::this_thread::yield();  // another thread unloads
    std::fill(b.y.begin(), b.y.end(), 0.0f);
    process.graphs->run(CapturingDevice::instantiate(*graph));
    CHECK(b.doubled());
  }
  SECTION("and stand-ins that a graph has captured stay, and are refreshed") {
    process.options.max_problems = 4;
    process.options.mode = Mode::background;
    process.compiler->on_compile = {};  // the background may end later than this process
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    launch(handle, b, {});
    captured(handle);
    const auto graph = process.graphs->end(kStream);
    auto exec = CapturingDevice::instantiate(*graph);
    CHECK(launch_all(handle, 100, 200));
    std::fill(b.y.begin(), b.y.end(), 0.0f);
    process.graphs->run(exec);
    CHECK(b.doubled());
    swap(runtime, kCaptured, 8);
    CHECK(runtime.refresh({graph.get(), &exec}).refreshed == 1);
  }
}

TEST_CASE("a little too much in modules lets little leave, also where another thread unloads",
          "[runtime][bounds][captures]") {
  struct Blocker {
    explicit Blocker(std::latch& its_gate) : gate(its_gate) {}
    ~Blocker() { gate.wait(); }
    std::latch& gate;
  };
  constexpr std::uint64_t kBytes = std::string_view("k<2, 0>").size();
  const Directory directory;
  std::latch gate(1);
  Capturer process(directory.path());
  process.options.mode = Mode::untuned;
  process.options.max_module_bytes = 64 * kBytes;
  process.device->modules_apart = true;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch_all(handle, 1, 65));
  CHECK(runtime.metrics().problems_evicted_total == 0);
  detail::Access::engine(runtime)->bounds().dispose(std::make_shared<const Blocker>(gate));
  CHECK(launch_all(handle, 100, 110));
  // What was handed to that thread may be enough.
  CHECK(runtime.metrics().problems_evicted_total == 0);
  gate.count_down();
  int n = 200;
  while (runtime.metrics().problems_evicted_total == 0) CHECK(launch(handle, n++));
  // One round, or two where that thread has not yet unloaded what left in the first.
  CHECK(runtime.metrics().problems_evicted_total <= 32);
}

TEST_CASE("what a capture retains from its beginning stays until its end",
          "[runtime][bounds][captures]") {
  const Directory directory;
  Capturer process(directory.path());
  process.options.mode = Mode::untuned;
  process.options.max_problems = 4;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(kCaptured);
  launch(handle, b, {});
  process.graphs->begin(kStream);
  runtime.retain(kStream);
  launch(handle, b, kStream);
  int again = 0;
  std::jthread([&] {
    const Stream other{reinterpret_cast<void*>(0x6000)};
    Buffers own(200);
    for (int n = 100; n < 200; ++n)
      handle(other, Values{n}, own.y.data(), static_cast<const float*>(own.x.data()), n);
    const int loads = process.device->loads;
    launch(handle, own, other);
    again = process.device->loads - loads;
  }).join();
  CHECK(runtime.metrics().problems_evicted_total > 0);
  CHECK(again == 0);
  runtime.retain(kStream);
  const auto graph = process.graphs->end(kStream);
  CHECK(graph->broken == std::vector<std::string>{});
  std::fill(b.y.begin(), b.y.end(), 0.0f);
  process.graphs->run(CapturingDevice::instantiate(*graph));
  CHECK(b.doubled());
}

TEST_CASE("launches of many threads race with problems that leave", "[runtime][bounds][threads]") {
  const Directory directory;
  Bounded process(directory, 8);
  process.options.max_module_bytes = 6 * 7;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  std::atomic<int> wrong{0}, launches{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 6; ++t)
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        for (int i = 0; i < 1500; ++i) {
          // Some are launched often, so that hits race with what leaves.
          const int n = 1 + static_cast<int>(random() % (i % 2 ? 40 : 4));
          Buffers b(n);
          if (i % 16 == 0) {
            const DynamicBound bound = handle.at({n});
            bound({}, b.y.data(), static_cast<const float*>(b.x.data()), n);
          } else {
            handle({}, Values{n}, b.y.data(), static_cast<const float*>(b.x.data()), n);
          }
          wrong += !b.doubled();
          ++launches;
        }
      });
  }
  CHECK(wrong == 0);
  CHECK(launches == 6 * 1500);
  CHECK(launch_all(handle, 1, 20));
  CHECK(process.device->live_kernels <= 8);
  const RuntimeMetrics metrics = runtime.metrics();
  CHECK(metrics.problems_evicted_total > 100);
  CHECK(metrics.modules_loaded == static_cast<std::uint64_t>(process.device->live_kernels));
}

TEST_CASE("what a region chose for a problem stays, however many others are launched",
          "[runtime][bounds]") {
  const Directory directory;
  Bounded process(directory, 16);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const auto served = detail::Access::engine(runtime)->serving().handles().front();
  served->use(Values{7}, {8, 0});
  CHECK(launch_all(handle, 100, 300));
  CHECK(handle.config({7}) == Values{8, 0});
  CHECK(problems_of(runtime) <= 17);
  // Something else that is chosen may leave as any other.
  swap(runtime, 7, 4);
  CHECK(handle.config({7}) == Values{4, 0});
  for (int round = 0; round < 2; ++round) CHECK(launch_all(handle, 100, 300));
  CHECK(handle.config({7}) == Values{2, 0});
}

TEST_CASE("problems beyond a bound take no more memory, however many there are",
          "[runtime][bounds][slow][long]") {
  const int kProblems = std::getenv("KILN_LONG") ? 1'000'000 : 100'000;
  const Directory directory;
  Bounded process(directory, 1000);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(1);
  std::size_t level = 0;
  for (int n = 1; n <= kProblems; ++n) {
    // The script's kernel looks at one element.
    void* y = b.y.data();
    const void* x = b.x.data();
    int one = 1;
    void* args[] = {&y, &x, &one, nullptr};
    handle.launch({}, Values{n}, args);
    if (n == kProblems / 4) level = resident_bytes();
  }
  const std::size_t after = resident_bytes();
  const double grown = after > level ? double(after - level) / (1 << 20) : 0;
  std::printf("problems %d, held %llu, resident size grown by %.1f MiB\n", kProblems,
              static_cast<unsigned long long>(problems_of(runtime)), grown);
  CHECK(problems_of(runtime) <= 1000);
  CHECK(process.device->live_kernels <= 1000);
  CHECK(grown < 16);
}
