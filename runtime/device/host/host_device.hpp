// The CPU as a device: blocks across cores, memory is memory, no streams.
#pragma once

#include <memory>

#include "runtime/device/caller_allocator.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// The machine this process runs on. Never fails: whether kernels can be compiled for it is the
/// compiler's matter. Memory comes from `allocator` if there is one.
std::shared_ptr<Device> make_host_device(CallerAllocator allocator = {});

/// Its description, without making a device.
DeviceInfo host_info();

}  // namespace kiln::runtime
