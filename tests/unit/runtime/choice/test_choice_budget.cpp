// Choices as jobs of Runtime::tune, beside kernels.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <stop_token>
#include <thread>
#include <utility>

#include "choice_fixture.hpp"
#include "cublaslt_fixture.hpp"
#include "kiln/communicators.hpp"
#include "kiln/metrics.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace std::chrono_literals;

namespace {

TuneOptions stopped_at_once() {
  std::stop_source stop;
  stop.request_stop();
  TuneOptions options{.max_seconds = 60};
  options.stop = stop.get_token();
  return options;
}

}  // namespace

TEST_CASE("kernels and choices share a budget", "[choice][budget]") {
  Twice t;
  auto doubles = typed_doubling();
  doubles.flops = [](const DoublingProblem& p) { return 1.0 * p.n; };
  doubles.bytes = [](const DoublingProblem& p) { return 8.0 * p.n; };
  t.twice = choice(doubles, "twice");
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  const auto kernel = runtime.tuned(doubling());
  const std::vector<TuneJob> jobs{{f, {50}, 3}, {kernel, {50}, 1}, {f, {60}}, {f, {50}}};
  const double seconds = GENERATE(60.0, 0.0);  // 0: one after the other
  const auto results = runtime.tune(jobs, {.max_seconds = seconds});
  REQUIRE(results.size() == 4);
  for (const std::size_t j : {0U, 2U, 3U}) {
    CHECK(results[j].kernel == "twice");
    CHECK(results[j].problem == jobs[j].problem);
    CHECK(results[j].complete);
    CHECK_THAT(results[j].describe(results[j].winner()), Catch::Contains("alternative=mine"));
    CHECK(results[j].count(CandidateStatus::measured) == 2);
    CHECK(results[j].flops == static_cast<double>(jobs[j].problem[0]));
    CHECK(results[j].bytes == 8 * results[j].flops);
    REQUIRE(results[j].kernels.size() == 1);
    CHECK(results[j].kernels[0].alternative == "template");
    CHECK(results[j].kernels[0].kernel == "doubling");
    CHECK(results[j].kernels[0].problem == jobs[j].problem);
  }
  CHECK(results[1].kernel == "doubling");
  CHECK(results[1].complete);
  // The kernel was tuned by itself, once for both jobs of the problem.
  CHECK(runtime.tuned(typed_doubling()).known({50})->complete);
  CHECK(f.chosen({50}).name == "mine");
  CHECK(f.known({60})->complete);
  const auto again = runtime.tune(jobs, {.max_seconds = 60});
  for (const TuneResult& result : again) CHECK(result.from_store);
}

TEST_CASE("a choice whose kernel has become faster within a budget is measured again",
          "[choice][budget]") {
  Twice t;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  t.process.of_typed(4).seconds = 0.1e-3;
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  const std::vector<TuneJob> jobs{{f, {50}}};
  // With the kernel's default alone.
  const TuneResult before = f.tune({50}, {.max_evaluations = 2});
  CHECK_THAT(before.describe(before.winner()), Catch::Contains("alternative=mine"));
  REQUIRE(runtime.tuned(typed_doubling()).known({50})->winner().seconds > 0.5e-3);
  const auto results = runtime.tune(jobs, {.max_seconds = 60});
  CHECK_THAT(results[0].describe(results[0].winner()), Catch::Contains("alternative=template"));
  CHECK(f.chosen({50}).name == "template");
}

