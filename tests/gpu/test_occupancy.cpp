// The occupancy formulas and the roofline, held against the driver and the hardware.
#include <cstdlib>

#include "codegen/nvrtc.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/occupancy.hpp"
#include "kiln/roofline.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/resource_check.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

/// A kernel that needs about this many registers, and these bytes of static shared memory.
codegen::Binary compile(const Device& device, int registers, int shared) {
  static const codegen::NvrtcProbe nvrtc =
      codegen::NvrtcCompiler::find(codegen::NvrtcOptions::from_environment());
  codegen::Source source;
  source.text = kiln::detail::format(R"(
    __global__ void __launch_bounds__(1024, 1) busy(float* data, int n) {{
      float x[{0}];
      __shared__ char fixed[{1}];
      if (n < 0) fixed[threadIdx.x] = n;
      #pragma unroll
      for (int i = 0; i < {0}; ++i) x[i] = data[i * 1024 + threadIdx.x];
      for (int k = 0; k < n; ++k)
        #pragma unroll
        for (int i = 0; i < {0}; ++i) x[i] = x[i] * x[({0} - 1) - i] + 1;
      #pragma unroll
      for (int i = 0; i < {0}; ++i) data[i * 1024 + threadIdx.x] = x[i] + (n < 0 ? fixed[i] : 0);
    }})",
                                     registers, shared);
  source.entry = source.label = "busy";
  source.signature = "void(float*, int)";
  auto result = nvrtc.compiler->compile(source, device.info().target);
  if (auto* failure = std::get_if<CompileFailure>(&result)) FAIL(failure->log);
  return std::get<codegen::Binary>(std::move(result));
}

}  // namespace

TEST_CASE("the driver's occupancy is the formula's", "[gpu]") {
  const auto device = make_cuda_device(probe_cuda().driver, 0);
  const DeviceLimits& limits = device->info().limits;
  const unsigned most = static_cast<unsigned>(limits.shared_per_block_optin);
  std::size_t compared = 0;
  for (const int registers : {1, 8, 16, 24, 32, 40, 48})
    for (const int shared : {16, 5008, 40000}) {
      const codegen::Binary binary = compile(*device, registers, shared);
      const unsigned dynamic = most - static_cast<unsigned>(binary.resources.static_shared);
      const auto kernel = device->load(binary, {.shared_bytes = dynamic});
      for (int threads = 1; threads <= 1024; threads += 29)
        for (const unsigned bytes : {0u, 1u, 1000u, 20000u, 70000u, dynamic - 1, dynamic}) {
          if (bytes > dynamic) continue;
          const Launch g{{1}, {static_cast<unsigned>(threads)}, bytes};
          const codegen::ResourceUsage& usage = kernel->resources();
          CAPTURE(usage.registers, usage.static_shared, threads, bytes);
          REQUIRE(occupancy(usage, g, limits).blocks == device->occupancy(*kernel, threads, bytes));
          ++compared;
        }
    }
  CHECK(compared > 1000);
}

TEST_CASE("what the driver reports is what is published", "[gpu]") {
  const auto device = make_cuda_device(probe_cuda().driver, 0);
  const DeviceLimits& told = device->info().limits;
  const DeviceLimits known = limits_of(told.compute_capability);
  CHECK(told.max_threads_per_multiprocessor == known.max_threads_per_multiprocessor);
  CHECK(told.max_blocks_per_multiprocessor == known.max_blocks_per_multiprocessor);
  CHECK(told.shared_per_multiprocessor == known.shared_per_multiprocessor);
  CHECK(told.shared_per_block_optin == known.shared_per_block_optin);
  CHECK(told.shared_per_block == known.shared_per_block);
  CHECK(told.reserved_shared_per_block == known.reserved_shared_per_block);
  CHECK(told.registers_per_multiprocessor == known.registers_per_multiprocessor);
  CHECK(told.registers_per_block == known.registers_per_block);
}

TEST_CASE("the roofline is within what the hardware can do", "[gpu]") {
  RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  const Runtime runtime(options);
  const Roofline roof = roofline(runtime);
  WARN(roof.device << ": copy " << roof.bytes_per_second * 1e-9 << " GB/s, FMA "
                   << roof.flops_per_second * 1e-12 << " TFLOP/s, mma.sync "
                   << roof.tensor_flops_per_second * 1e-12 << " TFLOP/s");
  CHECK(roof.bytes_per_second > 0);
  CHECK(roof.flops_per_second > 0);
  const DeviceInfo& device = runtime.device();
  for (const KeyField& field : device.fingerprint)
    if (field.name == "clock_mhz") {
      // Lanes of FMA units, twice; nothing was optimised away.
      const double clocks = device.limits.multiprocessors * std::stod(field.value) * 1e6;
      CHECK(roof.flops_per_second <= 1.05 * clocks * 2 * 128);
      CHECK(roof.tensor_flops_per_second <= 1.05 * clocks * 2 * 4096);
    }
  CHECK(roofline(runtime).from_store);
}
