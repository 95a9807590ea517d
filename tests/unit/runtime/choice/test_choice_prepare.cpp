// Choices in manifests, and what a sealed runtime launches of them.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "choice_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;
using State = PreparedState;

namespace {

Manifest of_kernel(int n) { return {{{"doubling", {}, "generic", {{"n", n}}, {}}}}; }

using Config = std::map<std::string, std::int64_t>;

}  // namespace

TEST_CASE_METHOD(Twice, "a manifest's choices are measured, and the next start only loads",
                 "[choice][prepare]") {
  const bool kernel_wins = GENERATE(false, true);
  process.of_typed(4).seconds = kernel_wins ? 0.1e-3 : 0.6e-3;
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  Manifest manifest = of_choices({50, 60, 50});
  manifest.wanted.insert(manifest.wanted.begin() + 1, of_kernel(70).wanted.front());
  {
    const Runtime runtime = process.runtime();
    const auto f = tuned(runtime, twice);
    std::vector<std::size_t> problems;
    PrepareOptions options;
    options.progress = [&](const PrepareProgress& p) {
      if (p.step != PrepareProgress::Step::check) problems.push_back(p.problems);
    };
    const PrepareReport report = runtime.prepare(manifest, options);
    REQUIRE(report.problems.size() == 3);  // the last is the first
    CHECK(report.complete());
    for (const std::size_t i : {0U, 2U}) {
      const PreparedProblem& p = report.problems[i];
      CHECK(p.kernel == "twice");
      CHECK(p.is_choice);
      CHECK(p.problem == Config{{"n", i == 0 ? 50 : 60}});
      CHECK(p.state == State::tuned);
      CHECK(p.alternative == (kernel_wins ? "template" : "mine"));
      CHECK(p.config == (kernel_wins ? Config{{"a", 4}, {"b", 0}} : Config{}));
    }
    CHECK(report.problems[1].kernel == "doubling");
    CHECK(report.problems[1].alternative == "");
    CHECK(std::ranges::all_of(problems, [](std::size_t n) { return n == 3; }));
    CHECK_THAT(to_json(report), Catch::Contains("\"choice\":\"twice\"") &&
                                    Catch::Contains("\"kernel\":\"doubling\""));
    const int timings = process.device->timings, loads = process.device->loads;
    runtime.seal(OnUnprepared::error);
    CHECK(launches(f, 50));
    CHECK(launches(f, 60));
    CHECK(process.device->timings == timings);
    CHECK(process.device->loads == loads);
    CHECK(runtime.wanted().wanted.empty());
  }
  process.device->timings = 0;
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const PrepareReport report = runtime.prepare(manifest);
  CHECK(report.complete());
  CHECK(report.problems[0].state == State::known);
  CHECK(report.problems[0].alternative == (kernel_wins ? "template" : "mine"));
  CHECK(report.searched == 0);
  CHECK(report.compiled == 0);
  CHECK(runtime.statistics().tuned == 0);
  CHECK(process.device->timings == 0);
  CHECK(f.chosen({60}).name == (kernel_wins ? "template" : "mine"));
}

TEST_CASE_METHOD(Twice, "a choice that is prepared without tuning takes what is there",
                 "[choice][prepare]") {
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  tuned(process.runtime(), twice).tune({50});
  process.device->timings = 0;
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const auto work = GENERATE(PrepareWork::compile, PrepareWork::look_up);
  const PrepareReport report = runtime.prepare(of_choices({50, 60}), {.work = work});
  REQUIRE(report.problems.size() == 2);
  CHECK(report.problems[0].state == State::known);
  CHECK(report.problems[0].alternative == "mine");
  CHECK(report.problems[1].state == State::untuned);
  CHECK(report.problems[1].alternative == "template");
  CHECK(report.problems[1].config == Config{{"a", 2}, {"b", 0}});
  CHECK(report.complete());
  CHECK(process.device->timings == 0);
  CHECK(launches(f, 60));  // does not tune
  CHECK(process.device->timings == 0);
  // It is not decided: it can still be tuned.
  CHECK(runtime.prepare(of_choices({60})).problems[0].state == State::tuned);
  CHECK(f.chosen({60}).name == "mine");
}

