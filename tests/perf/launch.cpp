// What a cached launch costs over the device's own launch, also of a kernel that takes tensor maps,
// and a first launch from the store against one that must compile. Usage: launch [DEVICE]
#include <array>
#include <exception>
#include <optional>

#include "kiln/kernel.hpp"
#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/runtime.hpp"

struct Nothing {
  int block;
};
KILN_CONFIG(Nothing, block)
struct Size {
  int n;
};
KILN_PROBLEM(Size, n)

namespace {

constexpr const char* kSource = R"(
struct Nothing { int block; };
template <Nothing c>
__global__ void __launch_bounds__(c.block) nothing(float* out, const float* in, int n) {
  if (threadIdx.x == 0 && n < 0) out[0] = in[0];
})";

using Kernel = kiln::Kernel<Nothing, Size, void(float*, const float*, int)>;

Kernel kernel() {
  return {
      .name = "nothing",
      .source = {.text = kSource},
      .entry = "nothing",
      .config_type = "Nothing",
      .space = kiln::Space<Nothing, Size>{{32}}.values(&Nothing::block, {32}),
      .launch = [](const Nothing& c,
                   const Size&) { return kiln::Launch{.grid = {1}, .block = {unsigned(c.block)}}; },
      .problem = [](float*, const float*, int n) { return Size{n}; }};
}

constexpr const char* kMappedSource = R"(
#include "kiln/hopper.cuh"
struct Nothing { int block; };
template <Nothing c>
__global__ void __launch_bounds__(c.block) mapped(
    const __grid_constant__ kiln::hopper::TensorMap out, const __grid_constant__ kiln::hopper::TensorMap a,
    const __grid_constant__ kiln::hopper::TensorMap b, int n) {
  if (threadIdx.x == 0 && n < 0) {
    kiln::hopper::prefetch_map(out);
    kiln::hopper::prefetch_map(a);
    kiln::hopper::prefetch_map(b);
  }
})";
constexpr std::size_t kMaps = 3;

kiln::TensorMap map_of(const Nothing&, const Size& size) {
  return kiln::TensorMap::tiled<float>({.size = {size.n}, .box = {32}});
}

/// On a GPU a launch with an attribute, which a kernel with tensor maps mostly has.
kiln::Launch mapped_launch(const Nothing& c, const Size&, const kiln::DeviceLimits& limits) {
  const unsigned cluster = limits.on_host() ? 1 : 2;
  return {.grid = {cluster}, .block = {unsigned(c.block)}, .cluster = {cluster}};
}

kiln::Kernel<Nothing, Size, void(float*, const float*, const float*, int)> mapped_kernel() {
  return {.name = "mapped",
          .source = {.text = kMappedSource},
          .entry = "mapped",
          .config_type = "Nothing",
          .space = kiln::Space<Nothing, Size>{{32}}.values(&Nothing::block, {32}),
          .launch = mapped_launch,
          .maps = {{.argument = 0, .map = map_of},
                   {.argument = 1, .map = map_of},
                   {.argument = 2, .map = map_of}},
          .problem = [](float*, const float*, const float*, int n) { return Size{n}; }};
}

/// The kernel as shipped kernels are described: with a bucket and with relations between arguments
/// and problem.
kiln::KernelDefinition described() {
  Kernel counted = kernel();
  counted.relations = {{2, "n"}};
  counted.bucket = [](const Size& s) { return Size{(s.n + 63) / 64 * 64}; };
  return counted.definition();
}

/// Nanoseconds per call. A round's launches fit a GPU's queue: when it is full, they wait for it.
template <class Launch>
double nanoseconds(Launch launch) {
  constexpr int kCalls = 200;
  return perf::seconds([&] {
           for (int i = 0; i < kCalls; ++i) launch();
         }) /
         kCalls * 1e9;
}

kiln::runtime::Build built(const kiln::KernelDefinition& definition, const kiln::Target& target) {
  kiln::runtime::Builder builder(
      std::make_shared<kiln::cache::Store>(kiln::StoreOptions{.disk = false}),
      kiln::runtime::make_compiler, {}, 1);
  kiln::runtime::Build build = builder.build(definition, kiln::Values{32}, target);
  if (!build.binary()) throw kiln::InternalError("the empty kernel does not compile");
  return build;
}

/// The driver's own launch of a binary, as a program without Kiln would call it.
class BareLaunch {
 public:
  explicit BareLaunch(const kiln::codegen::Binary& binary)
      : context_(std::make_shared<const kiln::runtime::CudaContext>(
            kiln::runtime::probe_cuda().driver, 0)),
        module_(kiln::runtime::load_module(context_, binary.code)),
        current_(*context_) {
    const auto& driver = context_->driver();
    driver.check(driver.ModuleGetFunction(&function_, module_.get(), binary.symbol.c_str()),
                 "cuModuleGetFunction");
  }
  void operator()(const kiln::Launch& g, kiln::Stream stream, void** arguments) const {
    const auto& driver = context_->driver();
    driver.check(driver.LaunchKernel(function_, g.grid.x, g.grid.y, g.grid.z, g.block.x, g.block.y,
                                     g.block.z, g.shared_bytes,
                                     static_cast<CUstream>(stream.handle), arguments, nullptr),
                 "cuLaunchKernel");
  }
  /// By cuLaunchKernelEx, in clusters.
  void in_clusters(const kiln::Launch& g, kiln::Stream stream, void** arguments) const {
    CUlaunchAttribute cluster{};
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {g.cluster.x, g.cluster.y, g.cluster.z};
    CUlaunchConfig config{};
    config.gridDimX = g.grid.x;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = g.block.x;
    config.hStream = static_cast<CUstream>(stream.handle);
    config.attrs = &cluster;
    config.numAttrs = 1;
    const auto& driver = context_->driver();
    driver.check(driver.LaunchKernelEx(&config, function_, arguments, nullptr), "cuLaunchKernelEx");
  }

