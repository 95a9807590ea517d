// Copies that keep the cache cold. What verification does is in test_verify.cpp, and in
// tune/test_tuner.cpp.
#include <set>

#include "kiln_test.hpp"
#include "runtime/measure/device_workload.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Bench;
using kiln::test::doubling;

namespace {

constexpr std::int64_t kElements = 1024;  // 4 KB, and so is the stride of copies
constexpr std::size_t kSet = 2 * 4096;

struct Data {
  Bench bench;
  KernelDefinition kernel = doubling();
  Values problem{kElements};
  DeviceWorkload workload;

  explicit Data(std::int64_t cache, bool in_out = false, bool host = false,
                std::int64_t memory_bytes = 0)
      : workload(prepared(bench, kernel, cache, in_out, host, memory_bytes), problem, bench.device,
                 1) {}

  static const KernelDefinition& prepared(Bench& bench, KernelDefinition& kernel,
                                          std::int64_t cache, bool in_out, bool host,
                                          std::int64_t memory_bytes) {
    bench.device->info().limits.l2_bytes = cache;
    bench.device->info().limits.memory_bytes = memory_bytes;
    bench.device->host = host;
    if (in_out) {
      kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
        const auto n = static_cast<std::size_t>(p[0]);
        w.in_out<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
      };
      kernel.arguments = {"float*", "const float*", "int"};
    }
    return kernel;
  }

  const float* array(std::size_t copy, std::size_t argument) {
    return *static_cast<float**>(workload.arguments(copy)[argument]);
  }
};

}  // namespace

TEST_CASE("copies alternate, cover the cache and hold the same", "[runtime][workload]") {
  Data data(10 * kSet);
  CHECK(data.workload.copies() == 1);
  data.workload.keep_cold(true);
  REQUIRE(data.workload.copies() == 30);
  std::set<const float*> outputs, inputs;
  for (std::size_t copy = 0; copy < 30; ++copy) {
    outputs.insert(data.array(copy, 0));
    inputs.insert(data.array(copy, 1));
    CHECK(std::equal(data.array(0, 1), data.array(0, 1) + kElements, data.array(copy, 1)));
    CHECK(std::memcmp(data.array(0, 0), data.array(copy, 0), kElements * sizeof(float)) == 0);
    CHECK(*static_cast<int*>(data.workload.arguments(copy)[2]) == kElements);
  }
  CHECK(outputs.size() == 30);
  CHECK(inputs.size() == 30);
  CHECK(data.workload.arguments(0) == data.workload.arguments());
  CHECK(data.workload.arguments(30) == data.workload.arguments(0));
  // No two arrays overlap.
  std::vector<const float*> all(outputs.begin(), outputs.end());
  all.insert(all.end(), inputs.begin(), inputs.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i] - all[i - 1] >= kElements);
  // Each call gets the next ones in turn.
  CHECK(data.workload.take(4) == 0);
  CHECK(data.workload.take(30) == 4);
  CHECK(data.workload.take(1) == 4);
}

TEST_CASE("without a known cache, or when it may be warm, there is one copy",
          "[runtime][workload]") {
  Data unknown(0);
  unknown.workload.keep_cold(true);
  CHECK(unknown.workload.copies() == 1);
  Data negative(-1);
  negative.workload.keep_cold(true);
  CHECK(negative.workload.copies() == 1);
  Data data(10 * kSet);
  const std::size_t before = data.bench.device->allocated;
  data.workload.keep_cold(false);
  CHECK(data.workload.copies() == 1);
  CHECK(data.bench.device->allocated == before);
  data.workload.keep_cold(true);
  CHECK(data.workload.copies() == 30);
  data.workload.keep_cold(false);
  CHECK(data.workload.copies() == 1);
  CHECK(data.workload.arguments(7) == data.workload.arguments());
}

TEST_CASE("data that fill the cache themselves need no copies", "[runtime][workload]") {
  Data data(kSet / 3);
  data.workload.keep_cold(true);
  CHECK(data.workload.copies() == 1);
}

TEST_CASE("copies keep to an eighth of the memory", "[runtime][workload]") {
  Data data(100 * kSet, false, false, 80 * kSet);
  const std::size_t before = data.bench.device->allocated;
  data.workload.keep_cold(true);
  CHECK(data.workload.copies() == 10);
  // And what they took with the flush and guard zones is not more than two eighths.
  CHECK(data.bench.device->allocated - before <= 21 * kSet);
  Data tiny(100 * kSet, false, false, kSet);
  tiny.workload.keep_cold(true);
  CHECK(tiny.workload.copies() == 1);
}

