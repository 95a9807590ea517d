// Handles of kernels with steps and workspaces, on a device that writes down what is launched.
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "../allocations.hpp"
#include "../engine_fixture.hpp"
#include "kiln/workspace.cuh"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// doubling() whose configs with b = 1 take a workspace and have two steps.
KernelDefinition in_steps() {
  using Span = std::span<const std::int64_t>;
  KernelDefinition k = doubling({2}, 2, {0, 1});
  const auto b = [](Span config) { return config[1] == 1; };
  k.workspace = {.size =
                     [](Span, Span p, const DeviceLimits&) {
                       return WorkspaceSize{static_cast<std::size_t>(8 * p[0]), 2};
                     },
                 .only_if = b};
  k.steps = {
      {.entry = "reduce", .launch = [](Span, Span) { return Launch{{3}, {4}}; }, .only_if = b},
      {.entry = "finish",
       .launch = [](Span, Span p) { return Launch{{p[0] > 5 ? 1u : 0u}, {8}}; },
       .only_if = b}};
  return k;
}

/// What a process launches for doubling.
struct Watched : Process {
  explicit Watched(const Directory& directory) : Process(directory.path()) {
    options.mode = Mode::untuned;
    device->on_launch = [this](const std::string& entry, void** args) {
      entries.push_back(entry);
      if (entry.find("1>") != std::string::npos)
        workspaces.push_back(*static_cast<Workspace*>(args[3]));
    };
    for (const char* step : {"reduce<2, 1>", "finish<2, 1>"}) (*script)[step].run = [](void**) {};
  }
  std::vector<std::string> entries;
  std::vector<Workspace> workspaces;
};

struct Arrays {
  std::vector<float> x = std::vector<float>(64, 3), y = std::vector<float>(64);
  void launch(const DynamicTuned& handle, int n, Stream stream = {}) {
    handle(stream, {n}, y.data(), static_cast<const float*>(x.data()), n);
  }
  void launch(const DynamicBound& bound, int n, Stream stream = {}) {
    bound(stream, y.data(), static_cast<const float*>(x.data()), n);
  }
};

const std::vector<std::string> kAll{"k<2, 1>", "reduce<2, 1>", "finish<2, 1>"};

}  // namespace

TEST_CASE("a launch is the entry and then the steps, with one workspace", "[runtime][steps]") {
  const Directory directory;
  Watched process(directory);
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(in_steps()).with_config({2, 1});
  Arrays arrays;
  arrays.launch(handle, 10);
  CHECK(process.entries == kAll);
  CHECK(arrays.y[9] == 6);
  REQUIRE(process.workspaces.size() == 3);
  for (const Workspace& w : process.workspaces) {
    CHECK(w.scratch == process.workspaces.front().scratch);
    CHECK(w.semaphores == process.workspaces.front().semaphores);
  }
  process.entries.clear();
  arrays.launch(handle.at({10}), 10);
  CHECK(process.entries == kAll);
  process.entries.clear();
  arrays.launch(handle, 4);
  arrays.launch(handle.at({4}), 4);
  CHECK(process.entries == std::vector<std::string>{kAll[0], kAll[1], kAll[0], kAll[1]});
  process.entries.clear();
  arrays.launch(handle, 0);
  arrays.launch(handle.at({0}), 0);
  CHECK(process.entries.empty());
  arrays.launch(runtime.tuned(in_steps()), 10);
  CHECK(process.entries == std::vector<std::string>{"k<2, 0>"});
}

TEST_CASE("launches with a workspace that is there allocate nothing", "[runtime][steps]") {
  const Directory directory;
  Watched process(directory);
  process.device->on_launch = nullptr;
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(in_steps()).with_config({2, 1});
  const DynamicBound bound = handle.at({10});
  Arrays arrays;
  arrays.launch(handle, 10);
  const std::size_t before = allocations();
  for (int i = 0; i < 100; ++i) {
    arrays.launch(handle, 10);
    arrays.launch(bound, 10);
  }
  CHECK(allocations() == before);
}

TEST_CASE("on a sealed runtime a workspace serves what it is large enough for",
          "[runtime][steps][seal]") {
  const Directory directory;
  Watched process(directory);
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(in_steps()).with_config({2, 1});
  Arrays arrays;
  arrays.launch(handle, 20);
  runtime.seal();
  process.entries.clear();
  const std::size_t device_bytes = process.device->allocated;
  arrays.launch(handle, 10);
  CHECK(process.entries == kAll);
  CHECK(arrays.y[9] == 6);
  arrays.launch(handle.at({12}), 12);
  CHECK(process.entries.size() == 6);
  CHECK_THROWS_AS(arrays.launch(handle, 21), UnpreparedError);
  CHECK(process.entries.size() == 6);
  CHECK(process.device->allocated == device_bytes);
  CHECK(runtime.statistics().unprepared_served == 2);
  CHECK(runtime.statistics().unprepared_refused == 1);
}

