// What launches by look-up find out for their exact problem: maps, and whether a grid whose blocks
// run at the same time fits.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../allocations.hpp"
#include "../engine_fixture.hpp"
#include "kiln_test.hpp"
#include "runtime/serve/problem_arguments.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Span = std::span<const std::int64_t>;

/// Encodes a map as its address and how many elements a row has, and counts.
class MappingDevice final : public FakeDevice {
 public:
  explicit MappingDevice(std::shared_ptr<Script> what) : FakeDevice(std::move(what)) {
    info().limits.tensor_maps = true;
  }
  runtime::EncodedMap encode(const TensorMap& what, void* address) const override {
    ++encoded;
    runtime::EncodedMap map{};
    move(map, address);
    std::memcpy(map.bytes.data() + sizeof address, what.size.data(), sizeof what.size[0]);
    return map;
  }
  void move(runtime::EncodedMap& map, void* address) const override {
    std::memcpy(map.bytes.data(), &address, sizeof address);
  }
  mutable std::atomic<int> encoded{0};
};

/// doubling() whose inputs are maps; problems of up to 1024 are one bucket.
KernelDefinition mapped() {
  KernelDefinition k = doubling({2}, 2);
  k.maps = {{.argument = 1, .map = [](Span, Span p) {
               return TensorMap::tiled<float>({.size = {p[0]}, .box = {4}});
             }}};
  k.bucket = [](Span) { return ProblemValues{1024}; };
  return k;
}

struct Mapped : Process {
  explicit Mapped(const Directory& directory) : Process(directory.path()) {
    device = maps;
    device->compute = [](void** args) {
      std::uint64_t elements = 0;
      std::memcpy(&elements, static_cast<const std::byte*>(args[1]) + sizeof(void*),
                  sizeof elements);
      const int n = *static_cast<const int*>(args[2]);
      if (elements == static_cast<std::uint64_t>(n)) compute_doubling(args);
    };
    options.mode = Mode::untuned;
  }
  std::shared_ptr<MappingDevice> maps = std::make_shared<MappingDevice>(script);
};

struct Arrays {
  std::vector<float> x = std::vector<float>(2048, 3), y = std::vector<float>(2048);
  void launch(const DynamicTuned& handle, int n) {
    handle(Stream{}, {n}, y.data(), static_cast<const float*>(x.data()), n);
  }
  bool right(const DynamicTuned& handle, int n) {
    std::fill(y.begin(), y.end(), 0.f);
    launch(handle, n);
    const auto end = y.begin() + n;
    return std::count(y.begin(), end, 6.f) == n && std::count(end, y.end(), 0.f) == 2048 - n;
  }
};

/// doubling() whose blocks all run at the same time, one for each 4 elements.
KernelDefinition at_once() {
  KernelDefinition k = doubling({2}, 2);
  k.launch = [](Span, Span p) {
    return Launch{.grid = {static_cast<unsigned>(p[0]) / 4}, .block = {32}, .cooperative = true};
  };
  k.bucket = [](Span) { return ProblemValues{8}; };
  return k;
}

struct Cooperative : Process {
  explicit Cooperative(const Directory& directory) : Process(directory.path()) {
    DeviceLimits& limits = device->info().limits;
    limits.cooperative = true;
    limits.multiprocessors = 6;
    limits.reserved_multiprocessors = 2;
    limits.max_blocks_per_multiprocessor = 1;
  }
};

const std::string kFigures = "5 blocks at once for a cooperative launch, but 4 fit";
const auto kTooMany = Catch::Contains("kernel doubling with a=2,b=0 for n=20: " + kFigures);

}  // namespace

TEST_CASE("launches of known problems encode no map and allocate nothing", "[runtime][maps]") {
  const Directory directory;
  Mapped process(directory);
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(mapped());
  Arrays arrays;
  for (const int n : {8, 100, 1000}) CHECK(arrays.right(handle, n));
  CHECK(process.maps->encoded == 3);
  const std::size_t before = allocations();
  for (int i = 0; i < 100; ++i)
    for (const int n : {8, 100, 1000}) arrays.launch(handle, n);
  const std::size_t after = allocations();
  CHECK(after == before);
  CHECK(process.maps->encoded == 3);
  CHECK(arrays.right(handle, 100));
  // Another array is another address in the same map.
  Arrays others;
  CHECK(others.right(handle, 100));
  CHECK(process.maps->encoded == 3);
}

