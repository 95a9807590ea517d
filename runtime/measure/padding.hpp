// Padding between the rows of an array (kiln::Rows): what it holds, and whether it still does.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/workload.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// What follows each row. Of inputs: NaNs where the elements are floating-point numbers. Of arrays
/// that are written: bytes that no computation leaves there. Empty for arrays without padding.
std::vector<std::byte> padding_of(const Workload::Argument& argument);

/// Elements that belong to rows; of other types than numbers, bytes.
std::size_t compared_elements(const Workload::Argument& argument) noexcept;

/// The first element of an array's padding that is not what `padding` says. Waits for the device's
/// tuning stream.
std::optional<std::size_t> changed_padding(Device& device, const void* memory,
                                           const Workload::Argument& argument,
                                           std::span<const std::byte> padding);
/// Writes the padding of all rows.
void write_padding(Device& device, void* memory, const Workload::Argument& argument,
                   std::span<const std::byte> padding);

/// `wrote element 107 of argument 0, in the padding after row 1`.
std::string describe_padding(std::size_t element, std::size_t argument_index,
                             const Workload::Argument& argument);

}  // namespace kiln::runtime
