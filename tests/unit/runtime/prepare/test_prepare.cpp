// Making the problems of a manifest ready: what is compiled, loaded and tuned, and what is
// reported.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln_test.hpp"
#include "prepare_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;
using enum PreparedState;

TEST_CASE("prepare tunes a manifest, and the next start only loads", "[runtime][prepare]") {
  Directory directory;
  {
    Process process(directory.path());
    process.of(8).seconds = 0.5e-3;
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    const PrepareReport report = runtime.prepare(problems({50, 60, 50}));
    CHECK(states(report) == States{tuned, tuned});  // the third is the first
    CHECK(report.complete());
    CHECK(report.problems[1].problem == std::map<std::string, std::int64_t>{{"n", 60}});
    CHECK(report.problems[1].config == std::map<std::string, std::int64_t>{{"a", 8}, {"b", 0}});
    CHECK(report.searched == 2);
    CHECK(report.compiled == 4);
    CHECK(process.compiler->compiles == 4);
    const int timings = process.device->timings, loads = process.device->loads;
    CHECK(launch(handle, 50));
    CHECK(launch(handle, 60));
    CHECK(process.device->timings == timings);
    CHECK(process.device->loads == loads);
    CHECK(runtime.statistics().tuned == 2);
  }
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const PrepareReport report = runtime.prepare(problems({50, 60}));
  CHECK(states(report) == States{known, known});
  CHECK(report.complete());
  CHECK(report.compiled == 0);
  CHECK(report.searched == 0);
  CHECK(runtime.statistics().compiled == 0);
  CHECK(runtime.statistics().tuned == 0);
  CHECK(process.device->timings == 0);
  CHECK(process.device->loads == 2);  // the winner, and the default for what is not prepared
  CHECK(handle.config({60}) == Values{8, 0});
  // A third time there is nothing left to do.
  CHECK(states(runtime.prepare(problems({50, 60}))) == States{known, known});
  CHECK(process.device->loads == 2);
}

TEST_CASE("prepare without tuning puts the untuned config in use", "[runtime][prepare]") {
  Directory directory;
  Process process(directory.path());
  process.of(4).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const PrepareReport report = runtime.prepare(problems({50, 60}), {.work = PrepareWork::compile});
  CHECK(report.work == PrepareWork::compile);
  CHECK(states(report) == States{untuned, untuned});
  CHECK(report.complete());
  CHECK(report.instances == 1);
  CHECK(process.compiler->compiles == 1);
  CHECK(launch(handle, 50));  // does not tune, though the mode is tune_now
  CHECK(process.device->timings == 0);
  CHECK(handle.config({50}) == Values{2, 0});
  CHECK(states(runtime.prepare(problems({50}))) == States{tuned});
  CHECK(handle.config({50}) == Values{4, 0});
  CHECK(handle.config({60}) == Values{2, 0});

  SECTION("the mode allows less than was asked for") {
    process.options.mode = Mode::untuned;
    const Runtime measures_nothing = process.runtime();
    const auto other = measures_nothing.tuned(doubling());
    const PrepareReport less = measures_nothing.prepare(problems({50, 70}));
    CHECK(less.work == PrepareWork::compile);
    CHECK(states(less) == States{known, untuned});
    process.options.mode = Mode::lookup_only;
    const Runtime compiles_nothing = process.runtime();
    const auto third = compiles_nothing.tuned(doubling({2, 16}, 16));
    const PrepareReport least = compiles_nothing.prepare(problems({80}));
    CHECK(least.work == PrepareWork::look_up);
    CHECK(states(least) == States{missing});
    CHECK(process.compiler->compiles == 4);
  }
}

