// Launches inside of the program's stream captures, on a GPU: captures stay whole in each mode,
// graphs keep what they launch, and stand-ins in them are exchanged.
#include <atomic>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "gpu/program.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("captures in all modes stay whole beside a thread that tunes", "[gpu][capture]") {
  const Program program;
  const Runtime gpu(in_memory());
  int tried = 0;
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                          CU_STREAM_CAPTURE_MODE_RELAXED}) {
    CAPTURE(mode);
    std::atomic<bool> stop = false;
    std::atomic<int> tuned = 0, failed = 0;
    std::jthread tuner([&] {
      try {
        for (int i = 0; !stop; ++i) {
          const auto own =
              gpu.tuned(twice("mode " + std::to_string(mode) + ", " + std::to_string(i)));
          own.tune({1000 + i});
          Arrays a(gpu, 1000);
          a.launch(own, {CU_STREAM_PER_THREAD});
          ++tuned;
        }
      } catch (const std::exception& error) {
        std::fprintf(stderr, "the tuning thread: %s\n", error.what());
        ++failed;
      }
    });
    const StopAtTheEnd at_the_end{stop};
    REQUIRE(soon([&] { return tuned > 0 || failed > 0; }));
    for (int i = 0; i < 20; ++i) {
      const auto cold = gpu.tuned(twice("cold")), stand_in = gpu.tuned(twice("stand-in")),
                 ready = gpu.tuned(twice("ready"));
      Arrays a(gpu, kN), b(gpu, kN), c(gpu, kN);
      b.launch_in_a_region(stand_in, program.stream);
      c.launch(ready, program.stream);
      program.wait();
      const auto eager = c.y.download();
      CHECK(b.y.download() == eager);
      b.clear();
      c.clear();
      const auto before = gpu.statistics();
      program.begin(mode);
      CHECK_THROWS_AS(a.launch(cold, program.stream), CaptureError);
      b.launch(stand_in, program.stream);
      c.launch(ready, program.stream);
      gpu.retain(program.stream);
      const auto graph = program.end();
      ++tried;
      CHECK(gpu.statistics().capture_errors == before.capture_errors + 1);
      CHECK(gpu.statistics().provisional == before.provisional + 1);
      CHECK(program.nodes(graph) == 2);
      const auto exec = program.instantiate(graph);
      program.run(exec);
      program.wait();
      CHECK(b.y.download() == eager);
      CHECK(c.y.download() == eager);
      CHECK(a.y.download() == std::vector<float>(kN, -1));
    }
    stop = true;
    tuner.join();
    CHECK(tuned > 1);
    CHECK(failed == 0);
  }
  std::printf("captures on the GPU tried %d\n", tried);
}

