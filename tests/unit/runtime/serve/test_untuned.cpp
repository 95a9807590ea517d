// What runs, and what is said, where the config that should run is missing.
#include <stop_token>
#include <vector>

#include "kiln_test.hpp"
#include "modes_fixture.hpp"
#include "unit/runtime/prepare/prepare_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a missing untuned config is wanted, and the default serves in its place",
          "[runtime][modes]") {
  KernelDefinition kernel = doubling();
  kernel.cost = [](auto config, auto, const auto&) { return config[0] == 4 ? 1e-6 : 1e-3; };
  kernel.untuned_by_cost = [](const auto&) { return true; };
  const auto wants = [](const Runtime& runtime) {
    std::vector<std::int64_t> values;
    for (const WantedInstance& w : runtime.wanted().wanted) values.push_back(w.config.at("a"));
    return values;
  };
  const auto begins = [](const std::string& text, const std::string& with) {
    CAPTURE(text);
    CHECK(text.find(with) == 0);
  };
  Directory shipped, own;
  tune_into(shipped.path(), 50, 8);
  Process process(own.path());
  process.options.mode = Mode::frozen;
  process.options.store.roots = {shipped.path()};
  SECTION("the winner is missing") {
    fs::remove(entry_of(shipped, "k<8, 0>"));
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(launch(handle, 50));
    CHECK(handle.config({50}) == Values{4, 0});
    CHECK(wants(runtime) == std::vector<std::int64_t>{8});
    REQUIRE(process.warnings().size() == 1);
    begins(process.warnings()[0],
           "doubling n=50: the winner is missing, the untuned config is used: doubling{a=8,b=0}");
  }
  SECTION("the untuned config is missing") {
    fs::remove(entry_of(shipped, "k<4, 0>"));
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK_FALSE(handle.prepare({60}));
    CHECK(launch(handle, 60));
    CHECK(handle.config({60}) == Values{2, 0});
    CHECK(wants(runtime) == std::vector<std::int64_t>{4});
    REQUIRE(process.warnings().size() == 1);
    begins(process.warnings()[0],
           "doubling n=60: the untuned config is missing, the default is used: doubling{a=4,b=0}");
  }
  SECTION("everything is missing") {
    for (const char* entry : {"k<8, 0>", "k<4, 0>", "k<2, 0>"})
      fs::remove(entry_of(shipped, entry));
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(handle.prepare({50}));
    CHECK_THROWS_AS(launch(handle, 50), MissingError);
    CHECK(wants(runtime) == std::vector<std::int64_t>{8, 4, 2});
    REQUIRE(process.warnings().size() == 3);
    begins(process.warnings()[0], "doubling n=50: the untuned config is missing: ");
    begins(process.warnings()[1], "doubling n=50: the winner is missing: ");
    begins(process.warnings()[2], "doubling n=50: nothing can be launched: doubling{a=2,b=0}");
  }
}

TEST_CASE("a tuning that measured nothing leaves in use what was", "[runtime][modes]") {
  KernelDefinition kernel = doubling();
  kernel.cost = [](auto config, auto, const auto&) { return config[0] == 4 ? 1e-6 : 1e-3; };
  kernel.untuned_by_cost = [](const auto&) { return true; };
  const Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  std::stop_source stop;
  stop.request_stop();
  TuneOptions stopped;
  stopped.stop = stop.get_token();
  SECTION("the untuned config that was prepared") {
    runtime.prepare(problems({50}), {.work = PrepareWork::compile});
    REQUIRE(handle.config({50}) == Values{4, 0});
    CHECK(handle.tune({50}, stopped).winner().status == CandidateStatus::not_tried);
    CHECK(handle.config({50}) == Values{4, 0});
  }
  SECTION("nothing, so that a launch tunes it") {
    process.of(8).seconds = 0.1e-3;
    handle.tune({50}, stopped);
    CHECK(launch(handle, 50));
    CHECK(handle.config({50}) == Values{8, 0});
  }
}
