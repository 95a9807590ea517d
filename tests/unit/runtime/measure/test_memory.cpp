// The device memory of a workload: asked for before it is taken, and never the program's part.
#include <limits>
#include <string>

#include "kiln_test.hpp"
#include "runtime/device/caller_allocator.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/draws_bench.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Bench;
using kiln::test::doubling;

namespace {

constexpr std::int64_t kCount = 1024;  // 4 KB
constexpr std::size_t kArrayBytes = 4096, kGuards = 2 * 65536, kReserve = 1'000'000;

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const OutOfMemory& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool has_text(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("data that do not fit beside the reserve are refused before anything is allocated",
          "[runtime][workload][memory]") {
  Bench bench;
  const KernelDefinition kernel = doubling();
  const std::size_t needed = 2 * (kArrayBytes + kGuards);
  bench.device->capacity = needed + kReserve - 1;
  bench.device->set_reserve(kReserve);
  const std::string text =
      refusal([&] { DeviceWorkload(kernel, Values{kCount}, bench.device, 1); });
  CHECK(has_text(text, "kernel doubling for n=1024: its arrays"));
  CHECK(has_text(text, std::to_string(needed) + " bytes of the device's memory are needed"));
  CHECK(has_text(text, std::to_string(*bench.device->capacity) + " are free"));
  CHECK(has_text(text, "1000000 are reserved"));
  CHECK(bench.device->allocated == 0);

  bench.device->capacity = needed + kReserve;
  const DeviceWorkload fits(kernel, Values{kCount}, bench.device, 1);
  CHECK(bench.device->in_use == needed);
  CHECK(DeviceWorkload::taken(*bench.device, fits.data()) == needed);
}

TEST_CASE("what is needed is what is taken, whatever the arguments",
          "[runtime][workload][memory]") {
  Bench bench;
  bench.device->capacity = std::size_t{1} << 30;
  KernelDefinition kernel = doubling();
  for (const std::int64_t n : {1, 1024, 1 << 19, (1 << 19) + 1}) {  // the last two from 2 MB on
    kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
      const auto count = static_cast<std::size_t>(p[0]);
      w.in_out<float>(count).input<float>(count).scalar<int>(static_cast<int>(count));
    };
    const DeviceWorkload workload(kernel, Values{n}, bench.device, 1);
    CHECK(DeviceWorkload::taken(*bench.device, workload.data()) == bench.device->in_use);
  }
  CHECK(bench.device->in_use == 0);
}

TEST_CASE("the draws of a problem are asked for together", "[runtime][workload][memory]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.draws = {1, 1, 1};
  const std::size_t needed = 3 * 2 * (kArrayBytes + kGuards);
  bench.device->capacity = needed - 1;
  bench.device->set_reserve(1);
  CHECK(has_text(refusal([&] { DrawsBench(kernel, Values{kCount}, bench.device, 1); }),
                 std::to_string(needed) + " bytes"));
  CHECK(bench.device->allocated == 0);
  bench.device->capacity = needed + 1;
  DrawsBench(kernel, Values{kCount}, bench.device, 1);
  CHECK(bench.device->peak == needed);
}

TEST_CASE("there are fewer copies where memory is short, and a warning says so",
          "[runtime][workload][memory]") {
  const KernelDefinition kernel = doubling();
  const std::size_t data = 2 * (kArrayBytes + kGuards);
  std::size_t before = 1;
  for (const std::size_t spare : {std::size_t{0}, std::size_t{60'000}, std::size_t{200'000},
                                  std::size_t{400'000}, std::size_t{100'000'000}}) {
    INFO(spare);
    Bench bench;
    bench.device->info().limits.l2_bytes = 10 * 2 * kArrayBytes;  // 30 copies
    bench.device->capacity = data + kReserve + spare;
    bench.device->set_reserve(kReserve);
    DeviceWorkload workload(kernel, Values{kCount}, bench.device, 1);
    workload.keep_cold(true);
    CHECK(bench.device->refused == 0);
    CHECK(bench.device->peak <= data + spare);
    CHECK(workload.copies() >= before);
    before = workload.copies();
    const auto warnings = workload.take_warnings();
    if (spare == 100'000'000) {
      CHECK(workload.copies() == 30);
      CHECK(warnings.empty());
    } else {
      CHECK(workload.copies() < 30);
      REQUIRE_FALSE(warnings.empty());
      CHECK(has_text(warnings[0], "has room for " + std::to_string(workload.copies()) +
                                      " of 30 copies of the arrays"));
      CHECK(workload.take_warnings().empty());  // each once
    }
    if (spare == 0) {
      CHECK(workload.copies() == 1);
      REQUIRE(warnings.size() == 2);
      CHECK(has_text(warnings[1], "the cache is not emptied between samples"));
      CHECK(has_text(warnings[1], "1000000 are reserved"));
    }
    if (spare == 200'000) CHECK(workload.copies() > 1);
  }
}

TEST_CASE("memory that goes between asking and allocating leaves fewer copies",
          "[runtime][workload][memory]") {
  const KernelDefinition kernel = doubling();
  const std::size_t data = 2 * (kArrayBytes + kGuards), spare = 1'000'000;
  for (const std::size_t gone :
       {std::size_t{0}, std::size_t{700'000}, std::size_t{850'000}, spare}) {
    INFO(gone);
    Bench bench;
    bench.device->info().limits.l2_bytes = 10 * 2 * kArrayBytes;
    bench.device->capacity = data + spare;
    DeviceWorkload workload(kernel, Values{kCount}, bench.device, 1);
    bench.device->taken_by_others = gone;
    workload.keep_cold(true);
    CHECK((bench.device->refused > 0) == (gone > 0));
    CHECK(workload.copies() == (gone == 0 ? 30u : gone == spare ? 1u : workload.copies()));
    if (gone == 700'000) CHECK(workload.copies() > 1);
    CHECK(workload.take_warnings().empty() == (gone == 0));
    // What there is works.
    for (std::size_t copy = 0; copy < workload.copies(); ++copy)
      test::compute_doubling(workload.arguments(copy));
  }
}

TEST_CASE("a device's pages count", "[runtime][workload][memory]") {
  Bench bench;
  bench.device->page = 4096;
  CHECK(taken_by(*bench.device, 0) == 0);
  CHECK(taken_by(*bench.device, 1) == 4096);
  CHECK(taken_by(*bench.device, 4096) == 4096);
  CHECK(taken_by(*bench.device, 4097) == 8192);
  bench.device->capacity = 4096 + 100;
  bench.device->set_reserve(100);
  CHECK(take_spare(bench.device, "a page", 1).bytes() == 1);
  bench.device->set_reserve(101);
  CHECK(has_text(refusal([&] { take_spare(bench.device, "a page", 1); }),
                 "a page: 4096 bytes of the device's memory are needed; 4196 are free"));
}

TEST_CASE("a program that says what its allocator has is asked", "[runtime][allocator][memory]") {
  Allocator functions{.allocate = [](std::size_t) -> void* { return nullptr; },
                      .release = [](void*, std::size_t) {}};
  CHECK_FALSE(CallerAllocator(functions).available());
  functions.available = [] { return std::uint64_t{12345}; };
  CHECK(CallerAllocator(functions).available() == 12345);
  functions.available = [] { return std::numeric_limits<std::uint64_t>::max(); };
  CHECK(CallerAllocator(functions).available() == std::numeric_limits<std::int64_t>::max());
  functions.available = []() -> std::uint64_t { throw std::runtime_error("not now"); };
  CHECK_FALSE(CallerAllocator(functions).available());
  functions = {};
  functions.available = [] { return std::uint64_t{1}; };
  CHECK_THROWS_AS(CallerAllocator(functions), UserError);
  CHECK_FALSE(CallerAllocator().available());
}