TEST_CASE("the default stream beside a capture is left alone", "[gpu][capture]") {
  const Program program;
  const Runtime gpu(in_memory());
  const auto handle = gpu.tuned(twice("default stream"));
  Arrays a(gpu, kN);
  a.launch_in_a_region(handle, program.stream);
  program.wait();
  // This stream waits for the default stream, so the default stream must not be used now.
  CUstream blocking = nullptr;
  REQUIRE(program.driver->StreamCreate(&blocking, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(program.driver->StreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_SUCCESS);
  CHECK_THROWS_AS(a.launch(handle, {}), CaptureError);
  a.launch(handle, {blocking});
  CUgraph graph = nullptr;
  CHECK(program.driver->StreamEndCapture(blocking, &graph) == CUDA_SUCCESS);
  CHECK(graph);
  if (graph) program.driver->GraphDestroy(graph);
  program.driver->StreamDestroy(blocking);
}

TEST_CASE("a graph outlives the handle and the runtime it was captured with", "[gpu][capture]") {
  const Program program;
  const Runtime data(in_memory());
  Arrays a(data, kN);
  auto sum = data.array(std::vector<float>{-7});
  std::optional<runtime::CudaGraphExec> exec;
  {
    const Runtime gpu = Counted::runtime();
    const auto handle = gpu.tuned(twice("outlives"));
    a.launch(handle, program.stream);
    const auto last = gpu.tuned(split_sum()).with_config(with_mode(SumMode::last)).at({4000});
    last.reserve_workspace(program.stream);
    program.wait();
    program.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    a.launch(handle, program.stream);
    last(program.stream, sum.data(), static_cast<const float*>(a.x.data()), 4000);
    gpu.retain(program.stream);
    const auto graph = program.end();
    exec = program.instantiate(graph);
  }
  CHECK(Counted::loaded > Counted::unloaded);
  a.clear();
  for (int i = 0; i < 1000; ++i) program.run(*exec);
  program.wait();
  std::vector<float> expected = counting(kN);
  for (float& value : expected) value *= 2;
  CHECK(a.y.download() == expected);
  CHECK(sum.download().front() == sum_of_counting(4000));
  CHECK(Counted::loaded > Counted::unloaded);
  exec.reset();
  CHECK(soon([] { return Counted::loaded == Counted::unloaded; }));
}

TEST_CASE("a graph outlives what replaces and evicts the kernel that it launches",
          "[gpu][capture]") {
  const Program program;
  constexpr std::int64_t kSmall = 20000;  // the kernel that was replaced is slow
  const Runtime data(in_memory());
  Arrays a(data, kSmall);
  RuntimeOptions options = in_memory();
  options.mode = Mode::untuned;
  options.max_problems = 8;
  std::optional<runtime::CudaGraphExec> exec;
  {
    const Runtime gpu = Counted::runtime(options);
    const auto handle = gpu.tuned(twice("replaced"));
    a.launch(handle, program.stream);
    program.wait();
    program.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    gpu.retain(program.stream);
    a.launch(handle, program.stream);
    gpu.retain(program.stream);
    exec = program.instantiate(program.end());
    const Values captured = handle.config({kSmall});
    handle.tune({kSmall});
    CHECK(handle.config({kSmall}) != captured);
    const int unloaded = Counted::unloaded;
    for (std::size_t i = 1; i <= 32; ++i) {
      const Arrays other(data, 100 * i);
      other.launch(handle, program.stream);
      program.wait();
    }
    CHECK(gpu.metrics().problems_evicted_total > 16);
    CHECK(soon([&] { return Counted::unloaded > unloaded + 16; }));
  }
  CHECK(Counted::loaded > Counted::unloaded);
  a.clear();
  for (int i = 0; i < 1000; ++i) program.run(*exec);
  program.wait();
  std::vector<float> expected = counting(kSmall);
  for (float& value : expected) value *= 2;
  CHECK(a.y.download() == expected);
  CHECK(Counted::loaded > Counted::unloaded);
  exec.reset();
  CHECK(soon([] { return Counted::loaded == Counted::unloaded; }));
}

TEST_CASE("a captured stand-in becomes the winner", "[gpu][capture]") {
  const Program program;
  const Runtime gpu(in_memory());
  const auto handle = gpu.tuned(twice("refresh"));
  Arrays a(gpu, kN), b(gpu, 2 * kN);
  a.launch_in_a_region(handle, program.stream);
  b.launch_in_a_region(handle, program.stream);
  program.wait();
  program.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  a.launch(handle, program.stream);
  b.launch(handle, program.stream);
  const auto graph = program.end();
  const auto exec = program.instantiate(graph);
  const auto measure = [&] {
    const auto device = runtime::make_cuda_device(program.driver, 0);
    program.run(exec);
    return device->time(program.stream, [&] {
      for (int i = 0; i < 10; ++i) program.run(exec);
    });
  };
  const double before = measure();
  const auto slow = a.y.download(), slow_b = b.y.download();

  const RefreshResult early = gpu.refresh({graph.get(), exec.get()});
  CHECK(early.refreshed == 0);
  CHECK(early.kept.size() == 2);
  handle.tune({static_cast<std::int64_t>(kN)});
  const RefreshResult half = gpu.refresh({graph.get(), exec.get()});
  CHECK(half.refreshed == 1);
  REQUIRE(half.kept.size() == 1);
  CHECK(half.kept[0].node);
  CHECK_THAT(half.kept[0].launch, Catch::Contains("twice n=200000"));
  handle.tune({static_cast<std::int64_t>(2 * kN)});
  const RefreshResult all = gpu.refresh({graph.get(), exec.get()});
  CAPTURE(all.kept.empty() ? "" : all.kept[0].why);
  CHECK(all.refreshed == 2);
  CHECK(all.kept.empty());
  CHECK(program.nodes(graph) == 2);

  a.clear();
  b.clear();
  const double after = measure();
  std::printf("a refreshed graph takes %.3f of the time before\n", after / before);
  CHECK(after < before);
  CHECK(a.y.download() == slow);
  CHECK(b.y.download() == slow_b);

  // Another graph has none of these nodes.
  program.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  a.launch(handle, program.stream);
  const auto other = program.end();
  const auto other_exec = program.instantiate(other);
  CHECK(gpu.refresh({other.get(), other_exec.get()}).refreshed == 0);
  program.run(other_exec);
  program.wait();
}