TEST_CASE_METHOD(Twice, "a choice whose kernel has no binary is missing, and says which",
                 "[choice][prepare]") {
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const PrepareReport report = runtime.prepare(of_choices({50}), {.work = PrepareWork::look_up});
  REQUIRE(report.problems.size() == 1);
  CHECK(report.problems[0].state == State::missing);
  CHECK(report.problems[0].alternative == "");
  CHECK_THAT(report.problems[0].why, Catch::Contains("doubling"));
  CHECK(report.problems[0].missing);
  CHECK(runtime.statistics().compiled == 0);
  CHECK(process.device->timings == 0);
}

TEST_CASE_METHOD(Twice, "what cannot be prepared of a choice says why", "[choice][prepare]") {
  const Runtime runtime = process.runtime();
  Manifest manifest = of_choices({50, 60});
  SECTION("there is none of that name or types") {
    twice.types = {"float"};
    const auto f = tuned(runtime, twice);
    const PrepareReport report = runtime.prepare(manifest);
    CHECK(report.problems[0].state == State::missing);
    CHECK(report.problems[0].why == "there is no choice twice<>, only of twice<float>");
    CHECK_FALSE(report.complete());
  }
  SECTION("a kernel of the name is none") {
    const auto kernel = runtime.tuned(typed_doubling());
    manifest.wanted[0].kernel = "doubling";
    CHECK(runtime.prepare(manifest).problems[0].why == "there is no choice doubling<>");
  }
  SECTION("another target") {
    const auto f = tuned(runtime, twice);
    manifest.wanted[0].target = "sm_90a";
    const PrepareReport report = runtime.prepare(manifest);
    CHECK_THAT(report.problems[0].why, Catch::Contains("the entry is for sm_90a"));
    CHECK(report.problems[1].state == State::tuned);
  }
  SECTION("fields that it does not have, and a function that throws") {
    twice.alternatives.push_back(process.way("mine", 0.5e-3));
    twice.alternatives.back().supports = [](const DoublingProblem& p, const DeviceInfo&) {
      if (p.n == 60) throw UserError("sixty");
      return std::string();
    };
    const auto f = tuned(runtime, twice);
    manifest.wanted[0].problem = {{"m", 1}};
    const PrepareReport report = runtime.prepare(manifest);
    CHECK(report.problems[0].state == State::failed);
    CHECK_THAT(report.problems[0].why, Catch::Contains("m"));
    CHECK(report.problems[1].state == State::failed);
    CHECK(report.problems[1].why == "sixty");
  }
  SECTION("all candidates are wrong") {
    for (const int a : {1, 2, 4, 8}) process.of_typed(a).run = [](void**) {};
    auto bad = process.way("mine", 0.5e-3);
    bad.call = [](const auto&, Stream, float*, const float*, int) {};
    twice.alternatives.push_back(bad);
    const auto f = tuned(runtime, twice);
    const PrepareReport report = runtime.prepare(manifest);
    CHECK(report.problems[0].state == State::failed);
    CHECK(report.problems[0].why != "");
    CHECK(report.problems[0].config.empty());
  }
}

TEST_CASE_METHOD(Twice, "a forced choice is prepared without a measurement", "[choice][prepare]") {
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice, {.choose = "mine"});
  const PrepareReport report = runtime.prepare(of_choices({50}));
  CHECK(report.problems[0].state == State::known);
  CHECK(report.problems[0].alternative == "mine");
  CHECK(process.calls["mine"] == 0);
  CHECK(report.compiled == 0);
}

TEST_CASE_METHOD(Twice, "a choice of one kernel is as its kernel", "[choice][prepare]") {
  process.of_typed(4).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const PrepareReport report = runtime.prepare(of_choices({50}));
  REQUIRE(report.problems.size() == 1);
  CHECK(report.problems[0].state == State::tuned);
  CHECK(report.problems[0].alternative == "template");
  CHECK(report.problems[0].config == Config{{"a", 4}, {"b", 0}});
  CHECK(report.complete());
  runtime.seal(OnUnprepared::error);
  CHECK(launches(f, 50));
}

