// When a record answers, and when the search continues.
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "kiln_test.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/tune/tuning_session.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a record is of one source of another kernel that it trusts", "[runtime][engine]") {
  const Directory directory;
  auto trusted = std::make_shared<KernelDefinition>(doubling({3}, 3));
  trusted->name = "plain";
  KernelDefinition kernel = doubling();
  kernel.device_reference = {.config = "", .problem = {{"n", 50}}, .kernel = trusted};
  const auto tuned = [&] {
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    runtime.tuned(kernel).prepare({50});
    return runtime.statistics().tuned;
  };
  CHECK(tuned() == 1);
  CHECK(tuned() == 0);
  const std::string before = trusted->source.text;
  trusted->source.text += "\n// edited";
  CHECK(tuned() == 1);
  CHECK(tuned() == 0);
  trusted->source.text = before;
  CHECK(tuned() == 0);
  trusted->source.text.clear();
  trusted->source.file = directory.path() / "not there.cuh";
  CHECK(tuned() == 1);  // there are records of two sources; one of them is stale
}

TEST_CASE("without its source a kernel's record is used if it is of the only source there was",
          "[runtime][engine]") {
  const Directory directory;
  const TemporaryDirectory folder;
  const fs::path file = folder.path() / "k.cuh";
  const std::string text = "template <int a, int b> __global__ void k(float*, const float*, int);";
  KernelDefinition kernel = doubling();
  kernel.source.text.clear();
  kernel.source.file = file;
  const auto tune = [&](const std::string& source) {
    write_text(file, source);
    Process(directory.path()).runtime().tuned(kernel).tune({50});
    fs::remove(file);
  };
  const auto known = [&] {
    Process process(directory.path());
    process.options.mode = Mode::lookup_only;
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(kernel);
    const bool there = handle.known({50}).has_value();
    if (!there) return false;
    CHECK_FALSE(handle.prepare({50}));
    CHECK(runtime.statistics().store.misses == 0);  // what is found is no miss as well
    return true;
  };
  tune(text);
  CHECK(known());
  tune(text + "  // edited");
  CHECK_FALSE(known());
}

TEST_CASE("a source that is edited while it is tuned ends the tuning", "[runtime][engine]") {
  const Directory directory;
  const TemporaryDirectory folder;
  const fs::path file = folder.path() / "k.cuh";
  const std::string text = "template <int a, int b> __global__ void k(float*, const float*, int);";
  write_text(file, text);
  std::vector<std::int64_t> values(100);  // more than are built at once
  std::iota(values.begin(), values.end(), 1);
  KernelDefinition kernel = doubling(values);
  kernel.source.text.clear();
  kernel.source.file = file;
  std::string said;
  {
    Process process(directory.path());
    std::atomic<bool> edited{false};
    process.compiler->on_compile = [&](const codegen::Source&) {
      if (!edited.exchange(true)) write_text(file, text + "  // edited");
    };
    try {
      const TuneResult result = process.runtime().tuned(kernel).tune({50});
      CHECK_FALSE(result.complete);
      CHECK(result.count(CandidateStatus::measured) < 100);
      for (const std::string& warning : result.warnings) said += warning;
    } catch (const EnvironmentError& error) {
      said = error.what();
    }
  }
  CHECK_THAT(said, Catch::Contains("its source was edited while it was tuned"));
  Process process(directory.path());
  const TuneResult after = process.runtime().tuned(kernel).tune({50});
  CHECK(after.complete);
  CHECK(after.winner().status == CandidateStatus::measured);
  CHECK_FALSE(after.from_store);
}

TEST_CASE("a record that a root has in vain does not hide the next root's", "[runtime][engine]") {
  const TemporaryDirectory stale, good;
  const Directory own;
  Process(stale.path()).runtime().tuned(doubling({1, 2, 4, 8}, 4)).tune({50});
  Process(good.path()).runtime().tuned(doubling()).tune({50});
  Process process(own.path());
  process.options.store.roots = {stale.path(), good.path()};
  KernelDefinition kernel = doubling();
  CHECK(process.runtime().tuned(kernel).known({50}));
  process.options.store.roots = {stale.path()};
  CHECK_FALSE(process.runtime().tuned(kernel).known({50}));
}