TEST_CASE("a record of a choice is no answer when a kernel that lost has become faster",
          "[choice][budget]") {
  Twice t;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  t.process.of_typed(4).seconds = 0.1e-3;
  // With the kernel's default alone, by another process.
  tuned(t.process.runtime(), t.twice).tune({50}, {.max_evaluations = 2});
  const Runtime runtime = t.process.runtime();
  CHECK(tuned(runtime, t.twice).known({50}));
  // The kernel is tuned by itself, and its choice does not meet.
  runtime.tuned(typed_doubling()).tune({50});
  CHECK_FALSE(tuned(t.process.runtime(), t.twice).known({50}));
  SECTION("a launch measures it again") {
    CHECK(tuned(t.process.runtime(), t.twice).chosen({50}).name == "template");
  }
  SECTION("a preparation does") {
    const Runtime again = t.process.runtime();
    const auto f = tuned(again, t.twice);
    const PrepareReport report = again.prepare(of_choices({50}));
    CHECK(report.problems[0].state == PreparedState::tuned);
    CHECK(report.problems[0].alternative == "template");
  }
  SECTION("a mode that does not tune uses what it has") {
    t.process.options.mode = Mode::lookup_only;
    CHECK(tuned(t.process.runtime(), t.twice).chosen({50}).name == "mine");
  }
  // Once it has met, it holds.
  t.process.options.mode = Mode::tune_now;
  tuned(t.process.runtime(), t.twice).tune({50});
  const int timings = t.process.device->timings;
  CHECK(tuned(t.process.runtime(), t.twice).chosen({50}).name == "template");
  CHECK(t.process.device->timings == timings);
  // A kernel that has won, and got faster, wins.
  t.process.of_typed(8).seconds = 0.05e-3;
  runtime.tuned(typed_doubling()).tune({50}, {.retune = true});
  const auto known = tuned(t.process.runtime(), t.twice).known({50});
  REQUIRE(known);
  CHECK_THAT(known->describe(known->winner()), Catch::Contains("alternative=template"));
  CHECK(known->kernels.front().config == std::map<std::string, std::int64_t>{{"a", 8}, {"b", 0}});
}

TEST_CASE("a kernel of a choice that is asked for by itself, too, is tuned once in a budget",
          "[choice][budget]") {
  Twice t;
  t.process.of_typed(4).seconds = 0.1e-3;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  const Runtime runtime = t.process.runtime();
  const auto kernel = runtime.tuned(typed_doubling().definition());
  const auto f = tuned(runtime, t.twice);
  TuneOptions options{.max_seconds = 60, .retune = true};
  bool ends = false, again = false;
  options.progress = [&](const TuneProgress& now) {
    if (now.kernel != "doubling") return;
    again = again || (ends && now.phase == TuneProgress::Phase::compile);
    ends = ends || now.phase == TuneProgress::Phase::finals;
  };
  const auto results = runtime.tune(std::vector<TuneJob>{{kernel, {50}, 2}, {f, {50}}}, options);
  REQUIRE(results[0].winner().config == Values{4, 0});
  CHECK(ends);
  CHECK_FALSE(again);
  CHECK(kernel.config({50}) == Values{4, 0});
  CHECK(f.chosen({50}).name == "template");
  CHECK(f.known({50})->kernels.front().config ==
        std::map<std::string, std::int64_t>{{"a", 4}, {"b", 0}});
}

TEST_CASE("a choice without a kernel says its rates itself", "[choice]") {
  Twice t;
  Doubling twice{.name = "twice", .problem = t.twice.problem};
  twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  twice.flops = [](const DoublingProblem& p) { return 1e6 * p.n; };
  twice.bytes = [](const DoublingProblem& p) { return 2e6 * p.n; };
  const TuneResult result = tuned(t.process.runtime(), twice).tune({50});
  CHECK(result.flops == 5e7);
  CHECK(result.bytes == 1e8);
  CHECK(metrics(result, result.winner()).tflops == Approx(5e7 / 0.5e-3 * 1e-12));
  CHECK(metrics(result, result.winner()).gbs == Approx(1e8 / 0.5e-3 * 1e-9));
}