TEST_CASE("preparing says what is missing and why before anything is chosen",
          "[runtime][prepare]") {
  std::size_t told = 0;
  const auto only_look = [](const Runtime& runtime, const Manifest& manifest) {
    return runtime.prepare(manifest, {.work = PrepareWork::look_up});
  };
  const auto check = [&](const PreparedProblem& p, const std::string& why) {
    CAPTURE(p.why);
    CHECK(p.state == missing);
    CHECK(p.config.empty());
    CHECK_THAT(p.why, Catch::Contains(why));
    ++told;
  };
  {
    INFO("nothing was compiled yet");
    Directory directory;
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    const PrepareReport report = only_look(runtime, problems({50}));
    check(report.problems.at(0), "this request compiles nothing (look_up)");
    REQUIRE(report.problems[0].missing);
    CHECK(report.problems[0].missing->instance == "doubling{a=2,b=0}");
    CHECK_FALSE(report.complete());
    CHECK(process.compiler->compiles == 0);
    CHECK(runtime.wanted().wanted == std::vector{wanted(50, 2)});
    CHECK(states(runtime.prepare(problems({50}), {.work = PrepareWork::compile})) ==
          States{untuned});
  }
  {
    INFO("there is no compiler");
    Directory directory;
    Process process(directory.path());
    const Runtime runtime = detail::Access::runtime(std::make_shared<detail::Engine>(
        process.options, process.device, [](Target::Kind) -> std::shared_ptr<codegen::Compiler> {
          throw EnvironmentError("no compiler is installed");
        }));
    const auto handle = runtime.tuned(doubling());
    for (const PrepareWork work : {PrepareWork::look_up, PrepareWork::compile, PrepareWork::tune}) {
      const PrepareReport report = runtime.prepare(problems({50}), {.work = work});
      check(report.problems.at(0), "no compiler is installed");
      CHECK(report.problems[0].missing->why == "no compiler is installed");
    }
  }
  {
    INFO("the compiler has another version");
    Directory directory;
    tune_into(directory.path(), 50, 8);
    Process process(directory.path());
    process.compiler->version = "2";
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    const PrepareReport report = only_look(runtime, problems({50}));
    check(report.problems.at(0), "compiler version");
    const auto& differences = report.problems[0].missing->differences;
    CHECK(std::ranges::any_of(differences, [](const FieldDifference& d) {
      return d.field == "compiler version" && d.wanted == "2" && d.found == "1";
    }));
  }
  {
    INFO("it is for another target");
    Directory directory;
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    Manifest manifest = problems({50, 60});
    manifest.wanted[0].target = "sm_80";
    const PrepareReport report = runtime.prepare(manifest);
    check(report.problems.at(0), "the entry is for sm_80, this device runs generic");
    CHECK(report.problems[1].state == tuned);
    CHECK_FALSE(report.complete());
  }
  {
    INFO("there is no handle");
    Directory directory;
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    check(runtime.prepare(problems({50})).problems.at(0),
          "there is no handle of kernel doubling<>");
    KernelDefinition halves = doubling();
    halves.types = {"half"};
    const auto handle = runtime.tuned(halves);
    check(runtime.prepare(problems({50})).problems.at(0), "only of doubling<half>");
    {
      const auto short_lived = runtime.tuned(doubling());
      CHECK(runtime.prepare(problems({50})).complete());
    }
    check(runtime.prepare(problems({60})).problems.at(0), "there is no handle");
  }
  CHECK(told == 9);
  WARN("reasons told before anything was chosen: " << told);
}

