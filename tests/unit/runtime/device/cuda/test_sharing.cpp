// What another process needs to know of a CUDA device, and where it may not use it.
#include "fake_driver.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/sharing.hpp"

using namespace kiln::runtime;

namespace {

constexpr auto kMps = static_cast<CUdevice_attribute>(133);

struct Usual : FakeDriver {
  Usual() {
    attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = CU_COMPUTEMODE_DEFAULT;
    attributes[kMps] = 0;
  }
};

}  // namespace

TEST_CASE("a device is found by its place", "[runtime][cuda][sharing]") {
  Usual fake;
  fake.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = 1;
  fake.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = 0x1b;
  fake.attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] = 0;
  const auto table = fake.table();
  CHECK(cuda_place(*table, 0) == "0001:1b:00");
  fake.fail_call = "cuDeviceGetAttribute";
  CHECK_THROWS_AS(cuda_place(*table, 0), kiln::EnvironmentError);
  CHECK(fake.count("cuDevicePrimaryCtxRetain") == 0);
}

TEST_CASE("a device that one process has for itself, or that shares faults, is not shared",
          "[runtime][cuda][sharing]") {
  Usual fake;
  const auto table = fake.table();
  CHECK(cuda_sharing_obstacle(*table, 0).empty());
  for (const int mode : {CU_COMPUTEMODE_EXCLUSIVE_PROCESS, CU_COMPUTEMODE_PROHIBITED}) {
    fake.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = mode;
    CHECK(cuda_sharing_obstacle(*table, 0).find("compute mode") != std::string::npos);
  }
  fake.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = CU_COMPUTEMODE_DEFAULT;
  fake.attributes[kMps] = 1;
  CHECK(cuda_sharing_obstacle(*table, 0).find("MPS") != std::string::npos);
}
