// Launches on a device whose memory is the program's.
#include <functional>
#include <memory>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "modes_fixture.hpp"
#include "runtime/device/spare_memory.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

struct Tight : Process {
  explicit Tight(const Directory& directory) : Process(directory.path()) {
    of(8).seconds = 0.1e-3;
    device->capacity = 10'000'000;
    options.reserve_bytes = 9'900'000;
  }
};

}  // namespace

TEST_CASE("a launch whose tuning has no memory runs untuned, and says so once",
          "[runtime][serve][memory]") {
  const Directory directory;
  Tight process(directory);
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(doubling());
  std::string launched;
  process.device->on_launch = [&](const std::string& entry, void**) { launched = entry; };
  for (int i = 0; i < 3; ++i) CHECK(launch(handle, 1000));
  CHECK(launched == "k<2, 0>");
  CHECK(process.device->allocated == 0);
  REQUIRE(process.warnings().size() == 1);
  const std::string text = process.warnings()[0];
  CHECK(text.find("its arrays: 270144 bytes") != std::string::npos);
  CHECK(text.find("10000000 are free, and 9900000 are reserved") != std::string::npos);
  CHECK(text.find("it is not tuned, and the untuned config is used") != std::string::npos);
  CHECK(runtime.statistics().tuned == 0);

  // A caller that asks for a tuning is told; with the memory there it is tuned after all.
  CHECK_THROWS_AS(handle.tune({1000}), runtime::OutOfMemory);
  process.device->capacity = 20'000'000;
  CHECK(handle.tune({1000}).winner().config == Values{8, 0});
  CHECK(launch(handle, 1000));
  CHECK(launched == "k<8, 0>");
  CHECK(process.device->peak <= 20'000'000 - 9'900'000);
}

TEST_CASE("the reserve binds tunings, not what the program itself allocates",
          "[runtime][serve][memory]") {
  const Directory directory;
  Tight process(directory);
  const Runtime runtime = process.runtime();
  const auto array = runtime.array<float>(2'000'000);
  CHECK(process.device->in_use == 8'000'000);
  CHECK(process.device->reserve() == 9'900'000);
  Process other(directory.path());
  CHECK(other.runtime().array<float>(1).size() == 1);
  CHECK(other.device->reserve() == 0);
}

TEST_CASE("the reserve comes from the options, else from the environment",
          "[runtime][serve][memory]") {
  const Directory directory;
  RuntimeOptions options;
  options.device = "host";
  options.store.directory = directory.path();
  const auto reserve = [&](const char* value) {
    value ? ::setenv("KILN_RESERVE", value, 1) : ::unsetenv("KILN_RESERVE");
    const Runtime runtime(options);
    ::unsetenv("KILN_RESERVE");
    return detail::Access::engine(runtime)->device()->reserve();
  };
  CHECK(reserve(nullptr) == 0);
  CHECK(reserve("2G") == std::uint64_t{2} << 30);
  options.reserve_bytes = 5;
  CHECK(reserve("2G") == 5);
  options.reserve_bytes = 0;
  CHECK(reserve("2G") == 0);
  options.reserve_bytes.reset();
  ::setenv("KILN_RESERVE", "half", 1);
  CHECK_THROWS_WITH(Runtime(options), Catch::Contains("KILN_RESERVE is 'half'"));
  ::unsetenv("KILN_RESERVE");
  for (const char* const name : {"KILN_CANDIDATE_SECONDS", "KILN_COMPILE_PROCESSES"}) {
    ::setenv(name, "half", 1);
    CHECK_THROWS_WITH(Runtime(options), Catch::Contains(std::string(name) + " is 'half'"));
    ::unsetenv(name);
  }
}

namespace {

/// Refuses memory as a test says.
struct Refusing : FakeDevice {
  using FakeDevice::FakeDevice;
  void* allocate(std::size_t bytes) override {
    if (refuse) refuse();
    return FakeDevice::allocate(bytes);
  }
  std::function<void()> refuse;
};

}  // namespace

TEST_CASE("what a workspace lacks keeps its type, and names the kernel",
          "[runtime][serve][memory]") {
  const Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  const auto device = std::make_shared<Refusing>(process.script);
  device->compute = compute_doubling;
  process.device = device;
  KernelDefinition kernel = doubling();
  kernel.workspace = {.size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{8, 0}; }};
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(kernel);
  CHECK_FALSE(handle.prepare({10}));
  const auto bound = handle.at({10});
  device->refuse = [] { throw runtime::OutOfMemory("none is left"); };
  CHECK_THROWS_AS(bound.reserve_workspace({}), runtime::OutOfMemory);
  CHECK_THROWS_WITH(launch(handle, 10),
                    Catch::StartsWith("kernel doubling: ") && Catch::EndsWith("none is left"));
  device->refuse = [] { throw runtime::DeviceLost("it is gone"); };
  CHECK_THROWS_AS(bound.reserve_workspace({}), runtime::DeviceLost);
  CHECK_THROWS_WITH(launch(handle, 10),
                    Catch::StartsWith("kernel doubling: ") && Catch::EndsWith("it is gone"));
  device->refuse = {};
  CHECK(launch(handle, 10));
}