TEST_CASE_METHOD(TwiceInBuckets, "a kernel whose buckets are finer than its choice's is ready",
                 "[choice][prepare]") {
  process.of_typed(4).seconds = 0.1e-3;
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const PrepareReport report = runtime.prepare(of_choices({50, 60}));
  CHECK(report.complete());
  for (const PreparedProblem& p : report.problems) {
    CHECK(p.alternative == "template");
    CHECK(p.config == Config{{"a", 4}, {"b", 0}});
  }
  const int timings = process.device->timings;
  CHECK(launches(f, 50));
  CHECK(launches(f, 60));
  CHECK(process.device->timings == timings);
}

TEST_CASE_METHOD(Twice, "choices without time are ready untuned", "[choice][prepare]") {
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  SECTION("the time is used up") {
    const PrepareReport report = runtime.prepare(of_choices({50, 60}), {.max_seconds = 1e-9});
    for (const PreparedProblem& p : report.problems)
      CHECK((p.state == State::missing || p.state == State::on_default));
    for (const PreparedProblem& p : report.problems)
      CHECK_THAT(p.why, Catch::Contains("time was used up"));
    CHECK(report.out_of_time);
  }
  SECTION("stopped") {
    std::stop_source stop;
    stop.request_stop();
    const PrepareReport report = runtime.prepare(of_choices({50}), {.stop = stop.get_token()});
    CHECK(report.stopped);
    CHECK(report.problems[0].state == State::waiting);
  }
  CHECK(process.device->timings == 0);
}

TEST_CASE_METHOD(Twice, "a sealed runtime serves a choice's other problems with its kernel",
                 "[choice][prepare][sealed]") {
  std::string log;
  process.options.log = [&](LogLevel, std::string_view text) { log += std::string(text) + "\n"; };
  twice.alternatives.push_back(process.way("mine", 1e-4));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  runtime.prepare(of_choices({40}));
  const auto policy = GENERATE(OnUnprepared::serve, OnUnprepared::warn, OnUnprepared::error);
  runtime.seal(policy);
  const std::size_t compiled = runtime.statistics().compiled;
  const int loads = process.device->loads, timings = process.device->timings;
  process.calls.clear();
  Buffers data(50);
  const auto launch = [&] { f({}, data.y.data(), data.x.data(), 50); };
  if (policy == OnUnprepared::error) {
    CHECK_THROWS_AS(launch(), UnpreparedError);
    CHECK_THROWS_AS(launch(), UnpreparedError);
  } else {
    launch();
    launch();
    CHECK(data.doubled());
  }
  CHECK(process.calls.empty());
  CHECK(runtime.statistics().compiled == compiled);
  CHECK(process.device->loads == loads);
  CHECK(process.device->timings == timings);
  CHECK(runtime.statistics().unprepared_refused == (policy == OnUnprepared::error ? 2 : 0));
  CHECK(runtime.statistics().unprepared_served == (policy == OnUnprepared::error ? 0 : 2));
  const std::string warning = "choice twice for n=50: it was not prepared, so template is launched";
  const std::size_t said = log.find(warning);
  CHECK((said != std::string::npos) == (policy == OnUnprepared::warn));
  if (said != std::string::npos) CHECK(log.find(warning, said + 1) == std::string::npos);
  // The loop is closed by what was wanted.
  CHECK(runtime.wanted().wanted == std::vector{wanted_choice(50, 2)});
  runtime.prepare(runtime.wanted());
  launch();
  CHECK(process.calls["mine"] > 0);
  CHECK(runtime.wanted().wanted.empty());
}

TEST_CASE_METHOD(Twice, "a kernel that a choice has found wrong serves nothing",
                 "[choice][prepare][sealed]") {
  // Right by its own workload, and wrong by the choice's.
  twice.workload = [](const DoublingProblem& p, Workload& w) {
    const auto n = std::size_t(p.n);
    w.output<float>(n).input<float>(n).scalar<int>(p.n);
  };
  twice.reference = [](float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] = 3 * x[i];
  };
  const bool none = GENERATE(false, true);  // of the candidates is right
  auto mine = process.way("mine", 1e-3);
  mine.call = [&](const auto&, Stream, float* y, const float* x, int n) {
    for (int i = 0; i < n && !none; ++i) y[i] = 3 * x[i];
    process.device->pass(1e-3);
  };
  twice.alternatives.push_back(mine);
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const PrepareReport report = runtime.prepare(of_choices({40}));
  CHECK(report.problems[0].state == (none ? State::failed : State::tuned));
  CHECK(report.problems[0].alternative == (none ? "" : "mine"));
  runtime.seal();
  Buffers data(50);
  CHECK_THROWS_AS(f({}, data.y.data(), data.x.data(), 50), UnpreparedError);
}

