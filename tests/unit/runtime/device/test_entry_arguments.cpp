// Maps in place of pointers: what is encoded, what is copied, what is refused.
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "runtime/device/entry_arguments.hpp"
#include "runtime/device/host_memory_device.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

/// Encodes a map as its address, and counts.
class MappingDevice final : public HostMemoryDevice {
 public:
  const DeviceInfo& info() const noexcept override { return info_; }
  std::shared_ptr<Module> load(const codegen::Binary&, const Launch&,
                               std::span<const Launch>) override {
    return nullptr;
  }
  void launch(const Module&, const Launch&, Stream, void**) const override {}
  int occupancy(const Module&, int, unsigned) const override { return 1; }
  void* allocate(std::size_t) override { return nullptr; }
  void synchronize(Stream) override {}
  Stream tuning_stream() override { return {}; }
  double time(Stream, const std::function<void()>&) override { return 0; }
  bool shares_cpu() const noexcept override { return true; }
  EncodedMap encode(const TensorMap&, void* address) const override {
    ++encoded;
    EncodedMap map;
    put(map, address);
    return map;
  }
  void move(EncodedMap& map, void* address) const override {
    ++moved;
    put(map, address);
  }

  mutable std::atomic<int> encoded{0}, moved{0};
  /// What the device does with an address besides keeping it.
  enum class Also { nothing, checksum, keeps_high_bits_apart, refuses } also = Also::nothing;

 private:
  void put(EncodedMap& map, void* address) const {
    const auto number = reinterpret_cast<std::uintptr_t>(address);
    std::uintptr_t low = number, high = 0;
    if (also == Also::checksum) high = number * 31;
    if (also == Also::keeps_high_bits_apart) low &= 0xffff'ffff, high = number >> 32;
    if (also == Also::refuses && number >> 32 != 0) throw EnvironmentError("an unknown address");
    std::memcpy(map.bytes.data(), &low, sizeof low);
    std::memcpy(map.bytes.data() + 64, &high, sizeof high);
  }

  DeviceInfo info_;
};

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

/// What a map stands for.
void* address_in(const void* map) {
  void* address;
  std::memcpy(&address, map, sizeof address);
  return address;
}

/// Arguments 0 and 2 are maps, 1 and 3 are passed on.
std::vector<detail::PlannedMap> two_maps() {
  const auto map = TensorMap::tiled<float>({.size = {64, 64}, .box = {32, 8}});
  return {{0, map}, {2, map}};
}

struct Passed {
  Passed(void* a, void* b) : first(a), third(b) {}
  Passed& operator=(const Passed& other) {  // its arguments stay its own
    first = other.first, third = other.third;
    return *this;
  }

  void *first, *third;
  int second = 5, fourth = 7;
  std::array<void*, 4> arguments{&first, &second, &third, &fourth};
};

}  // namespace

TEST_CASE("maps are encoded once, and copied only for other pointers", "[runtime][maps]") {
  const MappingDevice device;
  const EntryArguments entry(device, two_maps(), 4);
  Passed passed{at(0x1000), at(0x2000)};
  const void* first_map = nullptr;
  entry.with(passed.arguments.data(), nullptr, [&](void** args) {
    CHECK(address_in(args[0]) == at(0x1000));
    CHECK(args[1] == &passed.second);
    CHECK(address_in(args[2]) == at(0x2000));
    CHECK(args[3] == &passed.fourth);
    CHECK(reinterpret_cast<std::uintptr_t>(args[0]) % 64 == 0);
    first_map = args[0];
  });
  CHECK(device.encoded == 2);
  entry.with(passed.arguments.data(), nullptr, [&](void** args) { CHECK(args[0] == first_map); });
  CHECK(device.encoded == 2);
  device.moved = 0;  // of what showed where the address is

  passed.third = at(0x3000);
  entry.with(passed.arguments.data(), nullptr, [&](void** args) {
    CHECK(args[0] == first_map);
    CHECK(address_in(args[2]) == at(0x3000));
    CHECK(reinterpret_cast<std::uintptr_t>(args[2]) % 64 == 0);
  });
  CHECK((device.encoded == 2 && device.moved == 0));
  passed.third = at(0x2000);  // what was encoded is as it was
  entry.with(passed.arguments.data(), nullptr,
             [&](void** args) { CHECK(address_in(args[2]) == at(0x2000)); });
  CHECK(device.moved == 0);
}