TEST_CASE("every handle of a kernel is prepared, a fixed config for its own entries",
          "[runtime][prepare]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto one = runtime.tuned(doubling()), two = runtime.tuned(doubling());
  const auto chosen = one.with_config({4, 0});
  Manifest manifest;
  manifest.wanted = {wanted(50), wanted(60, 4), wanted(70, 8)};
  const PrepareReport report = runtime.prepare(manifest, {.work = PrepareWork::compile});
  CHECK(report.problems.size() == 8);  // 3 on each of two handles, 2 on the chosen one
  CHECK(report.count(untuned) == 6);
  CHECK(report.count(known) == 2);
  CHECK(report.complete());
  CHECK(report.instances == 3 + 3 + 1);  // of each handle the default and the two that are named
  CHECK(process.compiler->compiles == 3);
  const int loads = process.device->loads;
  for (const int n : {50, 60, 70}) {
    CHECK(launch(one, n));
    CHECK(launch(two, n));
  }
  CHECK(launch(chosen, 50));
  CHECK(launch(chosen, 60));
  CHECK(process.device->loads == loads);
  CHECK(chosen.config({60}) == Values{4, 0});

  const auto alone = runtime.tuned(doubling({16}, 16)).with_config({16, 0});
  manifest.wanted = {wanted(80, 1)};
  KernelDefinition other = doubling();
  other.types = {"half"};
  const auto only_chosen = runtime.tuned(other).with_config({8, 0});
  manifest.wanted[0].types = {"half"};
  const PrepareReport none = runtime.prepare(manifest);
  REQUIRE(states(none) == States{missing});
  CHECK_THAT(none.problems[0].why, Catch::Contains("configs that the program chose"));
}

TEST_CASE("what is wrong with an entry is reported, and the others are prepared",
          "[runtime][prepare]") {
  Directory directory;
  Process process(directory.path());
  process.of(1).compile_log = "error: a cannot be 1";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Manifest manifest = problems({50, 60});
  manifest.wanted[0].problem = {{"m", 50}};
  manifest.wanted.push_back(wanted(70, 1));
  manifest.wanted.push_back(wanted(80));
  manifest.wanted.back().config = {{"c", 1}};
  const PrepareReport report = runtime.prepare(manifest);
  CHECK(states(report) == States{failed, tuned, tuned, failed});
  CHECK_THAT(report.problems[0].why, Catch::Contains("m"));
  CHECK_THAT(report.problems[2].why, Catch::Contains("a cannot be 1"));  // the instance it names
  CHECK_THAT(report.problems[3].why, Catch::Contains("unknown parameter 'c'"));
  CHECK_FALSE(report.complete());
  CHECK(report.ready() == 2);

  const auto json = nlohmann::json::parse(to_json(report));
  CHECK(json["complete"] == false);
  CHECK(json["work"] == "tune");
  CHECK(json["ready"] == 2);
  CHECK(json["counts"]["failed"] == 2);
  CHECK(json["problems"][1]["state"] == "tuned");
  CHECK(json["problems"][1]["problem"]["n"] == 60);
  CHECK_FALSE(json["problems"][1].contains("why"));
  CHECK(json["problems"][3].contains("why"));
}

TEST_CASE("a winner that cannot be had is reported with what runs in its place",
          "[runtime][prepare]") {
  Directory directory;
  tune_into(directory.path(), 50, 8);
  Process process(directory.path());
  SECTION("its binary is missing") {
    fs::remove(entry_of(directory, "k<8, 0>"));
    process.options.mode = Mode::lookup_only;
  }
  SECTION("it does not load") { process.of(8).load_error = "no room for the module"; }
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const PrepareReport report = runtime.prepare(problems({50}), {.work = PrepareWork::compile});
  REQUIRE(states(report) == States{on_default});
  CHECK(report.problems[0].config.at("a") == 2);
  CAPTURE(report.problems[0].why);
  CHECK((report.problems[0].why.find("a=8,b=0") != std::string::npos ||
         report.problems[0].why == "no room for the module"));
  CHECK_FALSE(report.complete());
  CHECK(report.ready() == 1);
  CHECK(launch(handle, 50));
}

