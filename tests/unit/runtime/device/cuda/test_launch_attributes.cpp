// Launches that are more than a grid and a block, and tensor maps, as the driver is told of them.
#include <cstring>
#include <string>

#include <catch2/catch.hpp>

#include "fake_driver.hpp"
#include "kiln/error.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/entry_arguments.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

codegen::Binary plain_binary() {
  codegen::Binary b;
  b.target = {Target::Kind::cuda, "sm_90a"};
  b.symbol = "kernel";
  b.code = std::vector<std::byte>(8);
  return b;
}

bool mentions(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("clusters, cooperation and dependent launches reach the driver", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const Launch launch{.grid = {4, 2},
                      .block = {128},
                      .shared_bytes = 512,
                      .cluster = {2, 1},
                      .cooperative = true,
                      .programmatic = true};
  const auto kernel = device->load(plain_binary(), launch);
  CHECK(fake.count("cuOccupancyMaxActiveClusters") == 1);
  void* args[] = {nullptr};
  device->launch(*kernel, launch, {reinterpret_cast<void*>(0x77)}, args);
  REQUIRE(fake.launches.size() == 1);
  const auto& l = fake.launches[0];
  CHECK((l.grid[0] == 4 && l.grid[1] == 2 && l.grid[2] == 1 && l.block[0] == 128));
  CHECK(l.shared == 512);
  CHECK(l.stream == reinterpret_cast<CUstream>(0x77));
  CHECK(l.args == args);
  CHECK(l.attributes.size() == 3);
  const auto& cluster = l.attributes.at(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim;
  CHECK((cluster.x == 2 && cluster.y == 1 && cluster.z == 1));
  CHECK(l.attributes.at(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative == 1);
  CHECK(l.attributes.at(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            .programmaticStreamSerializationAllowed == 1);

  // A plain launch has no attributes.
  device->launch(*kernel, {{1}, {32}}, device->tuning_stream(), args);
  CHECK(fake.count("cuLaunchKernel") == 1);
  CHECK(fake.misuse.empty());
}

TEST_CASE("a cluster that the device cannot hold is refused when it is loaded", "[runtime][cuda]") {
  FakeDriver fake;
  fake.resident_clusters = 0;
  const auto device = make_cuda_device(fake.table(), 0);
  try {
    device->load(plain_binary(),
                 {.grid = {8}, .block = {1024}, .shared_bytes = 200000, .cluster = {8}});
    FAIL("accepted");
  } catch (const UserError& error) {
    CHECK(mentions(error, "cannot hold one cluster of 8x1x1 blocks of 1024 threads"));
  }
  CHECK(fake.modules.empty());
}

TEST_CASE("a wish for shared memory is set once", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  device->load(plain_binary(), {.shared_carveout = 75});
  CHECK(fake.set_attributes.at(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) == 75);
}

TEST_CASE("a tensor map is encoded as it was described, and moved", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto map = TensorMap::tiled<bfloat16>({.size = {1000, 77, 5},
                                               .stride = {1008, 80000},
                                               .box = {64, 32, 1},
                                               .swizzle = Swizzle::bytes128,
                                               .l2_bytes = 256});
  CHECK(map.obstacle().empty());
  EncodedMap encoded = device->encode(map, reinterpret_cast<void*>(0x1000));
  REQUIRE(fake.maps.size() == 1);
  const auto& told = fake.maps[0];
  CHECK(told.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  CHECK(told.rank == 3);
  CHECK(told.address == reinterpret_cast<void*>(0x1000));
  CHECK(told.size == std::vector<cuuint64_t>{1000, 77, 5});
  CHECK(told.stride == std::vector<cuuint64_t>{2016, 160000});
  CHECK(told.box == std::vector<cuuint32_t>{64, 32, 1});
  CHECK(told.step == std::vector<cuuint32_t>{1, 1, 1});
  CHECK(told.swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
  CHECK(told.promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  device->move(encoded, reinterpret_cast<void*>(0x2000));
  void* address = nullptr;
  std::memcpy(&address, encoded.bytes.data(), sizeof address);
  CHECK(address == reinterpret_cast<void*>(0x2000));
  CHECK(fake.misuse.empty());  // both in the device's context, though none is current here

  fake.fail_call = "cuTensorMapEncodeTiled";
  CHECK_THROWS_AS(device->encode(map, nullptr), EnvironmentError);
}

TEST_CASE("a launch that is made again and again passes maps", "[runtime][cuda][maps]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const Launch launch{.grid = {4}, .block = {32}, .cluster = {2}};
  const auto kernel = device->load(plain_binary(), launch);
  const auto map = TensorMap::tiled<float>({.size = {64}, .box = {32}});
  const auto fixed = device->fixed(*kernel, launch, EntryArguments(*device, {{1, map}}, 2));
  int first = 1;
  void* array = reinterpret_cast<void*>(0x1000);
  const Stream own{reinterpret_cast<void*>(0x77)};
  const auto pass = [&](Stream stream, bool take) {
    void* args[] = {&first, &array};
    if (take)
      fixed->take(launch, stream, args);
    else
      (*fixed)(launch, stream, args);
    const auto& told = fake.launches.back();
    CHECK(told.stream == stream.handle);
    CHECK((told.grid[0] == 4 && told.block[0] == 32));
    CHECK(told.attributes.at(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim.x == 2);
    CHECK((told.args == args) == take);
    CHECK(args[0] == &first);
    CHECK((args[1] == &array) != take);
    void* address = nullptr;
    if (take) std::memcpy(&address, args[1], sizeof address);
    return address;
  };
  CHECK(pass(own, true) == array);
  pass(own, false);
  // The default stream is another context's, so the driver is asked twice.
  const int before = fake.count("cuLaunchKernelEx");
  CHECK(pass({}, true) == array);
  CHECK(fake.count("cuLaunchKernelEx") == before + 2);
  CHECK(fake.launches.size() == 3);
  CHECK(fake.maps.size() == 1);
  CHECK(fake.depth() == 0);
  CHECK(fake.misuse.empty());

  fake.fail_call = "cuLaunchKernelEx";
  fake.code = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  void* args[] = {&first, &array};
  CHECK_THROWS_AS(fixed->take(launch, own, args), EnvironmentError);
  CHECK(fake.count("cuLaunchKernelEx") == before + 3);  // an error of another kind: once
}

TEST_CASE("an older driver says which call it lacks", "[runtime][cuda]") {
  FakeDriver fake;
  DriverTable older = *fake.table();
  older.LaunchKernelEx = nullptr;
  older.TensorMapEncodeTiled = nullptr;
  const auto device = make_cuda_device(std::make_shared<const DriverTable>(older), 0);
  const auto kernel = device->load(plain_binary(), {});
  try {
    device->launch(*kernel, {.grid = {2}, .block = {32}, .cluster = {2}}, {}, nullptr);
    FAIL("accepted");
  } catch (const EnvironmentError& error) {
    CHECK(mentions(error, "cuLaunchKernelEx"));
  }
  CHECK_THROWS_AS(device->encode({}, nullptr), EnvironmentError);
}

TEST_CASE("reserved multiprocessors lessen what launches may use", "[runtime][cuda]") {
  FakeDriver fake;
  const DeviceInfo whole = make_cuda_device(fake.table(), 0)->info();
  const DeviceInfo part = make_cuda_device(fake.table(), 0, 16)->info();
  CHECK(whole.limits.usable_multiprocessors() == 132);
  CHECK(part.limits.multiprocessors == 132);
  CHECK(part.limits.usable_multiprocessors() == 116);
  CHECK(part.limits.resident_clusters(2) == 58);
  CHECK(whole.fingerprint != part.fingerprint);
  CHECK_THROWS_AS(make_cuda_device(fake.table(), 0, 132), UserError);
  CHECK_THROWS_AS(make_cuda_device(fake.table(), 0, -1), UserError);
}
