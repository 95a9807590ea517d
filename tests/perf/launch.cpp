// What a cached launch costs over the device's own launch, and a first launch from the store
// against one that must compile. Usage: launch [DEVICE]
#include <exception>

#include "kiln/kernel.hpp"
#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/builder.hpp"
#include "runtime/devices.hpp"

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
  return {.name = "nothing",
          .source = {.text = kSource},
          .entry = "nothing",
          .config_type = "Nothing",
          .space = kiln::Space<Nothing, Size>{{32}}.values(&Nothing::block, {32}),
          .geometry =
              [](const Nothing& c, const Size&) {
                return kiln::LaunchGeometry{.grid = {1}, .block = {unsigned(c.block)}};
              },
          .problem = [](float*, const float*, int n) { return Size{n}; }};
}

/// Nanoseconds per call, the least of several rounds: what the code costs when nothing disturbs it.
template <class Launch, class Wait>
double nanoseconds(Launch launch, Wait wait) {
  constexpr int kCalls = 2000;
  double best = 1e9;
  for (int round = 0; round < 30; ++round) {
    best = std::min(best, perf::seconds([&] {
                            for (int i = 0; i < kCalls; ++i) launch();
                          }) / kCalls);
    wait();
  }
  return best * 1e9;
}

void launch_overhead(const std::string& device_name) {
  kiln::RuntimeOptions options;
  options.device = device_name;
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  const kiln::Runtime runtime(options);
  const auto tuned = runtime.tuned(kernel());
  const auto bound = tuned.at({1000});
  auto out = runtime.array<float>(1), in = runtime.array<float>(1);

  // The same code on the device itself: what the driver offers.
  const auto device = kiln::runtime::open_device(device_name, {});
  kiln::runtime::Builder builder(
      std::make_shared<kiln::cache::Store>(kiln::StoreOptions{.disk = false}),
      kiln::runtime::make_compiler, {}, 1);
  const auto build = builder.build(kernel().definition(), kiln::Values{32}, device->info().target);
  if (!build.binary()) throw kiln::InternalError("the empty kernel does not compile");
  const auto loaded = device->load(*build.binary(), 0);
  float *out_pointer = out.data(), *in_pointer = in.data();
  int n = 1000;
  void* arguments[] = {&out_pointer, &in_pointer, &n};
  const kiln::LaunchGeometry geometry{.grid = {1}, .block = {32}};
  const kiln::Stream stream = device->tuning_stream();

  auto wait = [&] { device->synchronize(stream); };
  std::vector<double> bare, held, looked_up;
  for (int i = 0; i < 5; ++i) {
    bare.push_back(
        nanoseconds([&] { device->launch(*loaded, geometry, stream, arguments); }, wait));
    held.push_back(nanoseconds([&] { bound(stream, out_pointer, in_pointer, n); }, wait));
    looked_up.push_back(nanoseconds([&] { tuned(stream, out_pointer, in_pointer, n); }, wait));
  }
  perf::report("launch: the device's own", perf::median(bare), "ns");
  perf::report("launch: handle held, minus that", perf::median(held) - perf::median(bare), "ns",
               "goal <= 25");
  perf::report("launch: with problem look-up, minus that",
               perf::median(looked_up) - perf::median(bare), "ns", "goal <= 60");
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
  perf::report("first launch, compiled", perf::median(cold) * 1e3, "ms");
  perf::report("first launch, from the store", perf::median(warm) * 1e3, "ms");
  perf::report("first launch: store against cold compile", perf::median(cold) / perf::median(warm),
               "x", "goal >= 100");
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string device = argc > 1 ? argv[1] : "auto";
  launch_overhead(device);
  first_launch(device);
} catch (const kiln::EnvironmentError& error) {
  std::printf("skipped: %s\n", error.what());
  return 77;
}