TEST_CASE("where no candidate works, preparing reports it and a launch fails",
          "[runtime][prepare]") {
  Directory directory;
  Process process(directory.path());
  process.device->compute = [](void** args) { **static_cast<float**>(args[0]) = 7; };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const PrepareReport report = runtime.prepare(problems({50}));
  REQUIRE(states(report) == States{failed});
  CHECK_FALSE(report.problems[0].why.empty());
  CHECK_THROWS_AS(launch(handle, 50), TuningFailedError);
  runtime.seal();
  CHECK_THROWS_AS(launch(handle, 50), UnpreparedError);  // what stands in is known to be wrong
  process.device->compute = compute_doubling;
  runtime.unseal();
  runtime.tune(std::vector<TuneJob>{{handle, {50}}}, {.retune = true});
  runtime.seal();
  CHECK(launch(handle, 50));
}

TEST_CASE("a problem that is to be measured again is measured once, by what comes first",
          "[runtime][prepare]") {
  Directory directory;
  Process(directory.path()).runtime().tuned(doubling()).tune({50});
  Process process(directory.path());
  process.options.tuning.retune = true;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  SECTION("a launch") { CHECK(launch(handle, 50)); }
  SECTION("prepare") { CHECK(states(runtime.prepare(problems({50}))) == States{tuned}); }
  SECTION("tune") { CHECK_FALSE(handle.tune({50}).from_store); }
  CHECK(runtime.statistics().tuned == 1);
  CHECK(states(runtime.prepare(problems({50}))) == States{known});
  CHECK(handle.tune({50}).from_store);
  CHECK(launch(handle, 50));
  CHECK(runtime.statistics().tuned == 1);
  // Options of a call are that call's.
  TuneOptions again;
  again.retune = true;
  CHECK_FALSE(handle.tune({50}, again).from_store);
}

TEST_CASE("preparing ends early, and what was done is used", "[runtime][prepare]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  std::stop_source stop;
  std::vector<PrepareProgress> seen;
  PrepareOptions options;
  options.stop = stop.get_token();
  options.progress = [&](const PrepareProgress& p) {
    seen.push_back(p);
    if (p.step == PrepareProgress::Step::tune && p.done == 1) stop.request_stop();
  };
  const PrepareReport report = runtime.prepare(problems({50, 60, 70}), options);
  CHECK(report.stopped);
  CHECK_FALSE(report.complete());
  CHECK(states(report) == States{tuned, on_default, on_default});
  CHECK_THAT(report.problems[2].why, Catch::Contains("stopped"));
  CHECK(seen.front().step == PrepareProgress::Step::check);
  CHECK(seen.back().step == PrepareProgress::Step::done);
  CHECK(seen.back().problems == 3);
  CHECK(seen.back().ready == 3);
  CHECK(seen.back().on_default == 2);
  const int timings = process.device->timings;
  for (const int n : {50, 60, 70}) CHECK(launch(handle, n));
  CHECK(process.device->timings == timings);
  CHECK(states(runtime.prepare(problems({50, 60, 70}))) == States{known, tuned, tuned});

  stop.request_stop();
  const PrepareReport none = runtime.prepare(problems({90}), {.stop = stop.get_token()});
  CHECK(states(none) == States{waiting});
  CHECK_FALSE(none.complete());
  for (const double wrong : {-1.0, std::nan(""), HUGE_VAL})
    CHECK_THROWS_AS(runtime.prepare({}, {.max_seconds = wrong}), UserError);
  CHECK(runtime.prepare({}).complete());
}

