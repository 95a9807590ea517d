#include "runtime/device_workload.hpp"

#include <algorithm>

namespace kiln::runtime {

DeviceWorkload::DeviceWorkload(const KernelDefinition& kernel,
                               std::span<const std::int64_t> problem,
                               std::shared_ptr<Device> device, std::uint64_t seed)
    : kernel_(kernel), device_(std::move(device)), host_(seed) {
  kernel.workload(problem, host_);
  check_workload(kernel, host_);
  auto& arguments = host_.arguments();
  arrays_.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    Workload::Argument& a = arguments[i];
    if (!a.pointer) {
      addresses_.push_back(a.bytes.data());
      continue;
    }
    arrays_.push_back({i, DeviceMemory(device_, a.bytes.size()), {}, nullptr});
    Array& array = arrays_.back();
    array.address = array.memory.data();
    addresses_.push_back(&array.address);
    if (a.direction == Direction::out || a.bytes.empty()) continue;
    device_->copy_to_device(array.address, a.bytes.data(), a.bytes.size());
    if (a.direction == Direction::in_out) {
      has_in_out_ = true;
      array.pristine = DeviceMemory(device_, a.bytes.size());
      device_->copy_to_device(array.pristine.data(), a.bytes.data(), a.bytes.size());
    }
  }
  if (kernel.reference) {
    run_reference(kernel, problem, host_);
    expected_known_ = true;
    choose_poison();
  }
}

/// All ones is a NaN in every floating-point type, but it is also -1, and a reference may expect
/// NaNs: takes a byte with which every element that nobody writes would be wrong.
void DeviceWorkload::choose_poison() {
  for (Array& array : arrays_) {
    const Workload::Argument& argument = host_.arguments()[array.argument];
    if (argument.direction != Direction::out) continue;
    for (const std::byte poison :
         {std::byte{0xff}, std::byte{0x5a}, std::byte{0xa5}, std::byte{0x7e}, std::byte{0x03}}) {
      const std::vector<std::byte> unwritten(argument.bytes.size(), poison);
      const std::size_t elements =
          argument.type == DataType::bytes ? unwritten.size() : argument.count;
      array.poison = poison;
      if (compare(argument, unwritten, argument.bytes, kernel_.tolerance).mismatches == elements)
        break;
    }
  }
}

void DeviceWorkload::restore(Stream stream) {
  for (Array& array : arrays_)
    if (array.pristine.bytes())
      device_->copy_on_device(array.address, array.pristine.data(), array.pristine.bytes(), stream);
}

void DeviceWorkload::run(Stream stream, const std::function<void()>& launch) {
  for (Array& array : arrays_)
    if (host_.arguments()[array.argument].direction == Direction::out && array.memory.bytes())
      device_->fill(array.address, array.poison, array.memory.bytes(), stream);
  restore(stream);
  launch();
  device_->synchronize(stream);
}

DeviceWorkload::Verdict DeviceWorkload::verify(Stream stream, const std::function<void()>& launch) {
  run(stream, launch);
  if (expected_known_) return judge();
  for (Array& array : arrays_) {
    Workload::Argument& argument = host_.arguments()[array.argument];
    if (argument.direction != Direction::in && !argument.bytes.empty())
      device_->copy_to_host(argument.bytes.data(), array.address, argument.bytes.size());
  }
  // Another poison: where nobody writes, the second launch differs from the first.
  choose_poison();
  run(stream, launch);
  const Verdict verdict = judge();
  expected_known_ = verdict.right;
  return verdict;
}

DeviceWorkload::Verdict DeviceWorkload::judge() {
  Verdict verdict;
  std::vector<std::byte> got;
  for (Array& array : arrays_) {
    const Workload::Argument& argument = host_.arguments()[array.argument];
    if (argument.direction == Direction::in || argument.bytes.empty()) continue;
    got.resize(argument.bytes.size());
    device_->copy_to_host(got.data(), array.address, got.size());
    const Comparison comparison = compare(argument, got, argument.bytes, kernel_.tolerance);
    verdict.max_error = std::max(verdict.max_error, comparison.max_error);
    if (!comparison.passes() && verdict.right) {
      verdict.right = false;
      verdict.why = describe(comparison, array.argument, argument, got, argument.bytes);
    }
  }
  return verdict;
}

}  // namespace kiln::runtime
