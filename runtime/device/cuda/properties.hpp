// Internal: what the driver says of a device. Includes cuda.h.
#pragma once

#include <string>

#include "kiln/device.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"

namespace kiln::runtime {

/// `13.0` for 13000.
std::string version_text(int version);

/// The device of the context, which is called `cuda:ordinal`.
/// @throws UserError when it does not have that many multiprocessors to reserve, EnvironmentError
/// when the driver refuses
DeviceInfo read_device_info(const CudaContext& context, int ordinal, int reserved_multiprocessors);

}  // namespace kiln::runtime
