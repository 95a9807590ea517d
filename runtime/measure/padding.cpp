#include "runtime/measure/padding.hpp"

#include <algorithm>

#include "kiln/detail/format.hpp"
#include "runtime/device/guarded_memory.hpp"

namespace kiln::runtime {

namespace {

std::size_t rows_of(const Workload::Argument& argument) noexcept {
  return argument.count == 0 ? 0 : (argument.count - argument.columns) / argument.leading + 1;
}

}  // namespace

std::vector<std::byte> padding_of(const Workload::Argument& argument) {
  if (!argument.padded() || argument.count == 0) return {};
  std::vector<std::byte> bytes((argument.leading - argument.columns) * argument.element_bytes);
  const bool read = argument.direction == Direction::in;
  const bool fp8 = argument.type == DataType::fp8_e4m3 || argument.type == DataType::fp8_e5m2;
  // Not the NaNs of inputs: a kernel that computes between the rows, too, hands these on.
  const auto pattern = guard_pattern(read && argument.element_bytes % 2 == 0 ? GuardPattern::nan
                                                                             : GuardPattern::bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] =
        read && fp8 ? (i % 2 ? std::byte{0xff} : std::byte{0x7f}) : pattern[i % pattern.size()];
  return bytes;
}

std::size_t compared_elements(const Workload::Argument& argument) noexcept {
  const std::size_t elements =
      argument.padded() ? rows_of(argument) * argument.columns : argument.count;
  return argument.type == DataType::bytes ? elements * argument.element_bytes : elements;
}

std::optional<std::size_t> changed_padding(Device& device, const void* memory,
                                           const Workload::Argument& argument,
                                           std::span<const std::byte> padding) {
  if (padding.empty() || rows_of(argument) < 2) return {};
  const std::size_t row = argument.columns * argument.element_bytes,
                    stride = argument.leading * argument.element_bytes;
  const auto* const first = static_cast<const std::byte*>(memory) + row;
  const auto changed = first_change(device, first, argument.bytes.size() - row, stride, padding);
  if (!changed) return {};
  return (row + *changed) / argument.element_bytes;
}

void write_padding(Device& device, void* memory, const Workload::Argument& argument,
                   std::span<const std::byte> padding) {
  const std::size_t row = argument.columns * argument.element_bytes,
                    stride = argument.leading * argument.element_bytes;
  for (std::size_t r = 0; r + 1 < rows_of(argument); ++r)
    device.copy_to_device(static_cast<std::byte*>(memory) + r * stride + row, padding.data(),
                          padding.size());
}

std::string describe_padding(std::size_t element, std::size_t argument_index,
                             const Workload::Argument& argument) {
  return detail::format("wrote element {} of argument {}, in the padding after row {}", element,
                        argument_index, element / argument.leading);
}

}  // namespace kiln::runtime
