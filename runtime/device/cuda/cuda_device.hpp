// CUDA devices behind Kiln's device interface.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/caller_allocator.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

struct DriverTable;

/// What the driver offers. No driver and no device are ordinary outcomes.
struct CudaProbe {
  std::shared_ptr<const DriverTable> driver;  ///< null when there is none
  int devices = 0;
  std::string driver_version;  ///< e.g. `13.0`
  std::string reason;          ///< when `devices` is 0: why, and what to do
};

/// Opens the driver and counts its devices. Never throws on account of either.
CudaProbe probe_cuda();

/// The device `cuda:ordinal` of this driver (or of the table that a test supplies).
/// Memory comes from `allocator` if there is one. @throws EnvironmentError when the driver refuses.
std::shared_ptr<Device> make_cuda_device(std::shared_ptr<const DriverTable> driver, int ordinal,
                                         int reserved_multiprocessors = 0,
                                         CallerAllocator allocator = {});

}  // namespace kiln::runtime