 private:
  std::shared_ptr<const kiln::runtime::CudaContext> context_;
  kiln::runtime::CudaModule module_;
  kiln::runtime::CurrentContext current_;
  CUfunction function_ = nullptr;
};

void launch_overhead(const std::string& device_name) {
  kiln::RuntimeOptions options;
  options.device = device_name;
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  const kiln::Runtime runtime(options);
  const auto tuned = runtime.tuned(kernel());
  const auto bound = tuned.at({1000});
  const auto by_name = runtime.tuned(described());
  const auto by_name_bound = by_name.at({1000});
  auto out = runtime.array<float>(1), in = runtime.array<float>(1);

  // The same code on the device itself: what the driver offers.
  const auto device = kiln::runtime::open_device(device_name, {});
  const auto build = built(kernel().definition(), device->info().target);
  const auto loaded = device->load(*build.binary(), {});
  float *out_pointer = out.data(), *in_pointer = in.data();
  int n = 1000;
  void* arguments[] = {&out_pointer, &in_pointer, &n};
  const kiln::Launch launch{.grid = {1}, .block = {32}};
  const kiln::Stream stream = device->tuning_stream();

  auto wait = [&] { device->synchronize(stream); };
  std::optional<BareLaunch> driver;  // a CUDA context is current from here on
  const auto measure = [&](const char* where) {
    std::vector<double> bare, held, looked_up, named, named_held;
    // Side by side: what disturbs the machine meets all of them.
    for (int round = 0; round < 1000; ++round) {
      const double least = nanoseconds([&] {
        if (driver)
          (*driver)(launch, stream, arguments);
        else
          device->launch(*loaded, launch, stream, arguments);
      });
      wait();
      held.push_back(nanoseconds([&] { bound(stream, out_pointer, in_pointer, n); }) - least);
      wait();
      looked_up.push_back(nanoseconds([&] { tuned(stream, out_pointer, in_pointer, n); }) - least);
      wait();
      named_held.push_back(nanoseconds([&] { by_name_bound(stream, out_pointer, in_pointer, n); }) -
                           least);
      wait();
      named.push_back(nanoseconds([&] { by_name(stream, {n}, out_pointer, in_pointer, n); }) -
                      least);
      wait();
      bare.push_back(least);
    }
    const auto report = [&](const char* what, double value, const char* goal = "") {
      char text[96];
      std::snprintf(text, sizeof text, "launch%s: %s", where, what);
      perf::report(text, value, "ns", goal);
    };
    report(driver ? "the driver's own" : "the device's own", perf::median(bare));
    report("handle held, minus that", perf::median(held), "goal <= 25");
    report("with problem look-up, minus that", perf::median(looked_up), "goal <= 60");
    report("described at run time, handle held, minus that", perf::median(named_held));
    report("described at run time, look-up, minus that", perf::median(named), "goal <= 60");
  };
  measure("");
  if (device->info().target.kind != kiln::Target::Kind::cuda) return;
  driver.emplace(*build.binary());
  measure(" in a current context");
}

