// What a problem runs with that is not on record, where its neighbours are.
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "choices_test.hpp"
#include "kiln_test.hpp"
#include "prepare_fixture.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using enum PreparedState;

namespace {

/// A folder where 16 was tuned to {8, 0}, and 1024 to {4, 0}.
struct Neighbours {
  Neighbours() {
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    process.of(8).seconds = 0.5e-3;
    handle.tune({16});
    process.of(4).seconds = 0.1e-3;
    handle.tune({1024});
  }
  KernelDefinition kernel = doubling();
  Directory directory;
};

}  // namespace

TEST_CASE_METHOD(Neighbours, "without a record the nearest problem's winner is prepared",
                 "[runtime][prepare]") {
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  const auto work = GENERATE(PrepareWork::compile, PrepareWork::look_up);
  const PrepareReport report = runtime.prepare(problems({16, 20, 700}), {.work = work});
  CHECK(states(report) == States{known, untuned, untuned});
  CHECK(report.complete());
  CHECK(handle.config({20}) == Values{8, 0});
  CHECK(handle.config({700}) == Values{4, 0});
  CHECK(report.compiled == 0);
  CHECK(process.device->timings == 0);
  CHECK(launch(handle, 700));
  const PrepareReport again = runtime.prepare(problems({16, 20, 700}), {.work = work});
  CHECK(states(again) == States{known, untuned, untuned});
  CHECK(again.complete());
  CHECK(again.compiled == 0);
  // It is a guess: it is tuned when that is asked for.
  CHECK(states(runtime.prepare(problems({20}))) == States{tuned});
}

TEST_CASE_METHOD(Neighbours,
                 "a guess that the problem does not allow, or whose binary is gone, is none",
                 "[runtime][prepare]") {
  SECTION("not allowed") {
    kernel.space.where("8 is for less than 20", [](auto config, auto problem, const DeviceLimits&) {
      return config[0] != 8 || problem[0] < 20;
    });
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(runtime.prepare(problems({21}), {.work = PrepareWork::compile}).complete());
    CHECK(handle.config({21}) == Values{4, 0});  // the next one's
  }
  SECTION("no binary") {
    for (const auto& file : directory.entries(".kiln")) fs::remove(file);
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    const PrepareReport report = runtime.prepare(problems({21}), {.work = PrepareWork::look_up});
    CHECK(states(report) == States{missing});
    CHECK_THAT(report.problems[0].why, Catch::Contains("doubling{a=2,b=0}"));
  }
  SECTION("values or a list of configs that do not have it") {
    if (GENERATE(false, true))
      kernel = doubling({2, 16}, 2);
    else
      kernel.configs = [](auto, const DeviceLimits&) {
        return std::vector<Values>{{2, 0}, {1, 0}};
      };
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(runtime.prepare(problems({21}), {.work = PrepareWork::compile}).complete());
    CHECK(handle.config({21}) == Values{2, 0});
  }
  SECTION("another source, or a winner that was found wrong") {
    Process process(directory.path());
    if (GENERATE(false, true)) {
      kernel.source.text += " ";
    } else {
      const auto all_wrong = [](nlohmann::json& record) {
        for (nlohmann::json& candidate : record.at("candidates"))
          candidate["status"] = "wrong_result";
        return true;
      };
      CHECK(change_records(directory.path(), all_wrong) == 2);
    }
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(runtime.prepare(problems({21}), {.work = PrepareWork::compile}).complete());
    CHECK(handle.config({21}) == Values{2, 0});
  }
  SECTION("another device") {
    Process process(directory.path());
    process.device->info().fingerprint = {{"model", "another"}};
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(runtime.prepare(problems({21}), {.work = PrepareWork::compile}).complete());
    CHECK(handle.config({21}) == Values{2, 0});
  }
  SECTION("where the bits must be the same everywhere") {
    Process process(directory.path());
    process.options.deterministic = true;
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(runtime.prepare(problems({21}), {.work = PrepareWork::compile}).complete());
    CHECK(handle.config({21}) == Values{2, 0});
  }
  SECTION("a cost model that is trusted") {
    kernel.cost = [](auto config, auto, auto&) { return config[0] == 1 ? 1e-6 : 1e-3; };
    kernel.untuned_by_cost = [](const DeviceLimits&) { return true; };
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(runtime.prepare(problems({21}), {.work = PrepareWork::compile}).complete());
    CHECK(handle.config({21}) == Values{1, 0});
  }
  SECTION("a default that the kernel's author chooses for the problem") {
    const bool chosen = GENERATE(false, true);  // an empty list: the space's own default
    kernel.default_for = [=](auto, const DeviceLimits&) {
      return chosen ? Values{1, 0} : Values{};
    };
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    CHECK(runtime.prepare(problems({21}), {.work = PrepareWork::compile}).complete());
    CHECK(handle.config({21}) == (chosen ? Values{1, 0} : Values{8, 0}));
  }
}

TEST_CASE_METHOD(Neighbours, "a sealed runtime serves with the nearest problem's winner",
                 "[runtime][prepare][seal]") {
  Process process(directory.path());
  std::vector<std::string> entries;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  runtime.prepare(problems({16, 1024}), {.work = PrepareWork::look_up});
  runtime.seal();
  process.device->on_launch = [&](const std::string& entry, void**) { entries.push_back(entry); };
  CHECK(launch(handle, 17));
  CHECK(launch(handle, 900));
  CHECK(entries == std::vector<std::string>{"k<8, 0>", "k<4, 0>"});
}

TEST_CASE("a problem whose untuned config has won elsewhere is a neighbour of others",
          "[runtime][prepare][seal]") {
  Directory directory;
  Process process(directory.path());
  const KernelDefinition kernel = doubling();
  const Runtime tuning = process.runtime();
  const auto handle = tuning.tuned(kernel);
  process.of(4).seconds = 0.1e-3;
  handle.tune({1024});
  process.of(4).seconds = 5e-3;
  process.of(2).seconds = 0.1e-3;
  process.options.mode = Mode::untuned;
  const Runtime runtime = process.runtime();
  const auto untuned = runtime.tuned(kernel);
  REQUIRE(launch(untuned, 20));
  REQUIRE(launch(untuned, 1024));
  handle.tune({20});
  CHECK(states(runtime.prepare(problems({20, 1024}))) == States{known, known});
  runtime.seal();
  std::string entry;
  process.device->on_launch = [&](const std::string& one, void**) { entry = one; };
  CHECK(launch(untuned, 30));
  CHECK(entry == "k<2, 0>");
  CHECK(launch(untuned, 900));
  CHECK(entry == "k<4, 0>");
}

TEST_CASE("ranks do not guess by records, which may differ", "[runtime][prepare][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) job[r].of(8).seconds = 0.5 * kMs;
  job.run<bool>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    return runtime.prepare(problems({16})).complete();
  });
  job.restart();
  for (const Values& config : job.run<Values>([&](Process& process, int) {
         const Runtime runtime = process.runtime();
         const auto handle = runtime.tuned(doubling());
         runtime.prepare(problems({20}), {.work = PrepareWork::compile});
         return handle.config({20});
       }))
    CHECK(config == Values{2, 0});
}