TEST_CASE("alternatives meet although kernels could use up the budget", "[choice][budget]") {
  Twice t;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  std::vector<TuneJob> jobs;
  for (int n = 50; n < 90; ++n) jobs.push_back({f, {n}, n == 89 ? 5.0 : 1.0});
  TuneOptions options{.max_seconds = 2};
  options.progress = [](const TuneProgress& p) {
    if (p.kernel != "twice") std::this_thread::sleep_for(40ms);
  };
  const auto results = runtime.tune(jobs, options);
  // The heaviest comes first.
  CHECK_THAT(results.back().describe(results.back().winner()), Catch::Contains("alternative=mine"));
  CHECK(results.back().winner().status == CandidateStatus::measured);
  // Launches of what was not reached do not tune.
  const int timings = t.process.device->timings;
  for (int n = 50; n < 90; ++n) {
    std::vector<float> x(static_cast<std::size_t>(n), 1), y(x);
    f({}, y.data(), x.data(), n);
    CHECK(y[0] == 2);
  }
  CHECK(t.process.device->timings == timings);
}

TEST_CASE("a choice that a budget did not reach tells what is on record", "[choice][budget]") {
  Twice t;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  tuned(t.process.runtime(), t.twice).tune({50});
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  const TuneResult result =
      runtime.tune(std::vector<TuneJob>{{f, {50}}}, stopped_at_once()).front();
  CHECK(result.from_store);
  CHECK(result.count(CandidateStatus::measured) == 2);
  CHECK_THAT(result.describe(result.winner()), Catch::Contains("alternative=mine"));
  CHECK(f.chosen({50}).name == "mine");
}

TEST_CASE("a choice that a stopped budget did not reach launches its first candidate",
          "[choice][budget]") {
  Twice t;
  t.twice.alternatives.insert(t.twice.alternatives.begin(), t.process.way("mine", 0.5e-3));
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  const auto results = runtime.tune(std::vector<TuneJob>{{f, {50}}}, stopped_at_once());
  CHECK(results[0].winner().status == CandidateStatus::not_tried);
  CHECK(results[0].end == SearchEnd::stopped);
  CHECK(f.chosen({50}).name == "mine");
  CHECK(t.process.device->timings == 0);
}

TEST_CASE("a stopped budget does not tune the kernel that a choice would launch",
          "[choice][budget]") {
  Twice t;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  runtime.tune(std::vector<TuneJob>{{f, {50}}}, stopped_at_once());
  CHECK(t.process.device->timings == 0);
  CHECK(f.chosen({50}).name == "mine");  // launches tune
}

TEST_CASE("a kernel that fails in a budget is not tuned again when its choice meets",
          "[choice][budget]") {
  Twice t;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  std::atomic<int> launches = 0;
  for (const int a : {1, 2, 4, 8})
    t.process.of_typed(a).run = [&](void** args) {
      ++launches;
      **static_cast<float**>(args[0]) = -1;
    };
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  const auto by_itself = runtime.tuned(typed_doubling());
  CHECK_THROWS_AS(by_itself.tune({60}), TuningFailedError);
  const int once = launches.exchange(0);
  REQUIRE(once > 0);
  const TuneResult result =
      runtime.tune(std::vector<TuneJob>{{f, {50}}}, {.max_seconds = 60}).front();
  CHECK(result.count(CandidateStatus::measured) == 1);
  CHECK(f.chosen({50}).name == "mine");
  CHECK(launches == once);
}

TEST_CASE("a meeting that is stopped puts nothing in use that was found wrong",
          "[choice][budget]") {
  Twice t;
  std::stop_source stop;
  DoublingWay wrong = t.process.way("wrong", 1e-5);
  wrong.call = [&](const auto&, Stream, float* y, const float*, int n) {
    std::fill_n(y, n, 0.0f);
    stop.request_stop();
  };
  t.twice.alternatives.insert(t.twice.alternatives.begin(), wrong);
  t.twice.workload = typed_doubling().workload;
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  TuneOptions options{.max_seconds = 60};
  options.stop = stop.get_token();
  const TuneResult result = runtime.tune(std::vector<TuneJob>{{f, {50}}}, options).front();
  REQUIRE(result.count(CandidateStatus::wrong_result) == 1);
  CHECK(result.count(CandidateStatus::measured) == 0);
  CHECK(f.chosen({50}).name == "template");
}

