// Digests of device memory, as far as they can be had without a device.
#include <algorithm>
#include <set>
#include <vector>

#include "fake_driver.hpp"
#include "kiln_test.hpp"
#include "runtime/device/array_digest.hpp"
#include "runtime/device/cuda/cuda_device.hpp"

using namespace kiln::runtime;

TEST_CASE("each byte and its place count", "[runtime][cuda][digest]") {
  std::vector<std::byte> data(37);
  std::set<std::uint64_t> seen{array_digest(data)};
  for (std::size_t i = 0; i < data.size(); ++i)
    for (const int value : {1, 128, 255}) {
      data[i] = static_cast<std::byte>(value);
      CHECK(seen.insert(array_digest(data)).second);
      data[i] = {};
    }
  for (std::size_t size = 0; size < data.size(); size += 8)
    CHECK(seen.insert(array_digest(std::span(data).first(size))).second);
  CHECK(array_digest(std::vector<std::byte>(data)) == array_digest(data));
  CHECK(array_digest({}) == 0);
}

TEST_CASE("the digest of a large array is the sum over its parts", "[runtime][cuda][digest]") {
  std::vector<std::byte> data((std::size_t{3} << 21) + 5);  // three blocks of words, and a bit
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(1 + i * i % 251);
  std::uint64_t sum = 0;
  std::vector<std::byte> alone(data.size());
  for (std::size_t part = 0; part < data.size(); part += std::size_t{1} << 21) {
    const std::size_t bytes = std::min(data.size() - part, std::size_t{1} << 21);
    std::copy_n(data.begin() + part, bytes, alone.begin() + part);
    sum += array_digest(alone);
    std::fill_n(alone.begin() + part, bytes, std::byte{});
    sum -= array_digest(alone);
  }
  CHECK(array_digest(data) - array_digest(alone) == sum);
  data[std::size_t{2} << 21] ^= std::byte{1};
  CHECK(array_digest(data) - array_digest(alone) != sum);
}

TEST_CASE("a driver that cannot compile the kernel is asked once", "[runtime][cuda][digest]") {
  FakeDriver fake;
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const DeviceMemory memory(device, 4096);
    CHECK(device->digests(memory.data(), 4096, 0, 1).empty());
    const int loads = fake.count("cuModuleLoadData");
    CHECK(loads == 1);
    CHECK(device->digests(memory.data(), 4096, 0, 1).empty());
    CHECK(fake.count("cuModuleLoadData") == loads);
    CHECK(fake.launches.empty());
  }
  CHECK_FALSE(fake.leaks());
  CHECK(fake.misuse.empty());
}

TEST_CASE("a kernel that computes something else is not believed", "[runtime][cuda][digest]") {
  FakeDriver fake;  // whose launches do nothing
  fake.functions().ModuleGetFunction = [](CUfunction* function, CUmodule, const char*) {
    *function = reinterpret_cast<CUfunction>(1);
    return CUDA_SUCCESS;
  };
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const DeviceMemory memory(device, 4096);
    CHECK(device->digests(memory.data(), 4096, 0, 1).empty());
    CHECK(fake.launches.size() == 1);
  }
  CHECK_FALSE(fake.leaks());
  CHECK(fake.misuse.empty());
}