TEST_CASE_METHOD(Twice, "what was launched unprepared outlives the choice", "[choice][prepare]") {
  const fs::path file = directory.path() / "wanted.json";
  {
    const EnvironmentVariable variable("KILN_WANTED", file.string());
    const Runtime runtime = process.runtime();
    {
      const auto f = tuned(runtime, twice);
      runtime.seal();
      for (int i = 0; i < 3; ++i) CHECK_THROWS_AS(launches(f, 40), UnpreparedError);
    }
    CHECK(runtime.wanted().wanted == std::vector{wanted_choice(40, 3)});
  }
  CHECK(Manifest::read(file).wanted == std::vector{wanted_choice(40, 3)});
}

TEST_CASE_METHOD(Twice, "a choice that was not measured is measured by the next preparation",
                 "[choice][prepare]") {
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const Runtime runtime = process.runtime();
  SECTION("after one that was stopped while it measured") {  // what it found is used
    std::stop_source stop;
    twice.alternatives.back().call = [&](const auto&, Stream, float* y, const float* x, int n) {
      stop.request_stop();
      for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
      process.device->pass(0.5e-3);
    };
    const auto g = tuned(runtime, twice);
    const PrepareReport report = runtime.prepare(of_choices({50}), {.stop = stop.get_token()});
    CHECK(report.stopped);
    for (const PreparedProblem& p : report.problems) CHECK(p.state != State::known);
    const PrepareReport again = runtime.prepare(of_choices({50}));
    CHECK(again.complete());
    CHECK(g.chosen({50}).name == "mine");
  }
  SECTION("after one that found no time") {
    const auto f = tuned(runtime, twice);
    CHECK(runtime.prepare(of_choices({50}), {.work = PrepareWork::compile}).complete());
    const PrepareReport report = runtime.prepare(of_choices({50}));
    CHECK(report.problems[0].state == State::tuned);
    CHECK(f.chosen({50}).name == "mine");
  }
  SECTION("a search that was cut short goes on") {
    const auto f = tuned(runtime, twice);
    f.tune({50}, {.max_evaluations = 2});
    REQUIRE_FALSE(f.known({50})->complete);
    process.of_typed(4).seconds = 0.1e-3;
    const PrepareReport report = runtime.prepare(of_choices({50}));
    CHECK(report.searched >= 1);
    CHECK(f.known({50})->complete);
    CHECK(f.chosen({50}).name == "template");
    CHECK(runtime.prepare(of_choices({50})).searched == 0);
  }
}

TEST_CASE_METHOD(TwiceInBuckets, "another exact problem of a choice's bucket has its kernel tuned",
                 "[choice][prepare]") {
  process.of_typed(4).seconds = 0.1e-3;
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  CHECK(runtime.prepare(of_choices({50})).complete());
  SECTION("by the next manifest") {
    const PrepareReport report = runtime.prepare(of_choices({60}));
    CHECK(report.complete());
    CHECK(report.problems[0].config == Config{{"a", 4}, {"b", 0}});
  }
  SECTION("not by one that compiles: then it says so") {
    const PrepareReport report = runtime.prepare(of_choices({60}), {.work = PrepareWork::compile});
    CHECK(report.problems[0].state == State::untuned);
    CHECK(runtime.prepare(of_choices({60})).problems[0].state != State::untuned);
  }
  SECTION("nor by one that looks up, which compiles and tunes nothing") {
    process.options.store.directory = directory.path() / "empty";
    const Runtime fresh = process.runtime();
    const auto g = tuned(fresh, twice);
    const int timings = process.device->timings, compiles = process.compiler->compiles;
    const PrepareReport report = fresh.prepare(of_choices({60}), {.work = PrepareWork::look_up});
    CHECK(report.problems[0].state == State::missing);
    CHECK(process.device->timings == timings);
    CHECK(process.compiler->compiles == compiles);
  }
}