TEST_CASE("maps of as many problems as come take bounded memory, and are right",
          "[runtime][maps]") {
  const Directory directory;
  Mapped process(directory);
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(mapped());
  Arrays arrays;
  for (int n = 4; n <= 1024; n += 4) CHECK(arrays.right(handle, n));
  CHECK(process.maps->encoded == 256);
  int again = 0;
  for (int n = 4; n <= 1024; n += 4) {
    const int encoded = process.maps->encoded;
    CHECK(arrays.right(handle, n));
    again += process.maps->encoded > encoded;
  }
  constexpr int kMost = runtime::ProblemArguments::kPlaces * runtime::ProblemArguments::kWays;
  CHECK(again >= 256 - kMost);  // what was replaced
}

TEST_CASE("arguments that were replaced are freed when no launch can read them any more",
          "[runtime][maps]") {
  const FakeDevice device(std::make_shared<Script>());
  runtime::ProblemArguments known;
  std::vector<std::weak_ptr<const runtime::EntryArguments>> kept;
  const auto keep = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t n = first; n < last; ++n) {
      const std::int64_t problem[] = {n};
      kept.emplace_back(known.keep(problem, {device, {}, 1}));
    }
  };
  const auto bounded = [&] {
    constexpr std::size_t kMost =
        runtime::ProblemArguments::kPlaces * runtime::ProblemArguments::kWays +
        runtime::ProblemArguments::kTogether;
    return std::erase_if(kept, [](const auto& one) { return one.expired(); }) > 0 &&
           kept.size() <= kMost;
  };
  keep(0, 1001);
  CHECK(bounded());
  const std::int64_t problem[] = {1000};
  const auto found = kept.back();
  {
    detail::ReadSection launch, later;
    CHECK(known.find(problem, launch) == found.lock().get());
    keep(2000, 3000);
    CHECK(known.find(problem, later) == nullptr);  // replaced
    CHECK_FALSE(found.expired());
  }
  keep(3000, 4000);
  CHECK(found.expired());
  CHECK(bounded());
}

TEST_CASE("threads that replace each other's maps launch with the right ones", "[runtime][maps]") {
  const Directory directory;
  Mapped process(directory);
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(mapped());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Arrays arrays;
      for (int i = 0; i < 1000; ++i)
        wrong += !arrays.right(handle, 4 * (1 + (i * (2 * t + 1) + 64 * t) % 256));
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a cooperative grid that does not fit is refused wherever it comes from",
          "[runtime][launch]") {
  const Directory directory;
  Arrays arrays;
  const auto refused = [&](const DynamicTuned& handle, Cooperative& process) {
    CHECK(arrays.right(handle, 16));
    const int before = process.device->launches;
    CHECK_THROWS_AS(arrays.launch(handle, 20), UserError);
    CHECK_THROWS_WITH(arrays.launch(handle, 20), kTooMany);
    CHECK_THROWS_WITH(
        handle.at({20})(Stream{}, arrays.y.data(), static_cast<const float*>(arrays.x.data()), 20),
        kTooMany);
    CHECK(process.device->launches == before);
    CHECK(arrays.right(handle, 16));
  };
  SECTION("untuned") {
    Cooperative process(directory);
    process.options.mode = Mode::untuned;
    refused(process.runtime().tuned(at_once()), process);
  }
  SECTION("by the program's config") {
    Cooperative process(directory);
    const Runtime runtime = process.runtime();
    refused(runtime.tuned(at_once()).with_config({2, 0}), process);
  }
  SECTION("on record") {
    {
      Cooperative process(directory);
      process.runtime().tuned(at_once()).tune({8});
    }
    Cooperative process(directory);
    process.options.mode = Mode::lookup_only;
    refused(process.runtime().tuned(at_once()), process);
  }
  SECTION("with a workspace") {
    Cooperative process(directory);
    process.options.mode = Mode::untuned;
    KernelDefinition kernel = at_once();
    kernel.workspace = {
        .size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{8, 0}; }};
    refused(process.runtime().tuned(kernel), process);
  }
  SECTION("of a problem that is its own bucket, and of a step") {
    Cooperative process(directory);
    process.options.mode = Mode::untuned;
    const Runtime runtime = process.runtime();
    KernelDefinition alone = at_once();
    alone.bucket = nullptr;
    CHECK_THROWS_WITH(arrays.launch(runtime.tuned(alone), 20), kTooMany);
    KernelDefinition stepped = at_once();
    stepped.name = "stepped";
    stepped.steps = {{.entry = "finish", .launch = stepped.launch}};
    stepped.launch = [](Span, Span) { return Launch{{1}, {32}}; };
    (*process.script)["finish<2, 0>"].run = [](void**) {};
    const DynamicTuned handle = runtime.tuned(stepped);
    CHECK(arrays.right(handle, 16));
    const auto too_many = Catch::Contains("for n=20: step `finish`: " + kFigures);
    CHECK_THROWS_WITH(arrays.launch(handle, 20), too_many);
    CHECK_THROWS_WITH(handle.at({20}), too_many);
  }
}
