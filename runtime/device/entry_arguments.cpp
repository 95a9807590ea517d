#include "runtime/device/entry_arguments.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

namespace {

/// Where a map holds its address as it is; -1 where moving the map changes anything else. A device
/// that moves a map shows it: both of these addresses together differ from `address` in every bit
/// that an aligned address of 48 bits may have.
std::int16_t address_in(const EncodedMap& map, const Device& device, void* address) {
  std::ptrdiff_t found = -1;
  for (const std::uintptr_t bits :
       {std::uintptr_t{0x5555'5555'5550}, std::uintptr_t{0x2aaa'aaaa'aaa0}}) {
    void* const other = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) ^ bits);
    EncodedMap moved = map;
    try {
      device.move(moved, other);
    } catch (const EnvironmentError&) {
      return -1;
    }
    if (found < 0) {
      const auto differs = std::mismatch(map.bytes.begin(), map.bytes.end(), moved.bytes.begin());
      found = (differs.first - map.bytes.begin()) / sizeof address * sizeof address;
      if (differs.first == map.bytes.end()) return -1;
    }
    EncodedMap expected = map;
    std::memcpy(expected.bytes.data() + found, &other, sizeof other);
    if (expected.bytes != moved.bytes) return -1;
  }
  return static_cast<std::int16_t>(found);
}

}  // namespace

EntryArguments::EntryArguments(const Device& device, std::vector<detail::PlannedMap> maps,
                               std::size_t arguments)
    : device_(device), maps_(std::move(maps)), count_(arguments) {}

EntryArguments::EntryArguments(EntryArguments&& other) noexcept
    : device_(other.device_), maps_(std::move(other.maps_)), count_(other.count_) {}

EntryArguments::~EntryArguments() { delete encoded_.load(std::memory_order_acquire); }

void EntryArguments::not_aligned(std::size_t argument) {
  throw UserError(detail::format(
      "argument {} is not aligned to {} bytes, as the tensor map that this config makes of it "
      "must be",
      argument, kTensorMapAlignment));
}

const EntryArguments::Encoded& EntryArguments::encode(void* const* args) const {
  auto made = std::make_unique<Encoded>();
  made->count = static_cast<std::uint32_t>(maps_.size());
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    const std::size_t argument = maps_[i].argument;
    void* const address = pointer_in(args[argument]);
    if (reinterpret_cast<std::uintptr_t>(address) % kTensorMapAlignment != 0) not_aligned(argument);
    made->maps[i] = device_.encode(maps_[i].map, address);
    made->arguments[i] = static_cast<std::uint16_t>(argument);
    made->addresses[i] = address;
    made->address_at[i] = address_in(made->maps[i], device_, address);
  }
  const Encoded* first = nullptr;
  if (encoded_.compare_exchange_strong(first, made.get(), std::memory_order_acq_rel))
    return *made.release();
  return *first;  // another thread was faster
}

void EntryArguments::fill(void** entry_args, EncodedMaps& own, void* const* args,
                          const Workspace* workspace) const {
  std::memcpy(entry_args, args, count_ * sizeof *entry_args);
  if (workspace) entry_args[count_] = const_cast<Workspace*>(workspace);
  if (maps_.empty()) return;
  const Encoded* ready = encoded_.load(std::memory_order_acquire);
  const Encoded& known = ready ? *ready : encode(args);
  for (std::size_t i = 0; i < known.count; ++i) {
    const std::size_t argument = known.arguments[i];
    void* const address = pointer_in(args[argument]);
    entry_args[argument] =
        address == known.addresses[i] ? known.map(i) : moved(known, i, address, own);
  }
}

}  // namespace kiln::runtime
