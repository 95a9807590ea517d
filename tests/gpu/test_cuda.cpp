// The CUDA device and NVRTC on real hardware.
#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <span>
#include <thread>

#include "codegen/nvrtc.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/device/array_digest.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/device/module_data.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

codegen::NvrtcCompiler& nvrtc() {
  static const codegen::NvrtcProbe probe =
      codegen::NvrtcCompiler::find(codegen::NvrtcOptions::from_environment());
  return *probe.compiler;
}

std::shared_ptr<Device> open() { return make_cuda_device(probe_cuda().driver, 0); }

codegen::Binary compile(const Device& device, const char* text, const char* entry,
                        const char* signature) {
  codegen::Source source;
  source.text = text;
  source.entry = entry;
  source.signature = signature;
  source.label = entry;
  auto result = nvrtc().compile(source, device.info().target);
  if (auto* failure = std::get_if<CompileFailure>(&result)) FAIL(failure->log);
  return std::get<codegen::Binary>(std::move(result));
}

constexpr const char* kAdd = R"(
struct Add { int block; int items; };
template <Add c, class T>
__global__ void __launch_bounds__(c.block) add(T* out, const T* a, const T* b, int n) {
  for (int i = 0; i < c.items; ++i) {
    const int at = (blockIdx.x * c.items + i) * c.block + threadIdx.x;
    if (at < n) out[at] = a[at] + b[at];
  }
})";
constexpr const char* kAddEntry = "add<Add{.block = 128, .items = 4}, float>";
constexpr const char* kAddSignature = "void(float*, const float*, const float*, int)";

// Vector addition on one device, checked.
struct Addition {
  std::shared_ptr<Device> device;
  std::shared_ptr<Module> kernel;
  std::vector<float> a, b;
  DeviceMemory device_a, device_b, device_out;

  Addition(std::shared_ptr<Device> on, int n)
      : device(std::move(on)),
        kernel(device->load(compile(*device, kAdd, kAddEntry, kAddSignature), {})),
        a(static_cast<std::size_t>(n)),
        b(a.size()),
        device_a(device, a.size() * sizeof(float)),
        device_b(device, a.size() * sizeof(float)),
        device_out(device, a.size() * sizeof(float)) {
    std::iota(a.begin(), a.end(), 1.0f);
    std::iota(b.begin(), b.end(), -0.5f);
    device->copy_to_device(device_a.data(), a.data(), device_a.bytes());
    device->copy_to_device(device_b.data(), b.data(), device_b.bytes());
  }

  void launch(Stream stream, void* out) const {
    int n = static_cast<int>(a.size());
    void* x = device_a.data();
    void* y = device_b.data();
    void* args[] = {&out, &x, &y, &n};
    const Launch g{{(static_cast<unsigned>(n) + 511) / 512}, {128}, 0};
    device->launch(*kernel, g, stream, args);
  }

  int wrong(const void* out) const {
    std::vector<float> host(a.size());
    device->copy_to_host(host.data(), out, device_out.bytes());
    int count = 0;
    for (std::size_t i = 0; i < host.size(); ++i) count += host[i] != a[i] + b[i];
    return count;
  }
};

}  // namespace

TEST_CASE("the device describes itself", "[gpu]") {
  const auto device = open();
  const DeviceInfo& info = device->info();
  WARN(info.name << ", " << info.target.arch << ", " << info.limits.multiprocessors
                 << " multiprocessors");
  CHECK(info.limits.compute_capability >= 75);
  CHECK(info.limits.warp_size == 32);
  CHECK(info.limits.shared_per_block >= 48 * 1024);
  CHECK(info.limits.shared_per_block_optin >= info.limits.shared_per_block);
  CHECK(info.limits.memory_bytes > (std::int64_t{1} << 30));
  CHECK(open()->info().fingerprint == info.fingerprint);
}

TEST_CASE("vectors are added", "[gpu]") {
  for (int n : {1, 511, 512, 513, 1 << 20}) {
    CAPTURE(n);
    Addition add(open(), n);
    add.device->fill(add.device_out.data(), std::byte{0xff}, add.device_out.bytes(),
                     add.device->tuning_stream());
    add.launch(add.device->tuning_stream(), add.device_out.data());
    add.device->synchronize(add.device->tuning_stream());
    CHECK(add.wrong(add.device_out.data()) == 0);
  }
}