TEST_CASE("a launch inside of a capture needs a workspace that is there", "[runtime][steps]") {
  const Directory directory;
  Watched process(directory);
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(in_steps()).with_config({2, 1});
  Arrays arrays;
  int stream_handle = 0;
  const Stream stream{&stream_handle};
  const DynamicBound small = handle.at({10}), large = handle.at({40});
  process.device->captured = stream.handle;
  CHECK_THROWS_AS(arrays.launch(handle, 10, stream), UserError);
  CHECK_THROWS_WITH(arrays.launch(small, 10, stream),
                    Catch::Contains("kernel doubling") && Catch::Contains("reserve_workspace"));
  CHECK_THROWS_AS(small.reserve_workspace(stream), UserError);
  CHECK(process.entries.empty());  // the stream was not touched
  arrays.launch(handle, 10);       // another stream
  CHECK(process.entries == kAll);
  process.entries.clear();

  process.device->captured = nullptr;
  small.reserve_workspace(stream);
  process.device->captured = stream.handle;
  arrays.launch(small, 10, stream);
  arrays.launch(handle, 10, stream);
  CHECK(process.entries.size() == 6);
  CHECK_THROWS_AS(arrays.launch(large, 40, stream), UserError);
  CHECK(process.entries.size() == 6);
}

TEST_CASE("a step that does not compile fails its candidate", "[runtime][steps]") {
  const Directory directory;
  Watched process(directory);
  (*process.script)["finish<2, 1>"].compile_log = "finish is wrong";
  const Runtime runtime = process.runtime();
  const TuneResult result = runtime.tuned(in_steps()).tune({10});
  REQUIRE(result.candidates.size() == 2);
  for (const Candidate& c : result.candidates)
    if (c.config == Values{2, 1}) {
      CHECK(c.status == CandidateStatus::compile_failed);
      CHECK_THAT(c.reason, Catch::Contains("finish is wrong"));
    } else {
      CHECK(c.status == CandidateStatus::measured);
    }
}

TEST_CASE("the time of a config is that of all its entries", "[runtime][steps]") {
  const Directory directory;
  Watched process(directory);
  process.of(2, 0).seconds = 3e-3;
  process.of(2, 1).seconds = 1e-3;
  (*process.script)["reduce<2, 1>"].seconds = 4e-3;
  (*process.script)["finish<2, 1>"].seconds = 5e-3;
  const Runtime runtime = process.runtime();
  const TuneResult result = runtime.tuned(in_steps()).tune({10});
  CHECK(result.winner().config == Values{2, 0});
  for (const Candidate& c : result.candidates)
    CHECK(c.seconds == Approx(c.config[1] == 1 ? 10e-3 : 3e-3));
}

TEST_CASE("a step over the device's limits is a candidate over the limits", "[runtime][steps]") {
  const Directory directory;
  Watched process(directory);
  (*process.script)["reduce<2, 1>"].resources.max_threads = 3;
  const Runtime runtime = process.runtime();
  const TuneResult result = runtime.tuned(in_steps()).tune({10});
  const auto stepped = std::find_if(result.candidates.begin(), result.candidates.end(),
                                    [](const Candidate& c) { return c.config == Values{2, 1}; });
  REQUIRE(stepped != result.candidates.end());
  CHECK(stepped->status == CandidateStatus::exceeds_limits);
  CHECK_THAT(stepped->reason,
             Catch::Contains("step `reduce`: ") && Catch::Contains("__launch_bounds__"));
}

TEST_CASE("a step that cannot be launched leaves the stream untouched", "[runtime][steps]") {
  using Span = std::span<const std::int64_t>;
  const Directory directory;
  Watched process(directory);
  KernelDefinition kernel = in_steps();
  kernel.bucket = [](Span) { return ProblemValues(Values{10}); };
  kernel.steps[1].launch = [](Span, Span p) {
    if (p[0] == 30) throw UserError("no rule for 30");
    return Launch{{1}, {p[0] > 10 ? 2048u : 8u}};
  };
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(kernel).with_config({2, 1});
  Arrays arrays;
  arrays.launch(handle, 10);
  CHECK(process.entries == kAll);
  process.entries.clear();
  CHECK_THROWS_WITH(arrays.launch(handle, 20),
                    Catch::Contains("step `finish`: ") && Catch::Contains("2048"));
  CHECK_THROWS_WITH(handle.at({20}), Catch::Contains("step `finish`: "));
  CHECK_THROWS_WITH(arrays.launch(handle, 30), Catch::Contains("no rule for 30"));
  CHECK(process.entries.empty());
}

