// A program that uses Kiln on a GPU: its context and stream, its kernel and arrays, and what it
// counts of the driver's work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kiln/kiln.hpp"
#include "kiln_test.hpp"
#include "runtime/background/make_engine.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "split_sum.hpp"

namespace kiln::test {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline RuntimeOptions in_memory() {
  RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  return options;
}

/// y = 2 x. The default stores every element many times, so that another config is certainly
/// faster. `note` makes it another source.
inline KernelDefinition twice(const std::string& note = "") {
  using Span = std::span<const std::int64_t>;
  KernelDefinition k;
  k.name = "twice";
  k.source.text = "// " + note + R"(
template <int block, int rounds>
__global__ void twice(float* y, const float* x, int n) {
  volatile float* const out = y;
  const int i = blockIdx.x * block + threadIdx.x;
  for (int r = 0; r < rounds; ++r)
    if (i < n) out[i] = 2 * x[i];
}
)";
  k.entry = "twice";
  k.arguments = {"float*", "const float*", "int"};
  k.space.parameter("block", {128, 256}, 128);
  k.space.parameter("rounds", {1, 500}, 500);
  k.problem_fields = {"n"};
  k.launch = [](Span c, Span p) {
    return Launch{{static_cast<unsigned>((p[0] + c[0] - 1) / c[0])}, {static_cast<unsigned>(c[0])}};
  };
  k.workload = [](Span p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    w.output<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  k.reference = [](Span, std::span<void* const> args) {
    auto* y = static_cast<float*>(args[0]);
    const auto* x = static_cast<const float*>(args[1]);
    for (int i = 0; i < *static_cast<int*>(args[2]); ++i) y[i] = 2 * x[i];
  };
  return k;
}

/// `problems` problems of the shipped RMSNorm in floats, of 64 rows.
inline Manifest norms(const Runtime& runtime, int problems) {
  Manifest manifest;
  for (int i = 1; i <= problems; ++i)
    manifest.wanted.push_back({"rmsnorm",
                               {"float"},
                               runtime.device().target.arch,
                               {{"rows", 64}, {"hidden", 256 * i}},
                               {}});
  return manifest;
}

/// The program: its context, its stream, and what it calls of the driver.
struct Program {
  std::shared_ptr<const runtime::DriverTable> driver = runtime::probe_cuda().driver;
  std::shared_ptr<const runtime::CudaContext> context =
      std::make_shared<const runtime::CudaContext>(driver, 0);
  runtime::CurrentContext current{*context};
  runtime::CudaStream own = runtime::create_stream(context);
  Stream stream = runtime::view(own);

  void begin(CUstreamCaptureMode mode) const {
    REQUIRE(driver->StreamBeginCapture(own.get(), mode) == CUDA_SUCCESS);
  }
  runtime::CudaGraph end() const {
    CUgraph graph = nullptr;
    const CUresult result = driver->StreamEndCapture(own.get(), &graph);
    CHECK(result == CUDA_SUCCESS);
    REQUIRE(graph);
    return {context, graph};
  }
  runtime::CudaGraphExec instantiate(const runtime::CudaGraph& graph) const {
    CUgraphExec exec = nullptr;
    REQUIRE(driver->GraphInstantiateWithFlags(&exec, graph.get(), 0) == CUDA_SUCCESS);
    return {context, exec};
  }
  std::size_t nodes(const runtime::CudaGraph& graph) const {
    std::size_t count = 0;
    CHECK(driver->GraphGetNodes(graph.get(), nullptr, &count) == CUDA_SUCCESS);
    return count;
  }
  void run(const runtime::CudaGraphExec& exec) const {
    REQUIRE(driver->GraphLaunch(exec.get(), own.get()) == CUDA_SUCCESS);
  }
  void wait() const { REQUIRE(driver->StreamSynchronize(own.get()) == CUDA_SUCCESS); }
};

struct Arrays {
  Array<float> x, y;

  Arrays(const Runtime& runtime, std::size_t n)
      : x(runtime.array(counting(n))), y(runtime.array(std::vector<float>(n, -1))) {}
  int n() const { return static_cast<int>(x.size()); }
  void launch(const DynamicTuned& handle, Stream stream) const {
    handle(stream, {n()}, y.data(), static_cast<const float*>(x.data()), n());
  }
  /// Launches with the untuned config, which is loaded for that.
  void launch_in_a_region(const DynamicTuned& handle, Stream stream) const {
    Region production;
    production(handle, stream, Values{n()}, y.data(), static_cast<const float*>(x.data()), n());
  }
  void clear() { y.upload(std::vector<float>(y.size(), -1)); }
};

constexpr std::size_t kN = 100000;

inline bool soon(const std::function<bool()>& happened) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!happened()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Tells another thread to stop, however the test's own thread leaves. Declared behind that thread.
struct StopAtTheEnd {
  std::atomic<bool>& stop;
  ~StopAtTheEnd() { stop = true; }
};

/// A driver that counts modules and times how long they take to load, and runtimes on it.
struct Counted {
  static inline std::atomic<int> loaded = 0, unloaded = 0;
  static inline std::atomic<std::int64_t> loading_ns = 0;
  static inline const runtime::DriverTable* real = nullptr;

  static Runtime runtime(
      RuntimeOptions options = in_memory(),
      runtime::Builder::MakeCompiler make_compiler = runtime::compiler_maker({})) {
    static const std::shared_ptr<const runtime::DriverTable> driver = runtime::probe_cuda().driver;
    real = driver.get();
    auto table = std::make_shared<runtime::DriverTable>(*driver);
    table->ModuleLoadData = [](CUmodule* module, const void* image) {
      ++loaded;
      return timed([&] { return real->ModuleLoadData(module, image); });
    };
    table->ModuleGetFunction = [](CUfunction* function, CUmodule module, const char* name) {
      return timed([&] { return real->ModuleGetFunction(function, module, name); });
    };
    if (real->FuncLoad)
      table->FuncLoad = [](CUfunction function) {
        return timed([&] { return real->FuncLoad(function); });
      };
    table->ModuleUnload = [](CUmodule module) {
      ++unloaded;
      return real->ModuleUnload(module);
    };
    auto device = runtime::make_cuda_device(table, 0);
    return detail::Access::runtime(
        runtime::make_engine(std::move(options), std::move(device), std::move(make_compiler)));
  }

 private:
  template <class Call>
  static CUresult timed(const Call& call) {
    const auto begin = Clock::now();
    const CUresult result = call();
    loading_ns += std::chrono::nanoseconds(Clock::now() - begin).count();
    return result;
  }
};

}  // namespace kiln::test