TEST_CASE("a choice that is forced to a kernel has it tuned once within a budget",
          "[choice][budget]") {
  Twice t;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice, {.choose = "template"});
  const TuneResult result =
      runtime.tune(std::vector<TuneJob>{{f, {50}}}, {.max_seconds = 60}).front();
  CHECK(result.winner().status == CandidateStatus::measured);
  const auto known = runtime.tuned(typed_doubling()).known({50});
  REQUIRE(known);
  CHECK(known->complete);
  CHECK(f.chosen({50}).name == "template");
  CHECK(t.process.calls.empty());
}

TEST_CASE("a choice within a budget stops at its gate", "[choice][budget][gate]") {
  Twice t;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  t.twice.workload = typed_doubling().workload;
  const ChoiceOptions options{.gate = {.seconds = 2e-3}};
  const Runtime runtime = t.process.runtime();
  const auto f = tuned(runtime, t.twice, options);
  const std::vector<TuneJob> jobs{{f, {50}}};
  const auto results = runtime.tune(jobs, {.max_seconds = 60});
  CHECK(results[0].candidates.size() == 1);
  REQUIRE(results[0].warnings.size() == 1);
  CHECK_THAT(results[0].warnings[0], Catch::StartsWith("the gate has acted"));
  CHECK(f.chosen({50}).name == "template");
  CHECK(t.process.calls.empty());
  CHECK(tuned(t.process.runtime(), t.twice, options).known({50}));
}

TEST_CASE("a choice that fails within a budget fails alone", "[choice][budget]") {
  Twice t;
  Doubling none = t.twice;
  none.name = "none";
  const bool throws = GENERATE(false, true);
  for (auto& alternative : none.alternatives)
    alternative.supports = [throws](const DoublingProblem&, const DeviceInfo&) -> std::string {
      if (throws) throw 7;
      return "it is not the day";
    };
  const Runtime runtime = t.process.runtime();
  const auto bad = tuned(runtime, none), good = tuned(runtime, t.twice);
  const auto results =
      runtime.tune(std::vector<TuneJob>{{bad, {50}}, {good, {50}}}, {.max_seconds = 60});
  CHECK(results[0].kernel == "none");
  CHECK_THAT(results[0].failure,
             Catch::Contains(throws ? "not derived from std::exception" : "it is not the day"));
  CHECK(results[1].complete);
  if (!throws)
    CHECK_THROWS_AS(runtime.tune(std::vector<TuneJob>{{bad, {50}}}, {.max_seconds = 60}),
                    UserError);
}

TEST_CASE("choices without kernels have the whole budget for their meetings",
          "[choice][budget][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  process.seconds[15] = 0.5e-3;
  const Runtime runtime = process.runtime();
  const DynamicChoice f = tuned(runtime, process.choice());
  const auto small = to_values(kSmall);
  const std::vector<TuneJob> jobs{{f, Values(small.begin(), small.end())}};
  const auto results = runtime.tune(jobs, {.max_seconds = 60});
  CHECK(results[0].complete);
  CHECK_THAT(results[0].describe(results[0].winner()), Catch::Contains("cublaslt.tile=15"));
  CHECK(results[0].count(CandidateStatus::measured) == 3);
}

TEST_CASE("jobs with choices that make no sense are refused", "[choice][budget]") {
  Twice t;
  const Runtime runtime = t.process.runtime(), other = t.process.runtime();
  const auto f = tuned(runtime, t.twice);
  const auto tune = [&](const Runtime& by, double weight, TuneOptions options) {
    options.max_seconds = 5;
    return by.tune(std::vector<TuneJob>{{f, {50}, weight}}, options);
  };
  CHECK_THROWS_WITH(tune(runtime, -1, {}), Catch::Contains("weight of choice twice"));
  CHECK_THROWS_WITH(tune(other, 1, {}), Catch::Contains("another runtime"));
  TuneOptions ranks;
  ranks.ranks = std::move(thread_communicators(1)[0]);
  CHECK_THROWS_WITH(tune(runtime, 1, ranks), Catch::Contains("tune choice twice by itself"));
  CHECK_THROWS_AS(runtime.tune(std::vector<TuneJob>{{f, {50, 60}}}, {.max_seconds = 5}), UserError);
}