TEST_CASE("a launch after one that failed on the way finds its semaphores zero",
          "[runtime][steps]") {
  const Directory directory;
  Watched process(directory);
  bool refuses = false;
  unsigned found = 0;
  process.device->on_launch = [&](const std::string& entry, void** args) {
    unsigned& semaphore = *static_cast<Workspace*>(args[3])->semaphores;
    if (entry.starts_with("k")) {
      found = semaphore;
      semaphore = 5;
    } else if (refuses) {
      throw EnvironmentError("the step was refused");
    } else {
      semaphore = 0;
    }
  };
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(in_steps()).with_config({2, 1});
  const DynamicBound bound = handle.at({10});
  Arrays arrays;
  const auto check = [&](const auto& launched) {
    arrays.launch(launched, 10);
    refuses = true;
    CHECK_THROWS_WITH(arrays.launch(launched, 10), Catch::Contains("the step was refused"));
    refuses = false;
    arrays.launch(launched, 10);
    CHECK(found == 0);
  };
  check(handle);
  check(bound);
}

TEST_CASE("threads that share a stream do not launch between an entry and its steps",
          "[runtime][steps][threads]") {
  const Directory directory;
  Watched process(directory);
  std::mutex mutex;
  std::vector<std::pair<std::string, std::thread::id>> launched;
  process.device->on_launch = [&](const std::string& entry, void**) {
    {
      const std::lock_guard lock(mutex);
      launched.emplace_back(entry, std::this_thread::get_id());
    }
    std::this_thread::yield();
  };
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(in_steps()).with_config({2, 1});
  const DynamicBound bound = handle.at({10});
  int place = 0;
  const auto launch_often = [&](const auto& what) {
    Arrays arrays;
    for (int i = 0; i < 500; ++i) arrays.launch(what, 10, Stream{&place});
  };
  std::thread first([&] { launch_often(handle); }), second([&] { launch_often(bound); });
  first.join();
  second.join();
  REQUIRE(launched.size() == 3000);
  int torn = 0;
  for (std::size_t i = 0; i < launched.size(); i += 3)
    for (std::size_t j = 0; j < 3; ++j)
      torn += launched[i + j].first != kAll[j] || launched[i + j].second != launched[i].second;
  CHECK(torn == 0);
}

TEST_CASE("errors about the program's memory name the kernel", "[runtime][steps]") {
  const Directory directory;
  Watched process(directory);
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(in_steps()).with_config({2, 1});
  alignas(256) std::byte memory[512];
  process.device->on_fill = [](void*, std::size_t) { throw EnvironmentError("no fill"); };
  CHECK_THROWS_WITH(handle.use_workspace({}, memory, {256, 1}), "kernel doubling: no fill");
}

TEST_CASE("threads launch on streams of their own", "[runtime][steps][threads]") {
  const Directory directory;
  Watched process(directory);
  process.device->on_launch = nullptr;
  std::atomic<int> wrong{0};
  std::array<std::atomic<unsigned*>, 4> semaphores{};
  std::array<int, 4> streams{};
  process.of(2, 1).run = [&](void** args) {
    const auto* workspace = static_cast<Workspace*>(args[3]);
    // The last argument says whose launch this is; two threads' workspaces are never the same.
    const auto mine = static_cast<std::size_t>(*static_cast<int*>(args[2])) / 10 - 1;
    if (*workspace->semaphores != 0) ++wrong;
    *workspace->semaphores = 1;
    for (std::size_t t = 0; t < semaphores.size(); ++t)
      if (t != mine && semaphores[t] == workspace->semaphores) ++wrong;
    semaphores[mine] = workspace->semaphores;
    *workspace->semaphores = 0;
  };
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(in_steps()).with_config({2, 1});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Arrays arrays;
      const Stream stream{&streams[static_cast<std::size_t>(t)]};
      for (int i = 0; i < 100; ++i) arrays.launch(handle, 10 * (t + 1), stream);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
