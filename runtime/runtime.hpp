// Names to devices: the only place that knows which there are.
#pragma once

#include <memory>
#include <string>

#include "kiln/log.hpp"
#include "runtime/device/caller_allocator.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// `auto`: the first CUDA device if it can be used, else the host. `host`, `cuda` (= `cuda:0`),
/// `cuda:N`, `recorded:FILE` (a T4 results file). CUDA and host devices allocate by `allocator`, if
/// there is one.
/// @throws UserError on any other name; EnvironmentError when that device is not there.
std::shared_ptr<Device> open_device(const std::string& name, const LogSink& log,
                                    int reserved_multiprocessors = 0,
                                    CallerAllocator allocator = {});

}  // namespace kiln::runtime