TEST_CASE_METHOD(Twice, "a kernel that a choice is forced to is tuned", "[choice][prepare]") {
  process.of_typed(4).seconds = 0.1e-3;
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice, {.choose = "template"});
  const auto work = GENERATE(PrepareWork::tune, PrepareWork::compile);
  const PrepareReport report = runtime.prepare(of_choices({50}), {.work = work});
  CHECK(report.problems[0].alternative == "template");
  const bool tunes = work == PrepareWork::tune;
  CHECK(report.problems[0].config == Config{{"a", tunes ? 4 : 2}, {"b", 0}});
  CHECK(report.problems[0].state == (tunes ? State::known : State::untuned));
}

TEST_CASE_METHOD(Twice, "an empty problem of a choice is ready", "[choice][prepare]") {
  twice.alternatives.front().supports = {};
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  if (GENERATE(false, true)) f.prepare({0});
  for (int i = 0; i < 2; ++i) {
    const PrepareReport report = runtime.prepare(of_choices({0}));
    CHECK(report.complete());
    CHECK(report.problems[0].alternative == "template");
  }
  runtime.seal(OnUnprepared::error);
  CHECK(launches(f, 0));
}

TEST_CASE_METHOD(Twice, "a choice is prepared by its own options and its gate",
                 "[choice][prepare]") {
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const Runtime runtime = process.runtime();
  SECTION("its limits") {
    const auto f = tuned(runtime, twice, {.tuning = TuneOptions{.max_evaluations = 2}});
    runtime.prepare(of_choices({50}));
    CHECK(runtime.tuned(typed_doubling()).known({50})->count(CandidateStatus::measured) == 2);
  }
  SECTION("its gate: the kernel is neither compiled nor timed") {
    std::ranges::reverse(twice.alternatives);
    twice.workload = typed_doubling().workload;
    twice.reference = typed_doubling().reference;
    const ChoiceOptions options{.gate = {.seconds = 1e-3}};
    {
      const auto f = tuned(runtime, twice, options);
      const PrepareReport report = runtime.prepare(of_choices({50}));
      CHECK(report.problems[0].state == State::tuned);
      CHECK(report.problems[0].alternative == "mine");
    }
    const Runtime again = process.runtime();
    const auto f = tuned(again, twice, options);
    CHECK(again.prepare(of_choices({50})).problems[0].state == State::known);
    CHECK(process.compiler->compiles == 0);
  }
}

TEST_CASE_METHOD(Twice, "behind a gate that did not act the kernel is prepared",
                 "[choice][prepare]") {
  process.of_typed(4).seconds = 0.1e-3;
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  std::ranges::reverse(twice.alternatives);
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  const ChoiceOptions options{.gate = {.seconds = 1e-5}};
  {
    const Runtime runtime = process.runtime();
    const auto f = tuned(runtime, twice, options);
    const PrepareReport report = runtime.prepare(of_choices({50}));
    CHECK(report.problems[0].state == State::tuned);
    CHECK(report.problems[0].alternative == "template");
  }
  const auto work = GENERATE(PrepareWork::tune, PrepareWork::look_up);
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice, options);
  const PrepareReport report = runtime.prepare(of_choices({50}), {.work = work});
  CHECK(report.problems[0].state == State::known);
  CHECK(report.problems[0].alternative == "template");
  runtime.seal(OnUnprepared::error);
  CHECK(launches(f, 50));
}

TEST_CASE_METHOD(Twice, "a preparation that runs out of time over a choice says so",
                 "[choice][prepare]") {
  auto slow = process.way("mine", 0.5e-3);
  slow.call = [&](const auto&, Stream, float* y, const float* x, int n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    process.device->pass(0.5e-3);
  };
  twice.alternatives.push_back(slow);
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const PrepareReport report = runtime.prepare(of_choices({50}), {.max_seconds = 0.1});
  CHECK(report.out_of_time);
}