TEST_CASE("a search that did not end does not hide one that was shipped", "[runtime][engine]") {
  const TemporaryDirectory shipped;
  {
    Process process(shipped.path());
    process.of(8).seconds = 0.5e-3;
    CHECK(process.runtime().tuned(doubling()).tune({50}).winner().config[0] == 8);
  }
  const Directory own;
  const bool other_space = GENERATE(false, true);
  {
    Process process(own.path());
    TuneOptions two;
    two.max_evaluations = 2;  // the default and one more
    const KernelDefinition kernel = other_space ? doubling({1, 2}) : doubling();
    const TuneResult cut = process.runtime().tuned(kernel).tune({50}, two);
    CHECK(cut.complete == other_space);
  }
  Process process(own.path());
  process.options.store.roots = {shipped.path()};
  const Runtime runtime = process.runtime();
  CHECK(runtime.tuned(doubling()).config({50})[0] == 8);
  CHECK(runtime.statistics().tuned == 0);
}

TEST_CASE("a search goes on, whatever was shipped of another way to time", "[runtime][engine]") {
  const TemporaryDirectory shipped;
  CHECK(Process(shipped.path()).runtime().tuned(doubling()).tune({50}).complete);
  const Directory own;
  const auto tuned = [&](std::size_t most) {
    Process process(own.path());
    process.options.store.roots = {shipped.path()};
    TuneOptions eager;
    eager.launching = Launching::eager;
    eager.max_evaluations = most;
    return process.runtime().tuned(doubling()).tune({50}, eager);
  };
  CHECK(tuned(2).evaluated == 2);
  const TuneResult rest = tuned(0);
  CHECK(rest.evaluated == 2);
  CHECK(rest.complete);
  CHECK(tuned(0).from_store);
}

TEST_CASE("a launch uses what was shipped of the way to time that was asked for",
          "[runtime][engine]") {
  const TemporaryDirectory shipped;
  {
    Process process(shipped.path());
    process.of(8).seconds = 0.5e-3;
    CHECK(process.runtime().tuned(doubling()).tune({50}).winner().config[0] == 8);
  }
  const Directory own;
  TuneOptions eager;
  eager.launching = Launching::eager;
  CHECK(Process(own.path()).runtime().tuned(doubling()).tune({50}, eager).complete);
  Process process(own.path());
  process.options.store.roots = {shipped.path()};
  process.options.tuning.launching = Launching::graph;
  const Runtime runtime = process.runtime();
  CHECK(runtime.tuned(doubling()).config({50})[0] == 8);
  CHECK(runtime.statistics().tuned == 0);
}

TEST_CASE("where includes cannot be followed, a record is trusted by the process that made it",
          "[runtime][engine]") {
  const Directory directory;
  KernelDefinition kernel = doubling();
  const std::string text = kernel.source.text;
  std::string said;
  const auto tuned = [&] {
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    for (int i = 0; i < 2; ++i) {
      const auto handle = runtime.tuned(kernel);
      handle.prepare({50});
      CHECK(handle.known({50}));
    }
    for (const std::string& warning : process.warnings()) said += warning;
    return runtime.statistics().tuned;
  };
  kernel.source.text = "#define BODY <body.h>\n#include BODY\n" + text;
  CHECK(tuned() == 1);
  CHECK(tuned() == 0);
  CHECK(said.empty());
  const auto records = directory.entries(".json").size();
  kernel.source.text = "#define FILE_OF(name) <name>\n#include FILE_OF(body.h)\n" + text;
  CHECK(tuned() == 1);
  CHECK(tuned() == 1);
  CHECK(directory.entries(".json").size() == records);
  CHECK_THAT(said, Catch::Contains("#include FILE_OF(body.h)"));
}

