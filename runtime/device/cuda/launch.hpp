// Internal: launches with attributes, and tensor maps, as the driver takes them. Includes cuda.h.
#pragma once

#include "runtime/device/cuda/driver.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// Whether a launch is more than a grid and a block.
inline bool has_attributes(const Launch& launch) noexcept {
  return launch.cluster != Dim3{} || launch.cooperative || launch.programmatic;
}

/// What a function must be told once so that it can be launched like this.
/// @param static_shared the function's own shared memory, in bytes
/// @throws UserError when the device cannot hold one cluster, EnvironmentError when the driver
/// refuses
void prepare_function(const DriverTable& driver, CUfunction function, int static_shared,
                      const Launch& launch, const DeviceLimits& limits);

/// By cuLaunchKernelEx. Takes no lock and allocates nothing.
/// @throws EnvironmentError when the driver refuses or does not know the call
void launch_with_attributes(const DriverTable& driver, CUfunction function, const Launch& launch,
                            CUstream stream, void** args);

/// As Device::encode and Device::move.
EncodedMap encode_map(const DriverTable& driver, const TensorMap& map, void* address);
void move_map(const DriverTable& driver, EncodedMap& map, void* address);

}  // namespace kiln::runtime