TEST_CASE("a preparation on a thread of its own can be watched, cancelled and dropped",
          "[runtime][prepare][threads]") {
  Directory directory;
  Process process(directory.path());
  std::atomic<bool> hold{true};
  process.compiler->on_compile = [&](const codegen::Source&) {
    while (hold) std::this_thread::yield();
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  SECTION("to its end") {
    Preparation preparation = runtime.prepare_async(problems({50, 60}));
    CHECK_FALSE(preparation.wait(0.01));
    CHECK_THROWS_AS(runtime.prepare(problems({50})), UserError);
    CHECK_THROWS_AS(runtime.prepare_async(problems({50})), UserError);
    hold = false;
    CHECK(preparation.wait());
    CHECK(preparation.progress().step == PrepareProgress::Step::done);
    CHECK(preparation.progress().ready == 2);
    CHECK(states(preparation.get()) == States{tuned, tuned});
    CHECK(preparation.get().complete());
    CHECK(runtime.prepare(problems({50})).complete());  // the next one may begin
  }
  SECTION("cancelled") {
    Preparation preparation = runtime.prepare_async(problems({50, 60}));
    preparation.cancel();
    hold = false;
    const PrepareReport report = preparation.get();
    CHECK(report.stopped);
    CHECK_FALSE(report.complete());
  }
  SECTION("dropped, moved") {
    Preparation first = runtime.prepare_async(problems({50}));
    Preparation second = std::move(first);
    hold = false;
    CHECK(second.wait());
    second = runtime.prepare_async(problems({60}));
  }
  SECTION("an error") {
    process.options.mode = Mode::tune_now;
    hold = false;
    PrepareOptions options;
    options.progress = [](const PrepareProgress& p) {
      if (p.step == PrepareProgress::Step::load)
        throw std::runtime_error("the watcher fell asleep");
    };
    const Preparation preparation = runtime.prepare_async(problems({50}), options);
    CHECK_THROWS_WITH(preparation.get(), "the watcher fell asleep");
  }
}

TEST_CASE("a manifest is prepared within its budget, and a second run tries nothing twice",
          "[runtime][prepare]") {
  Directory directory;
  constexpr int kProblems = 120;
  constexpr double kBudget = 1.5;
  const Manifest manifest = [] {
    std::vector<int> ns;
    for (int i = 0; i < kProblems; ++i) ns.push_back(64 + i);
    return problems(ns);
  }();
  std::size_t launchable = 0;
  int compiled_first = 0;
  PrepareReport first;
  {
    Process process(directory.path());
    process.of(8).seconds = 0.5e-3;
    // A launch takes a while, so that the budget does not suffice.
    process.device->on_launch = [](const std::string&, void**) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    };
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    first = runtime.prepare(manifest, {.max_seconds = kBudget});
    process.device->on_launch = {};
    runtime.seal(OnUnprepared::error);
    for (const WantedInstance& w : manifest.wanted)
      launchable += launch(handle, static_cast<int>(w.problem.at("n"))) ? 1 : 0;
    CHECK(runtime.statistics().unprepared_refused == 0);
    compiled_first = process.compiler->compiles;
  }
  CHECK(launchable == kProblems);
  CHECK(first.out_of_time);
  CHECK(first.seconds <= kBudget + patient(10));  // with what a busy machine adds
  CHECK(first.count(tuned) > 0);
  CHECK(first.count(tuned) + first.count(on_default) == kProblems);

  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const auto tried = [&] {
    std::size_t count = 0;
    for (const WantedInstance& w : manifest.wanted)
      if (const auto known = handle.known({w.problem.at("n")}))
        count += known->candidates.size() - known->count(CandidateStatus::not_tried);
    return count;
  };
  // Each got its part only, and none was searched to the end at the cost of others.
  std::size_t unfinished = 0;
  for (const WantedInstance& w : manifest.wanted)
    if (const auto known = handle.known({w.problem.at("n")})) unfinished += known->complete ? 0 : 1;
  CHECK(unfinished > 0);
  const std::size_t before = tried();
  const PrepareReport second = runtime.prepare(manifest);
  CHECK(second.complete());
  CHECK(before > 0);
  CHECK(tried() == 4 * kProblems);
  // On a slow machine the first budget ends before all four configs are compiled; none is compiled
  // twice.
  CHECK(compiled_first + static_cast<int>(second.compiled) == 4);
  const std::size_t twice = second.evaluated - (tried() - before);
  CHECK(twice == 0);
  WARN("manifest of " << kProblems << " problems, budget " << kBudget << " s: " << first.seconds
                      << " s, tuned " << first.count(tuned) << ", launchable " << launchable
                      << "; tried twice " << twice);
}