TEST_CASE("a launch that waits for another process takes what that has found in the end",
          "[runtime][engine]") {
  const Directory directory;
  Process first(directory.path()), second(directory.path());
  first.of(8).seconds = 0.5e-3;
  std::atomic<bool> go{false};
  first.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry == "k<8, 0>") go.wait(false);
  };
  const auto held = first.runtime().tuned(doubling());
  std::thread other([&] { held.tune({60}); });
  while (directory.entries(".json").empty()) std::this_thread::yield();  // saved as it goes

  const Runtime waits = second.runtime();
  const KernelDefinition kernel = doubling();
  runtime::Workshop& workshop = detail::Access::engine(waits)->workshop();
  runtime::KernelMaker maker(kernel, Values{60}, workshop.device(), workshop.builder(), 0);
  runtime::TuneOutcome found;
  std::atomic<bool> done{false};
  std::thread launch([&] {
    found = runtime::tune_alone(workshop, maker, TuneOptions{}, true, {.done = true});
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK_FALSE(done);
  go = true;
  go.notify_all();
  other.join();
  launch.join();
  CHECK(found.result.from_store);
  CHECK(found.result.complete);
  CHECK(found.result.winner().config == Values{8, 0});
}

TEST_CASE("a longer list of configs is searched, and what was measured is kept",
          "[runtime][engine]") {
  const Directory directory;
  KernelDefinition kernel = doubling();
  std::vector<Values> list{{2, 0}, {4, 0}};
  kernel.configs = [&list](auto, const auto&) { return list; };
  {
    Process process(directory.path());
    const TuneResult first = process.runtime().tuned(kernel).tune({50});
    CHECK(first.complete);
    CHECK(first.candidates.size() == 2);
  }
  CHECK(Process(directory.path()).runtime().tuned(kernel).known({50}));
  list.push_back({8, 0});
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  auto handle = runtime.tuned(kernel);
  CHECK_FALSE(handle.known({50}));
  handle.prepare({50});
  CHECK(runtime.statistics().tuned == 1);
  CHECK(process.compiler->compiles == 1);  // the other binaries come from the store
  const auto known = handle.known({50});
  REQUIRE(known);
  CHECK(known->complete);
  CHECK(known->winner().config == Values{8, 0});
  CHECK(known->count(CandidateStatus::measured) == 3);
}

TEST_CASE("a record answers searches that measure as it was measured", "[runtime][engine]") {
  const Directory directory;
  TuneOptions overlapping;
  overlapping.overlap_launches = true;
  TuneOptions warm;
  warm.cold_cache = false;
  const auto tuned = [&](const TuneOptions& options, double eight) {
    Process process(directory.path());
    process.of(8).seconds = eight;
    return process.runtime().tuned(doubling()).tune({50}, options);
  };
  const TuneResult first = tuned({}, 1e-4);
  CHECK(first.winner().config == Values{8, 0});
  CHECK(tuned({}, 1e-4).from_store);
  TuneOptions eager;
  eager.launching = Launching::eager;
  for (const TuneOptions& options : {overlapping, warm, eager}) {
    const TuneResult other = tuned(options, 1);
    CHECK_FALSE(other.from_store);
    CHECK(other.evaluated == first.evaluated);
    CHECK(other.winner().config != Values{8, 0});
    CHECK(tuned(options, 1).from_store);
  }
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  runtime.tuned(doubling()).prepare({50});
  CHECK(runtime.statistics().tuned == 0);  // a launch is content with it
}

TEST_CASE("what is wrong by one way of timing is not tried by another", "[runtime][engine]") {
  const Directory directory;
  const auto tuned = [&](Launching launching, bool broken) {
    Process process(directory.path());
    process.of(8).seconds = 1e-4;
    if (broken) process.of(8).run = [](void**) {};
    if (broken) process.of(4).compile_log = "error: no";
    TuneOptions options;
    options.launching = launching;
    const TuneResult result = process.runtime().tuned(doubling()).tune({50}, options);
    CHECK_FALSE(result.from_store);
    CHECK(process.compiler->compiles == (broken ? 4 : 0));
    std::map<Values, CandidateStatus> statuses;
    for (const Candidate& c : result.candidates) statuses.emplace(c.config, c.status);
    CHECK(statuses.at({8, 0}) == CandidateStatus::wrong_result);
    CHECK(statuses.at({4, 0}) == CandidateStatus::compile_failed);
    CHECK(statuses.at({2, 0}) == CandidateStatus::measured);
  };
  tuned(Launching::graph, true);
  tuned(Launching::eager, false);
  tuned(Launching::graph, false);
}

TEST_CASE("a launch is not content with a record that was timed otherwise than asked for",
          "[runtime][engine]") {
  const Directory directory;
  const auto tunings = [&](std::optional<Launching> asked) {
    Process process(directory.path());
    process.options.tuning.launching = asked;
    const Runtime runtime = process.runtime();
    runtime.tuned(doubling()).prepare({50});
    return runtime.statistics().tuned;
  };
  CHECK(tunings({}) == 1);
  CHECK(tunings(Launching::graph) == 0);
  CHECK(tunings(Launching::eager) == 1);
  CHECK(tunings(Launching::eager) == 0);
  CHECK(tunings({}) == 0);
  CHECK(tunings(Launching::graph) == 1);
}

TEST_CASE("a config that has left the list is kept on record, but cannot win",
          "[runtime][engine]") {
  const Directory directory;
  KernelDefinition kernel = doubling();
  const std::vector<Values> all{{2, 0}, {4, 0}, {8, 0}};
  std::vector<Values> list = all;
  kernel.configs = [&list](auto, const auto&) { return list; };
  int launched = 0;
  const auto tuned = [&] {
    Process process(directory.path());
    process.of(8).seconds = 1e-4;
    process.device->on_launch = [&](const std::string& entry, void**) {
      launched += entry == "k<8, 0>";
    };
    return process.runtime().tuned(kernel).tune({50});
  };
  CHECK(tuned().winner().config == Values{8, 0});
  list.pop_back();
  launched = 0;
  for (const bool stored : {false, true}) {
    const TuneResult shorter = tuned();
    CHECK(shorter.winner().config != Values{8, 0});
    CHECK(shorter.candidates.size() == 3);
    CHECK(shorter.from_store == stored);
  }
  CHECK(launched == 0);
  list = all;
  CHECK(tuned().winner().config == Values{8, 0});
}

TEST_CASE("another strategy searches on unless every listed config was tried",
          "[runtime][engine]") {
  const Directory directory;
  KernelDefinition kernel = doubling({1, 2, 4, 8}, 1);  // the default is not listed
  kernel.configs = [](auto, const auto&) { return std::vector<Values>{{2, 0}, {4, 0}}; };
  Process process(directory.path());
  process.options.tuning = {};
  const auto recall = [&](std::size_t candidates) {
    const FakeDevice& device = *process.device;
    TuneResult result = runtime::empty_result(kernel, Values{50}, device.info());
    for (std::int64_t a = 1; result.candidates.size() < candidates; a *= 2)
      result.candidates.push_back({{a, 0}, CandidateStatus::measured, "", 1e-3, {1e-3}, 0, 0, {}});
    result.space.allowed = 2;
    result.complete = true;
    result.strategy = "random";
    return runtime::recall_from(runtime::record_json(result, kernel, {}, device.info()), kernel,
                                Values{50}, device.info(), {});
  };
  TuneOptions options;
  options.strategy = "genetic";
  for (const std::size_t candidates : {2, 3}) {
    const auto known = recall(candidates);
    REQUIRE(known);
    CHECK(runtime::answers(*known, options, false) == (candidates == 3));
  }
}