TEST_CASE("digests are those of the host, of any size, and see each byte", "[gpu]") {
  const auto device = open();
  for (const std::size_t bytes : {1u, 7u, 8u, 9u, 255u, 2048u, 2049u, 1000003u, 1u << 24}) {
    CAPTURE(bytes);
    const std::size_t stride = (bytes + 511) / 512 * 512, count = bytes < 4096 ? 300 : 3;
    std::vector<std::byte> data(stride * count);
    std::mt19937 random(static_cast<unsigned>(bytes));
    for (std::byte& b : data) b = static_cast<std::byte>(random());
    const DeviceMemory memory(device, data.size());
    device->copy_to_device(memory.data(), data.data(), data.size());
    const auto agree = [&] {
      const auto found = device->digests(memory.data(), bytes, stride, count);
      REQUIRE(found.size() == count);
      for (std::size_t i = 0; i < count; ++i)
        if (found[i] != array_digest(std::span(data).subspan(i * stride, bytes))) return false;
      return true;
    };
    CHECK(agree());
    for (const std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1}) {
      data[at] ^= std::byte{1};
      CHECK_FALSE(agree());
      data[at] ^= std::byte{1};
    }
    if (stride > bytes) data[bytes] ^= std::byte{1};  // between two arrays
    CHECK(agree());
  }
  const DeviceMemory memory(device, 64);
  CHECK(device->digests(static_cast<std::byte*>(memory.data()) + 4, 8, 0, 1).empty());
  CHECK(device->digests(memory.data(), 0, 0, 1).empty());
}

TEST_CASE("the driver's resources agree with the compiler's", "[gpu]") {
  const auto device = open();
  const codegen::Binary binary = compile(*device, kAdd, kAddEntry, kAddSignature);
  const auto kernel = device->load(binary, {});
  CHECK(kernel->resources().registers == binary.resources.registers);
  CHECK(kernel->resources().static_shared == binary.resources.static_shared);
  CHECK(kernel->resources().max_threads == binary.resources.max_threads);
  CHECK(device->occupancy(*kernel, 128, 0) > 0);
  CHECK(device->occupancy(*kernel, 4096, 0) == 0);
}

constexpr const char* kReverse = R"(
__global__ void reverse(int* data, int n) {
  extern __shared__ int tile[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = data[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) data[i] = tile[n - 1 - i];
})";

TEST_CASE("64 KB of dynamic shared memory work when opted into", "[gpu]") {
  const auto device = open();
  constexpr unsigned kBytes = 64 * 1024;
  const codegen::Binary binary = compile(*device, kReverse, "reverse", "void(int*, int)");
  int n = kBytes / sizeof(int);
  std::vector<int> data(static_cast<std::size_t>(n));
  std::iota(data.begin(), data.end(), 0);
  DeviceMemory memory(device, kBytes);
  device->copy_to_device(memory.data(), data.data(), kBytes);
  void* pointer = memory.data();
  void* args[] = {&pointer, &n};
  const Launch g{{1}, {256}, kBytes};

  const auto bold = device->load(binary, {.shared_bytes = kBytes});
  device->launch(*bold, g, device->tuning_stream(), args);
  device->synchronize(device->tuning_stream());
  device->copy_to_host(data.data(), memory.data(), kBytes);
  bool reversed = true;
  for (int i = 0; i < n; ++i) reversed = reversed && data[static_cast<std::size_t>(i)] == n - 1 - i;
  CHECK(reversed);
  CHECK_THROWS_AS(device->load(binary, {.shared_bytes = 4u << 20}), UserError);
}

// A launch that the driver refuses confuses a race checker.
TEST_CASE("64 KB of dynamic shared memory are refused when not opted into", "[gpu][fault]") {
  const auto device = open();
  const auto kernel = device->load(compile(*device, kReverse, "reverse", "void(int*, int)"), {});
  DeviceMemory memory(device, 1024);
  void* pointer = memory.data();
  int n = 256;
  void* args[] = {&pointer, &n};
  CHECK_THROWS_AS(device->launch(*kernel, {{1}, {256}, 64 * 1024}, device->tuning_stream(), args),
                  EnvironmentError);
  device->launch(*kernel, {{1}, {256}, 1024}, device->tuning_stream(), args);
  device->synchronize(device->tuning_stream());
}

TEST_CASE("events time the work between them", "[gpu]") {
  const auto device = open();
  // A kernel that waits for a given number of nanoseconds, by the device's clock.
  const codegen::Binary binary = compile(*device, R"(
    __global__ void wait(long long ns) {
      long long start, now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
      do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - start < ns);
    })",
                                         "wait", "void(long long)");
  const auto kernel = device->load(binary, {});
  const auto timed = [&](long long ns) {
    void* args[] = {&ns};
    return device->time(device->tuning_stream(), [&] {
      device->launch(*kernel, {{1}, {1}, 0}, device->tuning_stream(), args);
    });
  };
  timed(1000);
  const double longer = timed(20'000'000);
  CHECK(longer >= 0.019);
  CHECK(timed(1'000'000) < longer);
}