TEST_CASE("when memory is refused, one copy has to do", "[runtime][workload]") {
  Data data(10 * kSet);
  const int before = data.bench.device->live_allocations;
  data.bench.device->memory = kSet;  // neither the copies nor the flush
  data.workload.keep_cold(true);
  CHECK(data.workload.copies() == 1);
  CHECK(data.bench.device->live_allocations == before);
  data.workload.prepare({}, 0, 1);
  // Verification works as before.
  float* out = const_cast<float*>(data.array(0, 0));
  CHECK(data.workload
            .verify({},
                    [&] {
                      for (int i = 0; i < kElements; ++i) out[i] = 2 * data.array(0, 1)[i];
                    })
            .right);
}

TEST_CASE("verification uses the first copy alone", "[runtime][workload]") {
  Data data(10 * kSet);
  data.workload.keep_cold(true);
  data.workload.take(7);
  const std::vector<float> second(data.array(1, 0), data.array(1, 0) + kElements);
  const auto right = [&] { kiln::test::compute_doubling(data.workload.arguments()); };
  CHECK(data.workload.verify({}, right).right);
  CHECK(std::memcmp(second.data(), data.array(1, 0), kElements * sizeof(float)) == 0);
  // Right results in another copy are none.
  CHECK_FALSE(
      data.workload.verify({}, [&] { kiln::test::compute_doubling(data.workload.arguments(1)); })
          .right);
  CHECK(data.workload.verify({}, right).right);
}

TEST_CASE("before a sample the cache is filled on a device, not on the host",
          "[runtime][workload]") {
  for (const bool host : {false, true}) {
    Data data(10 * kSet, false, host);
    std::size_t filled = 0;
    data.workload.keep_cold(true);
    data.bench.device->on_fill = [&](void*, std::size_t bytes) { filled += bytes; };
    data.workload.prepare({}, 0, 3);
    CHECK(filled == (host ? 0 : 20 * kSet));
    filled = 0;
    data.workload.keep_cold(false);
    data.workload.prepare({}, 0, 3);
    CHECK(filled == 0);
  }
}

TEST_CASE("a sample uses no copy twice when that would be warm or stale", "[runtime][workload]") {
  Data plenty(10 * kSet);
  plenty.workload.keep_cold(true);
  CHECK(plenty.workload.most_launches() == 1000);
  Data few(100 * kSet, false, false, 80 * kSet);
  few.workload.keep_cold(true);
  CHECK(few.workload.most_launches() == 10);
  Data changed(10 * kSet, true);
  CHECK(changed.workload.most_launches() == 1);
  changed.workload.keep_cold(true);
  CHECK(changed.workload.most_launches() == 30);
  changed.workload.keep_cold(false);
  CHECK(changed.workload.most_launches() == 1);
}

TEST_CASE("in/out arrays are as they were before every launch", "[runtime][workload]") {
  for (const bool cold : {true, false}) {
    Data data(10 * kSet, true);
    const std::vector<float> pristine(data.array(0, 0), data.array(0, 0) + kElements);
    data.workload.keep_cold(cold);
    for (int sample = 0; sample < 50; ++sample) {
      const std::size_t launches = cold ? 7 : 1;
      const std::size_t first = data.workload.take(launches);
      data.workload.prepare({}, first, launches);
      for (std::size_t i = 0; i < launches; ++i) {
        auto* x = const_cast<float*>(data.array(first + i, 0));
        REQUIRE(std::memcmp(x, pristine.data(), kElements * sizeof(float)) == 0);
        x[sample] = 1e9f;
      }
    }
    // A replay comes back to the same copies.
    for (int sample = 0; sample < 3; ++sample) {
      data.workload.prepare({}, 0, 1);
      auto* x = const_cast<float*>(data.array(0, 0));
      REQUIRE(std::memcmp(x, pristine.data(), kElements * sizeof(float)) == 0);
      x[0] = -1;
    }
    // And verification, which writes the first copy, leaves no trace either.
    data.workload.prepare({}, 1, 1);
    data.workload.verify({}, [&] { const_cast<float*>(data.array(0, 0))[5] = 0; });
    data.workload.prepare({}, 0, 1);
    CHECK(std::memcmp(data.array(0, 0), pristine.data(), kElements * sizeof(float)) == 0);
  }
}
