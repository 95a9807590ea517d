// The gate of a choice, what stays of its record, and the time limit that its kernels share.
#include <chrono>
#include <thread>
#include <utility>

#include "choice_fixture.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE_METHOD(Twice, "the gate takes a first alternative that is fast enough, and says so",
                 "[choice][gate]") {
  std::string log;
  process.options.log = [&](LogLevel, std::string_view text) { log += std::string(text) + "\n"; };
  const DoublingWay first = process.way("first", 1e-4);
  twice.alternatives = {first, twice.alternatives[0], process.way("quick", 1e-5)};
  twice.workload = typed_doubling().workload;
  const ChoiceGate gate =
      GENERATE(ChoiceGate{.seconds = 2e-4}, ChoiceGate{.share = 0.01, .step_seconds = 0.02});
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice, {.gate = gate});
  if (GENERATE(true, false)) {
    const TuneResult result = f.tune({40});
    CHECK(result.candidates.size() == 1);
    REQUIRE(result.warnings.size() == 1);
    CHECK_THAT(result.warnings[0],
               Catch::StartsWith("the gate has acted: alternative=first takes 100 us, less than "
                                 "200 us, so no other candidate was tried"));
    CHECK(result.left_out ==
          std::vector<LeftOut>{{"template", "the gate: first takes less than 200 us"},
                               {"quick", "the gate: first takes less than 200 us"}});
  }
  Buffers data(40);
  f({}, data.y.data(), data.x.data(), 40);
  CHECK(f.chosen({40}).name == "first");
  CHECK(runtime.statistics().compiled == 0);
  CHECK(process.calls["quick"] == 0);
  CHECK(log.find("choice twice for n=40: the gate has acted: alternative=first") !=
        std::string::npos);

  // The next process has it on record.
  process.calls.clear();
  const auto again = tuned(process.runtime(), twice, {.gate = gate});
  CHECK(again.known({40}));
  CHECK(again.chosen({40}).name == "first");
  CHECK(process.calls.empty());
  // What was measured with a gate is no answer without it, nor behind another one.
  CHECK(tuned(process.runtime(), twice).chosen({40}).name == "quick");
  CHECK(tuned(process.runtime(), twice, {.gate = {.seconds = 5e-5}}).chosen({40}).name == "quick");
  CHECK(tuned(process.runtime(), twice, {.gate = gate}).chosen({40}).name == "first");
}

TEST_CASE_METHOD(Twice, "modes that do not tune find what a gate has left on record",
                 "[choice][gate]") {
  twice.alternatives.push_back(process.way("quick", 1e-5));
  twice.workload = typed_doubling().workload;
  process.of_typed(8).seconds = 1e-4;  // not its default
  const ChoiceOptions options{.gate = {.seconds = 2e-3}};
  const TuneResult measured = tuned(process.runtime(), twice, options).tune({40});
  REQUIRE(measured.candidates.size() == 1);
  process.options.mode = Mode::untuned;
  process.calls.clear();
  const auto f = tuned(process.runtime(), twice, options);
  const TuneResult found = f.tune({40});
  CHECK(found.from_store);
  CHECK(found.winner().config == measured.winner().config);
  CHECK(found.left_out == measured.left_out);
  CHECK(f.chosen({40}).name == "template");
  CHECK(process.calls.empty());
}

TEST_CASE_METHOD(Twice, "a gate that does not act has the first kernel tuned once",
                 "[choice][gate]") {
  twice.alternatives.push_back(process.way("quick", 1e-5));
  twice.workload = typed_doubling().workload;
  const auto f = tuned(process.runtime(), twice, {.gate = {.seconds = 1e-6}});
  f.prepare({40});
  TuneOptions options{.retune = true};
  std::size_t tried = 0;  // before the alternatives meet
  options.progress = [&](const TuneProgress& p) {
    if (p.kernel == "doubling") ++tried;
  };
  f.tune({40}, options);
  REQUIRE(tried > 0);
  const std::size_t with_gate = std::exchange(tried, 0);
  tuned(process.runtime(), twice).tune({40}, options);
  CHECK(with_gate == tried);
  CHECK(f.chosen({40}).name == "quick");
}