TEST_CASE("launches are recorded and replayed", "[gpu]") {
  Addition add(open(), 1 << 12);
  const Stream stream = add.device->tuning_stream();
  void* const out = add.device_out.data();
  const auto clear = [&] {
    add.device->fill(out, std::byte{0xff}, add.device_out.bytes(), stream);
    add.device->synchronize(stream);
  };
  clear();
  const auto replay = add.device->capture(stream, [&] {
    for (int i = 0; i < 20; ++i) add.launch(stream, out);
  });
  REQUIRE(replay);
  CHECK(add.wrong(out) == 1 << 12);  // recorded, not run
  CHECK(add.device->time(stream, [&] { replay->run(stream); }) > 0);
  CHECK(add.wrong(out) == 0);
  clear();
  replay->run(stream);
  add.device->synchronize(stream);
  CHECK(add.wrong(out) == 0);
  // What a capture cannot hold, and nothing at all, are not recorded, and the stream is usable.
  CHECK_FALSE(add.device->capture(stream, [&] { add.device->synchronize(stream); }));
  CHECK_FALSE(add.device->capture(stream, [] {}));
  add.launch(stream, out);
  add.device->synchronize(stream);
}

TEST_CASE("a context that is current is used and stays current", "[gpu]") {
  const auto driver = probe_cuda().driver;
  CUcontext before = nullptr;
  REQUIRE(driver->CtxGetCurrent(&before) == CUDA_SUCCESS);
  REQUIRE(before == nullptr);
  const auto primary = std::make_shared<const CudaContext>(driver, 0);
  const CurrentContext current(*primary);
  const CudaContext second(driver, 0);
  CHECK(second.get() == primary->get());
  {
    Addition add(open(), 1000);
    const CudaStream stream = create_stream(primary);  // an engine's own stream
    add.launch(view(stream), add.device_out.data());
    add.device->synchronize(view(stream));
    CHECK(add.wrong(add.device_out.data()) == 0);
  }
  CUcontext now = nullptr;
  driver->check(driver->CtxGetCurrent(&now), "cuCtxGetCurrent");
  CHECK(now == primary->get());
}

TEST_CASE("several threads launch one kernel", "[gpu][threads]") {
  Addition add(open(), 1 << 16);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      const DeviceMemory out(add.device, add.device_out.bytes());
      for (int i = 0; i < 50; ++i) add.launch(add.device->tuning_stream(), out.data());
      add.device->synchronize(add.device->tuning_stream());
      wrong += add.wrong(out.data());
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("what the driver refuses is an environment error", "[gpu]") {
  const auto device = open();
  codegen::Binary binary = compile(*device, kAdd, kAddEntry, kAddSignature);
  binary.code = std::vector<std::byte>(binary.code.size(), std::byte{0x55});
  CHECK_THROWS_AS(device->load(binary, {}), EnvironmentError);
  CHECK_THROWS_AS(device->allocate(std::size_t{1} << 60), EnvironmentError);
  CHECK_THROWS_AS(make_cuda_device(probe_cuda().driver, 4096), EnvironmentError);
  // The device still works.
  Addition add(device, 100);
  add.launch(device->tuning_stream(), add.device_out.data());
  device->synchronize(device->tuning_stream());
  CHECK(add.wrong(add.device_out.data()) == 0);
}

TEST_CASE("variables of a module are filled, each module's for itself", "[cuda]") {
  const auto device = open();
  const codegen::Binary binary = compile(*device, R"(
    namespace image { static __constant__ float scale[2]; }
    __device__ int calls;
    __global__ void k(float* y) {
      y[threadIdx.x] = image::scale[threadIdx.x];
      if (threadIdx.x == 0) ++calls;
    })",
                                         "k", "void(float*)");
  const auto a = device->load(binary, {}), b = device->load(binary, {});
  const float scales[] = {3, 5};
  const ModuleVariable scale = find_variable(*device, *a, "scale");
  CHECK(scale.name == "image::scale");
  write_variable(*device, scale, std::as_bytes(std::span(scales)));
  const DeviceMemory y(device, sizeof scales);
  const auto run = [&](const Module& kernel) {
    void* out = y.data();
    void* args[] = {&out};
    device->launch(kernel, {{1}, {2}, 0}, device->tuning_stream(), args);
    std::array<float, 2> got{};
    device->synchronize(device->tuning_stream());
    device->copy_to_host(got.data(), y.data(), sizeof got);
    return got;
  };
  CHECK(run(*a) == std::array<float, 2>{3, 5});
  CHECK(run(*a) == std::array<float, 2>{3, 5});
  CHECK(run(*b) == std::array<float, 2>{0, 0});
  int calls = 0;
  device->copy_to_host(&calls, find_variable(*device, *a, "calls").address, sizeof calls);
  CHECK(calls == 2);
}
