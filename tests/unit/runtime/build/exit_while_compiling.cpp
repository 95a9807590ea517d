// A program that exits while NVRTC compiles on a thread of a builder that is never destroyed.
//   exit_while_compiling [first]    first: in the very first compilation of the process
// Ends with 0, or 77 without NVRTC.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>

#include "cache/store.hpp"
#include "kiln/definition.hpp"
#include "kiln/error.hpp"
#include "runtime/build/build_queue.hpp"
#include "runtime/build/compilers.hpp"

namespace {

using namespace kiln;

/// Takes seconds to compile, the more the greater `depth` is.
KernelDefinition slow_kernel() {
  KernelDefinition kernel;
  kernel.name = "slow";
  kernel.source.text = R"(
template <int n> __device__ float nested(float x) { return nested<n - 1>(x) * x + n; }
template <> __device__ float nested<0>(float x) { return x; }
template <int depth> __global__ void slow(float* y) {
  float x = y[threadIdx.x];
#pragma unroll
  for (int i = 0; i < 400 * depth; ++i) x += nested<depth>(x) + __sinf(x) * i;
  y[threadIdx.x] = x;
})";
  kernel.entry = "slow";
  kernel.arguments = {"float*"};
  kernel.space.parameter("depth", {1, 100, 120}, 1);
  return kernel;
}

}  // namespace

int main(int count, char** arguments) try {
  const bool first = count > 1 && std::string_view(arguments[1]) == "first";
  StoreOptions options;
  options.disk = false;
  // Never destroyed, but reachable, so that it is not reported as a leak.
  static auto* const builder = new runtime::Builder(std::make_shared<cache::Store>(options),
                                                    runtime::compiler_maker(0), {}, 2);
  static auto* const kernel = new KernelDefinition(slow_kernel());
  const Target target = Target::parse("sm_90");
  builder->compiler(target.kind);  // throws without NVRTC
  runtime::TraceLog trace;
  const auto job = [=](const Values& config) {
    return [=] { return builder->build(*kernel, config, target); };
  };
  runtime::BuildQueue queue(
      &builder->crew(), 2, job, [](const Values&) { return std::string("a config"); }, trace);
  if (!first) {
    queue.submit(0, {1});
    if (!queue.take(1, {})[0].build.binary()) return 1;
  }
  queue.submit(1, {120});
  queue.submit(2, {100});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // they compile now
  return 0;
} catch (const EnvironmentError& error) {
  std::printf("skipped: %s\n", error.what());
  return 77;
}
