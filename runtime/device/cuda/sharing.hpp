// What another process must know of a CUDA device to use it beside this one.
#pragma once

#include <string>

namespace kiln::runtime {

struct DriverTable;

/// The device's PCI address: the same in every process, whatever devices the process is shown.
/// @throws EnvironmentError
std::string cuda_place(const DriverTable& driver, int ordinal);

/// Why a process cannot have a context of its own there whose faults leave other processes alone;
/// empty: it can. @throws EnvironmentError
std::string cuda_sharing_obstacle(const DriverTable& driver, int ordinal);

}  // namespace kiln::runtime
