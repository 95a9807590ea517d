// What launches find out for their exact problem: whether a grid whose blocks run at the same time
// fits.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "../engine_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Span = std::span<const std::int64_t>;

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