TEST_CASE_METHOD(Twice, "a gate that does not act leaves no trace", "[choice][gate]") {
  twice.alternatives = {process.way("first", 1e-4), process.way("quick", 1e-5)};
  twice.workload = typed_doubling().workload;
  const auto f = tuned(process.runtime(), twice, {.gate = {.seconds = 9e-5}});
  const TuneResult result = f.tune({40});
  CHECK(f.chosen({40}).name == "quick");
  CHECK(result.warnings.empty());
  CHECK(result.left_out.empty());
  CHECK(result.complete);
  process.calls.clear();
  CHECK(tuned(process.runtime(), twice, {.gate = {.seconds = 9e-5}}).chosen({40}).name == "quick");
  CHECK(process.calls.empty());
}

TEST_CASE_METHOD(Twice, "a first alternative that is wrong passes no gate", "[choice][gate]") {
  DoublingWay wrong = process.way("wrong", 1e-5);
  wrong.call = [](const auto&, Stream, float* y, const float*, int n) { std::fill_n(y, n, 0.0f); };
  twice.alternatives.insert(twice.alternatives.begin(), wrong);
  const auto f = tuned(process.runtime(), twice, {.gate = {.seconds = 1}});
  f.prepare({40});
  CHECK(f.chosen({40}).name == "template");
}

TEST_CASE_METHOD(Twice, "a gate without sense is refused", "[choice][gate]") {
  for (const ChoiceGate& gate :
       {ChoiceGate{.seconds = -1}, ChoiceGate{.seconds = std::numeric_limits<double>::infinity()},
        ChoiceGate{.seconds = std::numeric_limits<double>::quiet_NaN()}, ChoiceGate{.share = 0.1},
        ChoiceGate{.step_seconds = 1}})
    CHECK_THROWS_WITH(tuned(process.runtime(), twice, {.gate = gate}),
                      Catch::Contains("choice twice: ChoiceOptions::gate"));
}

TEST_CASE_METHOD(Twice, "entries that hold stay when the default's or the winner's does not",
                 "[choice]") {
  DoublingWay quick = process.way("quick", 1e-4);
  const bool leads = GENERATE(false, true);
  twice.alternatives.push_back(process.way("slow", 2e-3));
  twice.alternatives.insert(leads ? twice.alternatives.begin() : twice.alternatives.end(), quick);
  CHECK(tuned(process.runtime(), twice).tune({40}).evaluated == 3);
  auto& changed = leads ? twice.alternatives.front() : twice.alternatives.back();
  changed = process.way("quick", 5e-3);
  changed.version = "2";
  const auto f = tuned(process.runtime(), twice);
  CHECK_FALSE(f.known({40}));
  process.options.mode = Mode::untuned;  // what holds is better than the default
  CHECK(tuned(process.runtime(), twice).chosen({40}).name == "template");
  process.options.mode = Mode::tune_now;
  const TuneResult result = f.tune({40});
  CHECK(result.evaluated == 1);
  CHECK(result.count(CandidateStatus::measured) == 3);
  CHECK(f.chosen({40}).name == "template");
}

TEST_CASE_METHOD(Twice, "what stands in for a winner that lacks something leaves when it can",
                 "[choice]") {
  DoublingWay mine = process.way("mine", 1e-4);
  bool broken = false;
  mine.workspace = [&](Named, const DoublingProblem&) {
    if (broken) throw EnvironmentError("not now");
    return std::size_t{0};
  };
  twice.alternatives.push_back(mine);
  tuned(process.runtime(), twice).prepare({40});
  broken = true;
  const auto f = tuned(process.runtime(), twice);
  f.prepare({40});
  CHECK(f.chosen({40}).name == "template");
  f.prepare({40});
  CHECK(f.chosen({40}).name == "template");
  broken = false;
  f.prepare({40});
  CHECK(f.chosen({40}).name == "mine");
}

TEST_CASE_METHOD(Twice, "the kernels of a choice share its time limit", "[choice][long]") {
  constexpr double kLimit = 1.5, kLaunch = 0.02;
  std::atomic<int> launches = 0;
  for (const int a : {1, 2, 4, 8})
    process.of_typed(a).run = [&](void** args) {
      ++launches;
      std::this_thread::sleep_for(std::chrono::duration<double>(kLaunch));
      const int n = *static_cast<int*>(args[2]);
      float* const y = *static_cast<float**>(args[0]);
      const float* const x = *static_cast<float**>(args[1]);
      for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    };
  for (const char* name : {"second", "third"}) {
    Typed kernel = typed_doubling();
    kernel.name = name;
    twice.alternatives.push_back(alternative(kernel, name));
  }
  TuneOptions options;
  options.max_seconds = kLimit;
  tuned(process.runtime(), twice).tune({40}, options);
  CHECK(launches * kLaunch < 1.5 * kLimit);
}
