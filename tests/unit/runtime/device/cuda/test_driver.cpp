#include <cstdlib>

#include "fake_driver.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_device.hpp"

using namespace kiln;
using namespace kiln::runtime;

TEST_CASE("a refused call names itself, the code, the description and what to do",
          "[runtime][cuda]") {
  FakeDriver fake;
  const auto driver = fake.table();
  CHECK_NOTHROW(driver->check(CUDA_SUCCESS, "cuAnything"));
  try {
    driver->check(CUDA_ERROR_NO_BINARY_FOR_GPU, "cuModuleLoadData");
    FAIL("accepted");
  } catch (const EnvironmentError& e) {
    CHECK(std::string(e.what()) ==
          "cuModuleLoadData failed: CUDA_ERROR_NO_BINARY_FOR_GPU (209): described. Compile for "
          "exactly this device's architecture.");
  }
  const std::string unknown = driver->describe(static_cast<CUresult>(4711), "cuX");
  CHECK(unknown.find("4711") != std::string::npos);
  CHECK(unknown.find("unknown error") != std::string::npos);
  for (CUresult fault : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ASSERT,
                         CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS}) {
    CHECK(driver->describe(fault, "cuX").find("restart the process") != std::string::npos);
  }
}

TEST_CASE("whether there is a driver or not, asking for it does not throw", "[runtime][cuda]") {
  const CudaProbe probe = probe_cuda();
  CHECK((probe.devices > 0) == (probe.driver && probe.reason.empty()));
  if (probe.driver) {
    CHECK(probe.driver_version.find('.') != std::string::npos);
  } else {
    CHECK(probe.devices == 0);
    CHECK(!probe.reason.empty());
  }
}

TEST_CASE("a driver that cannot be used says why", "[runtime][cuda]") {
  DriverProbe probe = open_driver("/nonexistent/libcuda.so.1");
  CHECK_FALSE(probe.driver);
  CHECK(probe.reason.find("/nonexistent/libcuda.so.1") != std::string::npos);
  probe = open_driver("libm.so.6");
  CHECK_FALSE(probe.driver);
  CHECK(probe.reason.find("older than CUDA 12.0") != std::string::npos);

  // Where the build put the two libraries; absent when the executable is run by hand.
  const char* without_device = std::getenv("KILN_TEST_DRIVER_WITHOUT_DEVICE");
  const char* without_launch = std::getenv("KILN_TEST_DRIVER_WITHOUT_LAUNCH");
  if (!without_device || !without_launch)
    KILN_SKIP("unusable drivers are tried when `meson test` runs this");
  probe = open_driver(without_device);
  CHECK_FALSE(probe.driver);
  CHECK(probe.reason.find("cuInit failed: CUDA_ERROR_NO_DEVICE (100)") != std::string::npos);
  CHECK(probe.reason.find("CUDA_VISIBLE_DEVICES") != std::string::npos);
  probe = open_driver(without_launch);
  CHECK_FALSE(probe.driver);
  CHECK(probe.reason.find("has no cuLaunchKernel") != std::string::npos);
}
