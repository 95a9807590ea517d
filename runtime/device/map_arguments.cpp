#include "runtime/device/map_arguments.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

/// Never changed once published.
struct MapArguments::Encoded {
  std::array<void*, kMaxMaps> addresses;
  std::array<EncodedMap, kMaxMaps> maps;
};

MapArguments::MapArguments(const Device& device, std::vector<detail::PlannedMap> maps,
                           std::size_t arguments)
    : device_(device), maps_(std::move(maps)), count_(arguments) {}

MapArguments::~MapArguments() { delete encoded_.load(std::memory_order_acquire); }

void* MapArguments::address(std::size_t map, void* const* args) const {
  void* address;
  std::memcpy(&address, args[maps_[map].argument], sizeof address);
  if (reinterpret_cast<std::uintptr_t>(address) % kTensorMapAlignment != 0)
    throw UserError(detail::format(
        "argument {} is not aligned to {} bytes, as the tensor map that this config makes of it "
        "must be",
        maps_[map].argument, kTensorMapAlignment));
  return address;
}

const MapArguments::Encoded& MapArguments::encoded(void* const* args) const {
  if (const Encoded* known = encoded_.load(std::memory_order_acquire)) return *known;
  auto made = std::make_unique<Encoded>();
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    made->addresses[i] = address(i, args);
    made->maps[i] = device_.encode(maps_[i].map, made->addresses[i]);
  }
  const Encoded* first = nullptr;
  if (encoded_.compare_exchange_strong(first, made.get(), std::memory_order_acq_rel))
    return *made.release();
  return *first;  // another thread was faster
}

void MapArguments::fill(Entry& entry, void* const* args) const {
  const Encoded& known = encoded(args);
  void** const arguments = entry.arguments();
  std::memcpy(arguments, args, count_ * sizeof *arguments);
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    void* const there = address(i, args);
    const EncodedMap* map = &known.maps[i];
    if (there != known.addresses[i]) {
      EncodedMap& own = entry.map(i);
      std::memcpy(static_cast<void*>(&own), map, sizeof own);
      device_.move(own, there);
      map = &own;
    }
    arguments[maps_[i].argument] = const_cast<EncodedMap*>(map);
  }
}

}  // namespace kiln::runtime