TEST_CASE("maps take the places of pointers in the launch's own array", "[runtime][maps]") {
  const MappingDevice device;
  const EntryArguments entry(device, two_maps(), 4);
  Passed passed{at(0x1000), at(0x2000)};
  const auto launch = [&](const auto& look) {
    std::array<void*, 4> own = passed.arguments;
    bool used = false;
    entry.in_place(own.data(), [&](void** args) {
      REQUIRE(args == own.data());
      CHECK(address_in(args[0]) == passed.first);
      CHECK(args[1] == &passed.second);
      CHECK(address_in(args[2]) == passed.third);
      CHECK(args[3] == &passed.fourth);
      for (const int map : {0, 2}) CHECK(reinterpret_cast<std::uintptr_t>(args[map]) % 64 == 0);
      look(args);
      used = true;
    });
    CHECK(used);
  };
  std::array<void*, 2> held{};
  launch([&](void** args) { held = {args[0], args[2]}; });
  launch([&](void** args) { CHECK((args[0] == held[0] && args[2] == held[1])); });
  passed.third = at(0x3000);
  launch([&](void** args) { CHECK((args[0] == held[0] && args[2] != held[1])); });
  passed = {at(0x4000), at(0x2000)};
  launch([&](void** args) { CHECK((args[0] != held[0] && args[2] == held[1])); });
  passed = {at(0x2000), at(0x1000)};
  launch([&](void** args) { CHECK((args[0] != held[0] && args[2] != held[1])); });
  passed = {at(0x1000), at(0x2000)};  // what is held is as it was
  launch([&](void** args) { CHECK((args[0] == held[0] && args[2] == held[1])); });
  CHECK(device.encoded == 2);

  passed.third = at(0x3004);
  std::array<void*, 4> own = passed.arguments;
  CHECK_THROWS_AS(entry.in_place(own.data(), [](void**) {}), UserError);
}

TEST_CASE("the arguments of an entry can be moved before their first launch", "[runtime][maps]") {
  const MappingDevice device;
  EntryArguments first(device, two_maps(), 4);
  const EntryArguments entry(std::move(first));
  Passed passed{at(0x1000), at(0x2000)};
  entry.with(passed.arguments.data(), nullptr, [&](void** args) {
    CHECK((address_in(args[0]) == at(0x1000) && address_in(args[2]) == at(0x2000)));
    CHECK((args[1] == &passed.second && args[3] == &passed.fourth));
  });
  CHECK(device.encoded == 2);
}

TEST_CASE("the device moves a map that holds more of its address than the address",
          "[runtime][maps]") {
  using Also = MappingDevice::Also;
  for (const Also also : {Also::checksum, Also::keeps_high_bits_apart, Also::refuses}) {
    CAPTURE(static_cast<int>(also));
    MappingDevice device;
    device.also = also;
    const EntryArguments entry(device, two_maps(), 4);
    Passed passed{at(0x1000), at(0x2000)};
    entry.with(passed.arguments.data(), nullptr, [](void**) {});
    device.moved = 0;
    passed.third = at(0x3000);
    const auto look = [&](void** args) {
      EncodedMap expected = device.encode({}, at(0x3000));
      CHECK(std::memcmp(args[2], &expected, sizeof expected) == 0);
    };
    entry.with(passed.arguments.data(), nullptr, look);
    CHECK(device.moved == 1);
    entry.in_place(passed.arguments.data(), look);
    CHECK(device.moved == 2);
  }
}

TEST_CASE("the workspace is behind all arguments", "[runtime][maps][workspace]") {
  const MappingDevice device;
  int first = 1, second = 2;
  void* passed[] = {&first, &second};
  const EntryArguments plain(device, {}, 2);
  const Workspace workspace{&first, nullptr};
  bool used = false;
  plain.with(passed, &workspace, [&](void** args) {
    CHECK((args[0] == &first && args[1] == &second));
    CHECK(static_cast<Workspace*>(args[2])->scratch == &first);
    used = true;
  });
  CHECK(used);
  plain.with(passed, nullptr, [&](void** args) { CHECK(args == passed); });
}

TEST_CASE("a pointer that no map can take is named", "[runtime][maps]") {
  const MappingDevice device;
  const EntryArguments entry(device, two_maps(), 4);
  Passed passed{at(0x1000), at(0x2008)};
  bool used = false;
  try {
    entry.with(passed.arguments.data(), nullptr, [&](void**) { used = true; });
    FAIL("accepted");
  } catch (const UserError& error) {
    CHECK(std::string(error.what()).find("argument 2 is not aligned to 16 bytes") == 0);
  }
  CHECK_FALSE(used);
  passed.third = at(0x2010);
  entry.with(passed.arguments.data(), nullptr, [&](void**) { used = true; });
  CHECK(used);
  passed.third = at(0x3004);  // where the maps are made already
  CHECK_THROWS_AS(entry.with(passed.arguments.data(), nullptr, [](void**) {}), UserError);
}

TEST_CASE("entries of many arguments get all of them", "[runtime][maps]") {
  const MappingDevice device;
  const std::size_t count = 100;
  const auto map = TensorMap::tiled<float>({.size = {64}, .box = {32}});
  const EntryArguments entry(device, {{99, map}}, count);
  std::vector<void*> values(count, at(0x40)), arguments;
  for (void*& value : values) arguments.push_back(&value);
  entry.with(arguments.data(), nullptr, [&](void** args) {
    for (std::size_t i = 0; i + 1 < count; ++i) CHECK(args[i] == &values[i]);
    CHECK(address_in(args[99]) == at(0x40));
  });
}

TEST_CASE("threads share the maps", "[runtime][maps][threads]") {
  const MappingDevice device;
  const EntryArguments entry(device, two_maps(), 4);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uintptr_t t = 1; t <= 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        Passed passed{at(t * 0x1000), at(0x9000)};
        const auto look = [&](void** args) {
          wrong += address_in(args[0]) != at(t * 0x1000) || address_in(args[2]) != at(0x9000);
        };
        entry.with(passed.arguments.data(), nullptr, look);
        entry.in_place(passed.arguments.data(), look);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
