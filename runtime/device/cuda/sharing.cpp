#include "runtime/device/cuda/sharing.hpp"

#include "kiln/detail/format.hpp"
#include "runtime/device/cuda/driver.hpp"

namespace kiln::runtime {

namespace {

/// CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers lack.
constexpr auto kMpsEnabled = static_cast<CUdevice_attribute>(133);

CUdevice device_of(const DriverTable& driver, int ordinal) {
  CUdevice device = 0;
  driver.check(driver.DeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

int attribute(const DriverTable& driver, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  driver.check(driver.DeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

}  // namespace

std::string cuda_place(const DriverTable& driver, int ordinal) {
  const CUdevice device = device_of(driver, ordinal);
  return detail::format("{:04x}:{:02x}:{:02x}",
                        attribute(driver, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device),
                        attribute(driver, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device),
                        attribute(driver, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device));
}

std::string cuda_sharing_obstacle(const DriverTable& driver, int ordinal) {
  const CUdevice device = device_of(driver, ordinal);
  if (attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device) != CU_COMPUTEMODE_DEFAULT)
    return "the device's compute mode allows one process only (nvidia-smi --compute-mode=0 lets "
           "several use it)";
  int shared = 0;
  // Drivers that do not know the attribute refuse it.
  if (driver.DeviceGetAttribute(&shared, kMpsEnabled, device) == CUDA_SUCCESS && shared != 0)
    return "processes share the device through MPS, which shares their faults, too";
  return {};
}

}  // namespace kiln::runtime