/// A held kernel that takes three tensor maps against a bare launch of the same code, which is
/// given maps that were encoded before.
void launch_with_maps(const std::string& device_name) {
  const auto device = kiln::runtime::open_device(device_name, {});
  const kiln::DeviceLimits& limits = device->info().limits;
  if (!limits.tensor_maps)
    return void(std::printf("launch with 3 tensor maps: skipped, the device has none\n"));
  kiln::RuntimeOptions options;
  options.device = device_name;
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  const kiln::Runtime runtime(options);
  constexpr int kElements = 1024;
  const Size problem{kElements};
  const auto tuned = runtime.tuned(mapped_kernel());
  const auto bound = tuned.at(problem);
  std::vector<kiln::Array<float>> arrays;
  for (std::size_t i = 0; i < 2 * kMaps; ++i) arrays.push_back(runtime.array<float>(kElements));

  const auto build = built(mapped_kernel().definition(), device->info().target);
  const kiln::Launch launch = mapped_launch({32}, problem, limits);
  const auto loaded = device->load(*build.binary(), launch);
  std::array<kiln::runtime::EncodedMap, kMaps> maps;
  int n = kElements;
  std::array<void*, kMaps + 1> arguments{};
  for (std::size_t i = 0; i < kMaps; ++i) {
    maps[i] = device->encode(map_of({32}, problem), arrays[i].data());
    arguments[i] = &maps[i];
  }
  arguments[kMaps] = &n;
  std::optional<BareLaunch> driver;
  if (!limits.on_host()) driver.emplace(*build.binary());
  const kiln::Stream stream = device->tuning_stream();
  const auto kiln_launch = [&](std::size_t first) {
    bound(stream, arrays[first].data(), arrays[first + 1].data(), arrays[first + 2].data(), n);
  };
  const auto looked_up_launch = [&](std::size_t at) {
    tuned(stream, arrays[at].data(), arrays[at + 1].data(), arrays[at + 2].data(), n);
  };
  kiln_launch(0);  // encodes the maps
  looked_up_launch(0);

  std::vector<double> bare, same, changed, fresh, looked_up, looked_up_changed;
  float* const first = arrays.front().data();
  std::size_t turn = 0;
  for (int round = 0; round < 1000; ++round) {
    const double least = nanoseconds([&] {
      if (driver)
        driver->in_clusters(launch, stream, arguments.data());
      else
        device->launch(*loaded, launch, stream, arguments.data());
    });
    device->synchronize(stream);
    same.push_back(nanoseconds([&] { kiln_launch(0); }) - least);
    device->synchronize(stream);
    changed.push_back(nanoseconds([&] { kiln_launch(kMaps); }) - least);
    device->synchronize(stream);
    looked_up.push_back(nanoseconds([&] { looked_up_launch(0); }) - least);
    device->synchronize(stream);
    looked_up_changed.push_back(nanoseconds([&] { looked_up_launch(kMaps); }) - least);
    device->synchronize(stream);
    // Addresses that no launch has passed before; nothing reads there.
    fresh.push_back(nanoseconds([&] {
                      float* const moved = first + 64 * ++turn;
                      bound(stream, moved, moved + 16, moved + 32, n);
                    }) -
                    least);
    device->synchronize(stream);
    bare.push_back(least);
  }
  perf::report(driver ? "launch with 3 tensor maps: cuLaunchKernelEx"
                      : "launch with 3 tensor maps: the device's own",
               perf::median(bare), "ns");
  perf::report("launch with 3 tensor maps: same pointers, minus that", perf::median(same), "ns",
               "goal <= 25");
  perf::report("launch with 3 tensor maps: changed pointers, minus that", perf::median(changed),
               "ns", "goal <= 60");
  perf::report("launch with 3 tensor maps: new pointers every time, minus that",
               perf::median(fresh), "ns", "goal <= 60");
  perf::report("launch with 3 tensor maps: by look-up, same pointers, minus that",
               perf::median(looked_up), "ns");
  perf::report("launch with 3 tensor maps: by look-up, changed pointers, minus that",
               perf::median(looked_up_changed), "ns");
}

/// Seconds in which the driver alone loads a binary and launches it once; 0: there is no driver.
double loading(const std::string& device_name) {
  const auto device = kiln::runtime::open_device(device_name, {});
  if (device->info().target.kind != kiln::Target::Kind::cuda) return 0;
  const auto build = built(kernel().definition(), device->info().target);
  float *out = nullptr, *in = nullptr;
  int n = 1000;
  void* arguments[] = {&out, &in, &n};
  std::vector<double> times;
  for (int i = 0; i < 7; ++i)
    times.push_back(perf::seconds([&] {
      const BareLaunch launch(*build.binary());
      launch({.grid = {1}, .block = {32}}, device->tuning_stream(), arguments);
      device->synchronize(device->tuning_stream());
    }));
  return perf::median(times);
}

void first_launch(const std::string& device_name) {
  std::vector<double> cold, warm;
  for (int i = 0; i < 7; ++i) {
    perf::ScratchFolder folder;
    kiln::RuntimeOptions options;
    options.device = device_name;
    options.store.directory = folder.path() / "store";
    options.mode = kiln::Mode::untuned;
    for (std::vector<double>* times : {&cold, &warm}) {
      const kiln::Runtime runtime(options);
      auto out = runtime.array<float>(1), in = runtime.array<float>(1);
      const auto tuned = runtime.tuned(kernel());
      times->push_back(perf::seconds([&] {
        tuned(kiln::Stream{}, out.data(), in.data(), 1000);
        runtime.synchronize();
      }));
    }
  }
  const double by_driver = loading(device_name);
  perf::report("first launch, compiled", perf::median(cold) * 1e3, "ms");
  perf::report("first launch, from the store", perf::median(warm) * 1e3, "ms");
  if (by_driver > 0)
    perf::report("first launch: of which the driver loads and launches", by_driver * 1e3, "ms");
  perf::report("first launch: store against cold compile", perf::median(cold) / perf::median(warm),
               "x", "goal >= 100");
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string device = argc > 1 ? argv[1] : "auto";
  launch_overhead(device);
  launch_with_maps(device);
  first_launch(device);
} catch (const kiln::EnvironmentError& error) {
  std::printf("skipped: %s\n", error.what());
  return 77;
} catch (const kiln::Error& error) {
  std::printf("FAILED: %s\n", error.what());
  return 1;
}
