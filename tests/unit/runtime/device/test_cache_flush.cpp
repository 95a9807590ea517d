#include <cstring>
#include <set>

#include "kiln_test.hpp"
#include "runtime/device/cache_flush.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using kiln::runtime::CacheFlush;

namespace {

constexpr std::int64_t kCache = 1 << 16;

struct Flushed {
  test::Bench bench;
  std::vector<std::size_t> fills;  ///< bytes of each

  explicit Flushed(std::int64_t cache = kCache, std::int64_t memory = 0) {
    bench.device->info().limits.l2_bytes = cache;
    bench.device->info().limits.memory_bytes = memory;
    bench.device->on_fill = [this](void*, std::size_t bytes) { fills.push_back(bytes); };
  }
};

}  // namespace

TEST_CASE("a flush covers the cache twice, within an eighth of the memory", "[runtime][flush]") {
  const auto filled = [](Flushed device, auto... most) {
    CacheFlush flush(device.bench.device, std::size_t{most}...);
    CHECK(flush);
    flush.run({});
    REQUIRE(device.fills.size() == 1);
    return device.fills[0];
  };
  CHECK(filled(Flushed()) == 2 * kCache);
  CHECK(filled(Flushed(kCache, 64 * kCache)) == 2 * kCache);
  CHECK(filled(Flushed(kCache, 8 * kCache)) == kCache);
  CHECK(filled(Flushed(), 1000u) == 1000);
}

TEST_CASE("each flush writes other contents than the one before", "[runtime][flush]") {
  Flushed device;
  void* scratch = nullptr;
  device.bench.device->on_fill = [&](void* at, std::size_t) { scratch = at; };
  CacheFlush flush(device.bench.device);
  std::set<unsigned char> values;
  for (int i = 0; i < 3; ++i) {
    flush.run({});
    values.insert(*static_cast<unsigned char*>(scratch));
  }
  CHECK(values.size() == 3);
}

TEST_CASE("a flush of nothing does nothing", "[runtime][flush]") {
  Flushed device(0);
  CacheFlush none, unknown(device.bench.device);
  CHECK_FALSE(none);
  CHECK_FALSE(unknown);
  none.run({});
  unknown.run({});
  CHECK(device.fills.empty());
}
