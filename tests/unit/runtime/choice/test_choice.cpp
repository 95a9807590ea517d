// Choices: which alternative is used, what is verified, remembered and refused.
#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "choice_fixture.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/allocations.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("the fastest alternative is used, be it a kernel or a callable", "[choice]") {
  Directory directory;
  Chooser process(directory.path());
  process.kernel_takes(1e-3);
  process.of_typed(8).seconds = 4e-4;
  Doubling twice = process.twice();
  const double seconds = GENERATE(3e-4, 6e-4);
  twice.alternatives.push_back(process.way("mine", seconds));
  const auto f = tuned(process.runtime(), twice);
  Buffers data(40);
  f({}, data.y.data(), data.x.data(), 40);
  CHECK(data.doubled());
  CHECK(f.chosen({40}).name == (seconds < 4e-4 ? "mine" : "template"));
  CHECK_FALSE(f.chosen({40}).forced);
  const auto known = f.known({40});
  REQUIRE(known);
  CHECK(known->describe(known->winner()).starts_with("alternative=" + f.chosen({40}).name));
  CHECK(known->describe(known->default_candidate()).starts_with("alternative=template"));
  CHECK(known->count(CandidateStatus::measured) == 2);
  // The kernel was tuned by itself, and its record serves it without a choice.
  const auto alone = process.runtime().tuned(typed_doubling()).known({40});
  REQUIRE(alone);
  CHECK(alone->winner().config == Values{8, 0});
}

TEST_CASE_METHOD(Twice, "the default stays where nothing is certainly faster", "[choice]") {
  twice.alternatives.push_back(process.way("mine", 0.998e-3));
  const auto f = tuned(process.runtime(), twice);
  CHECK(f.tune({40}).speedup() == 1);
  CHECK(f.chosen({40}).name == "template");
}

TEST_CASE_METHOD(Twice, "what is wrong or throws loses, however fast it is", "[choice]") {
  DoublingWay wrong = process.way("wrong", 1e-5);
  wrong.call = [](const auto&, Stream, float* y, const float*, int n) { std::fill_n(y, n, 0.0f); };
  DoublingWay beyond = process.way("beyond", 1e-5);
  beyond.call = [right = beyond.call](const auto& how, Stream s, float* y, const float* x, int n) {
    right(how, s, y, x, n);
    y[n] = 7;
  };
  DoublingWay spoils = process.way("spoils", 1e-5);
  spoils.call = [right = spoils.call](const auto& how, Stream s, float* y, const float* x, int n) {
    right(how, s, y, x, n);
    const_cast<float*>(x)[0] += 1;
  };
  DoublingWay throws = process.way("throws", 1e-5);
  throws.call = [](const auto&, Stream, float*, const float*, int) { throw 7; };
  for (auto& way : {wrong, beyond, spoils, throws}) twice.alternatives.push_back(way);
  const auto f = tuned(process.runtime(), twice);
  const TuneResult result = f.tune({40});
  CHECK(f.chosen({40}).name == "template");
  CHECK(result.count(CandidateStatus::wrong_result) == 3);
  CHECK(result.count(CandidateStatus::launch_failed) == 1);
}

TEST_CASE_METHOD(Twice, "what is wrong now and then loses, however fast it is", "[choice]") {
  DoublingWay flaky = process.way("flaky", 1e-5);
  const int every = GENERATE(2, 3);
  // The call with which it is wrong first, after the first one.
  const int first = every == 2 ? 1 : GENERATE(1, 2);
  int call = -first;
  flaky.call = [&, right = flaky.call](const auto& how, Stream s, float* y, const float* x, int n) {
    right(how, s, y, x, n);
    if (call++ % every == 0) y[n / 2] += 1;
  };
  DoublingWay second = process.way("second", 5e-4);
  twice.alternatives = {twice.alternatives[0], flaky, second};
  const auto f = tuned(process.runtime(), twice);
  const TuneResult result = f.tune({40});
  CHECK(f.chosen({40}).name == "second");
  REQUIRE(result.count(CandidateStatus::wrong_result) == 1);
  const auto wrong =
      std::ranges::find(result.candidates, CandidateStatus::wrong_result, &Candidate::status);
  CHECK_THAT(wrong->reason, Catch::StartsWith("its results were right at first, but wrong after"));
  CHECK(f.known({40})->count(CandidateStatus::wrong_result) == 1);
}

TEST_CASE_METHOD(Twice, "what is wrong now and then loses where it is alone", "[choice]") {
  DoublingWay flaky = process.way("flaky", 1e-5);
  int call = -1;
  flaky.call = [&, right = flaky.call](const auto& how, Stream s, float* y, const float* x, int n) {
    right(how, s, y, x, n);
    if (call++ % 3 == 0) y[n / 2] += 1;
  };
  twice.alternatives.push_back(flaky);
  const auto f = tuned(process.runtime(), twice, {.backends = {"flaky"}});
  CHECK_THROWS_AS(f.tune({40}), TuningFailedError);
  CHECK_FALSE(f.known({40}));
}

TEST_CASE("a kernel that cannot be tuned is a failed candidate, and not the end", "[choice]") {
  Directory directory;
  Chooser process(directory.path());
  for (const int a : {1, 2, 4, 8}) process.of_typed(a).compile_log = "no";
  Doubling twice = process.twice();
  twice.alternatives.push_back(process.way("mine", 1e-3));
  const auto f = tuned(process.runtime(), twice);
  const TuneResult result = f.tune({40});
  CHECK(f.chosen({40}).name == "mine");
  CHECK(result.default_candidate().status == CandidateStatus::launch_failed);
  CHECK(result.default_candidate().reason.find("doubling") != std::string::npos);
}

TEST_CASE_METHOD(Twice, "a callable's knobs are searched as far as its constraints allow",
                 "[choice]") {
  DoublingWay mine = process.way("mine", 0);
  mine.knobs.parameter("blocks", {1, 2, 4, 8}, 2).parameter("far", {0, 1}, 0);
  mine.knobs.where("blocks must not be 8 and far",
                   [](auto c, auto, const DeviceLimits&) { return c[0] != 8 || c[1] == 0; });
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  mine.call = [&](const AlternativeCall<DoublingProblem>& how, Stream, float* y, const float* x,
                  int n) {
    seen.emplace(how.knobs["blocks"], how.knobs["far"]);
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    process.device->pass(how.knobs["blocks"] == 4 && how.knobs["far"] == 1 ? 1e-4 : 2e-3);
  };
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  const TuneResult result = f.tune({40});
  CHECK(seen.size() == 7);
  CHECK(result.candidates.size() == 8);
  CHECK(result.describe(result.winner()) == "alternative=mine,mine.blocks=4,mine.far=1");
  seen.clear();
  Buffers data(40);
  f({}, data.y.data(), data.x.data(), 40);
  CHECK(seen == std::set<std::pair<std::int64_t, std::int64_t>>{{4, 1}});
}

TEST_CASE_METHOD(Twice, "more knobs than can be listed are refused, and not listed", "[choice]") {
  DoublingWay mine = process.way("mine", 1e-4);
  std::vector<std::int64_t> eight{0, 1, 2, 3, 4, 5, 6, 7};
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"})
    mine.knobs.parameter(name, eight, 0);
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  f.prepare({40});
  CHECK(f.chosen({40}).name == "template");
  CHECK_THAT(f.alternatives({40})[1].why_not,
             Catch::StartsWith("its knobs have 4.4e+12 configs, constraints not counted, and 10000 "
                               "are the most"));
}

TEST_CASE("a choice without a kernel has a workload of its own", "[choice]") {
  Directory directory;
  Chooser process(directory.path());
  const Typed kernel = typed_doubling();
  Doubling twice{.name = "twice", .problem = kernel.problem};
  twice.alternatives = {process.way("slow", 2e-3), process.way("quick", 1e-3)};
  CHECK_THROWS_WITH(tuned(process.runtime(), twice), Catch::Contains("`workload` is missing"));
  twice.workload = kernel.workload;
  twice.reference = kernel.reference;
  const auto f = tuned(process.runtime(), twice);
  f.prepare({40});
  CHECK(f.chosen({40}).name == "quick");
}

TEST_CASE("a tuning that is stopped before anything is right decides nothing", "[choice]") {
  Directory directory;
  Chooser process(directory.path());
  const Typed kernel = typed_doubling();
  Doubling twice{.name = "twice", .problem = kernel.problem};
  twice.workload = kernel.workload;
  twice.reference = kernel.reference;
  std::stop_source stop;
  DoublingWay wrong = process.way("wrong", 1e-3);
  wrong.call = [&](const auto&, Stream, float* y, const float*, int n) {
    stop.request_stop();
    std::fill_n(y, n, 0.0f);
  };
  twice.alternatives = {wrong, process.way("slow", 2e-3), process.way("quick", 1e-3)};
  const auto f = tuned(process.runtime(), twice);
  TuneOptions options;
  options.stop = stop.get_token();
  const TuneResult result = f.tune({40}, options);
  CHECK(result.end == SearchEnd::stopped);
  CHECK(result.winner().status == CandidateStatus::wrong_result);
  f.prepare({40});
  CHECK(f.chosen({40}).name == "quick");
}

TEST_CASE("a record is found by the next process, and an entry of another version is not used",
          "[choice]") {
  Directory directory;
  const auto run = [&](const std::string& version, double seconds) {
    Chooser process(directory.path());
    process.kernel_takes(1e-3);
    Doubling twice = process.twice();
    DoublingWay mine = process.way("mine", seconds);
    mine.version = version;
    twice.alternatives.push_back(mine);
    const auto f = tuned(process.runtime(), twice);
    f.prepare({40});
    return std::pair{f.chosen({40}).name, process.calls["mine"]};
  };
  CHECK(run("1", 1e-4).first == "mine");
  // Not measured again, although it would lose today.
  CHECK(run("1", 5e-3) == std::pair<std::string, int>{"mine", 0});
  const auto [name, calls] = run("2", 5e-3);
  CHECK(name == "template");
  CHECK(calls > 0);
  CHECK(run("2", 1e-4) == std::pair<std::string, int>{"template", 0});
}

TEST_CASE_METHOD(Twice, "a new alternative is measured, and a damaged record is a miss",
                 "[choice]") {
  tuned(process.runtime(), twice).prepare({40});
  twice.alternatives.push_back(process.way("mine", 1e-4));
  tuned(process.runtime(), twice).prepare({40});
  CHECK(tuned(process.runtime(), twice).chosen({40}).name == "mine");
  for (const fs::path& file : directory.entries(".json")) fs::resize_file(file, 40);
  const int before = process.calls["mine"];
  CHECK(tuned(process.runtime(), twice).chosen({40}).name == "mine");
  CHECK(process.calls["mine"] > before);
}

TEST_CASE_METHOD(Twice,
                 "an alternative that does not support a problem takes no part, and says why",
                 "[choice]") {
  DoublingWay mine = process.way("mine", 1e-4);
  mine.supports = [](const DoublingProblem& p, const DeviceInfo&) {
    return p.n < 100 ? "it needs 100 elements" : "";
  };
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  const std::vector<LeftOut> left_out{{"mine", "it needs 100 elements"}};
  const TuneResult result = f.tune({40});
  CHECK(result.left_out == left_out);
  CHECK(result.warnings.empty());
  CHECK(f.known({40})->left_out == left_out);
  CHECK(f.tune({100}).left_out.empty());
  CHECK(f.chosen({40}).name == "template");
  CHECK(f.chosen({100}).name == "mine");
  CHECK(f.alternatives({40})[1].why_not == "it needs 100 elements");
  CHECK(f.alternatives({100})[1].why_not.empty());
  twice.alternatives.erase(twice.alternatives.begin());
  twice.workload = typed_doubling().workload;
  CHECK_THROWS_WITH(tuned(process.runtime(), twice).prepare({40}),
                    Catch::Contains("no alternative can do it: mine: it needs 100 elements"));
}

TEST_CASE_METHOD(Twice, "a launch of a known problem takes nothing from the heap", "[choice]") {
  DoublingWay mine = process.way("mine", 0);
  const bool callable = GENERATE(false, true);
  mine.call = [&](const auto& how, Stream, float* y, const float* x, int n) {
    static_cast<char*>(how.workspace)[99] = 1;
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    process.device->pass(callable ? 1e-4 : 1e-2);
  };
  mine.workspace = [](Named, const DoublingProblem&) { return std::size_t{100}; };
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  Buffers data(40);
  f({}, data.y.data(), data.x.data(), 40);
  CHECK(f.chosen({40}).name == (callable ? "mine" : "template"));
  const std::size_t before = allocations();
  f({}, data.y.data(), data.x.data(), 40);
  CHECK(allocations() == before);
  CHECK(data.doubled());
}

TEST_CASE_METHOD(Twice, "modes that do not tune use records, else the default", "[choice]") {
  twice.alternatives.push_back(process.way("mine", 1e-4));
  process.options.mode = Mode::untuned;
  CHECK(tuned(process.runtime(), twice).chosen({40}).name == "template");
  CHECK(process.calls["mine"] == 0);
  process.options.mode = Mode::tune_now;
  tuned(process.runtime(), twice).prepare({40});
  process.options.mode = Mode::untuned;
  CHECK(tuned(process.runtime(), twice).chosen({40}).name == "mine");
}

TEST_CASE_METHOD(Twice,
                 "what is new, or may not be captured, is refused while a stream is captured",
                 "[choice]") {
  DoublingWay mine = process.way("mine", 1e-4);
  mine.capturable = GENERATE(true, false);
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  f.prepare({40});
  int here = 0;
  process.device->captured = &here;
  Buffers data(50);
  CHECK_THROWS_AS(f({&here}, data.y.data(), data.x.data(), 50), CaptureError);
  const int before = process.calls["mine"];
  if (mine.capturable)
    f({&here}, data.y.data(), data.x.data(), 40);
  else
    CHECK_THROWS_AS(f({&here}, data.y.data(), data.x.data(), 40), CaptureError);
  CHECK(process.calls["mine"] == before + mine.capturable);
  f({}, data.y.data(), data.x.data(), 40);  // another stream
  CHECK(process.calls["mine"] == before + mine.capturable + 1);
}

TEST_CASE_METHOD(Twice, "a deterministic runtime stays in one numerics class", "[choice]") {
  DoublingWay mine = process.way("mine", 0);
  mine.knobs.parameter("blocks", {1, 2}, 1);
  mine.call = [&](const AlternativeCall<DoublingProblem>& how, Stream, float* y, const float* x,
                  int n) {
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    process.device->pass(how.knobs["blocks"] == 2 ? 2e-4 : 1e-3);
  };
  DoublingWay same = process.way("same", 1e-4), other = process.way("other", 1e-5);
  const bool stated = GENERATE(false, true);
  if (stated) mine.numerics = same.numerics = "in order";
  other.numerics = "by halves";
  twice.alternatives = {mine, twice.alternatives[0], other, same};
  CHECK(tuned(process.runtime(), twice).chosen({40}).name == "other");
  process.options.deterministic = true;
  const auto f = tuned(process.runtime(), twice);
  CHECK_FALSE(f.known({40}));  // other runtimes' records are not its own
  CHECK(f.chosen({40}).text ==
        (stated ? "alternative=same,mine.blocks=0" : "alternative=mine,mine.blocks=1"));
  const auto without_same = tuned(process.runtime(), twice, {.backends = {"-same"}});
  CHECK(without_same.chosen({40}).text ==
        (stated ? "alternative=mine,mine.blocks=2" : "alternative=mine,mine.blocks=1"));
  const auto why = [&](std::size_t i) { return f.alternatives({40})[i].why_not; };
  CHECK(why(0).empty());
  CHECK(why(3).empty() == stated);
  CHECK(why(2) == (stated ? "the runtime is deterministic, and its numerics class is by halves, "
                            "not in order as that of mine"
                          : "the runtime is deterministic, and mine, the first alternative, states "
                            "no numerics class"));
  CHECK(why(1).find(stated ? "class is unknown, not in order" : "states no numerics class") !=
        std::string::npos);
  CHECK(tuned(process.runtime(), twice, {.numerics = "by halves"}).chosen({40}).name == "other");
  CHECK(tuned(process.runtime(), twice, {.choose = "template"}).chosen({40}).name == "template");
}

TEST_CASE_METHOD(Twice, "a sealed runtime launches only what was prepared", "[choice]") {
  twice.alternatives.push_back(process.way("mine", 1e-4));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  f.prepare({40});
  runtime.seal(OnUnprepared::error);
  const std::size_t compiled = runtime.statistics().compiled;
  process.calls.clear();
  Buffers data(50);
  CHECK_THROWS_AS(f({}, data.y.data(), data.x.data(), 50), UnpreparedError);
  CHECK(runtime.statistics().compiled == compiled);
  CHECK(process.calls.empty());
  CHECK(runtime.statistics().unprepared_refused == 1);
  f({}, data.y.data(), data.x.data(), 40);
  CHECK(process.calls["mine"] == 1);
  f.prepare({50});  // if it is asked for, it is there
  f({}, data.y.data(), data.x.data(), 50);
  CHECK(data.doubled());
}

TEST_CASE("a kernel with another source is another choice", "[choice]") {
  Directory directory;
  Chooser process(directory.path());
  process.kernel_takes(1e-3);
  const auto chosen = [&](const std::string& text, double seconds) {
    Typed kernel = typed_doubling();
    kernel.source.text = text;
    Doubling twice = choice(kernel, "twice");
    twice.alternatives.push_back(process.way("mine", seconds));
    return tuned(process.runtime(), twice).chosen({40}).name;
  };
  CHECK(chosen("one", 1e-4) == "mine");
  CHECK(chosen("one", 5e-3) == "mine");
  CHECK(chosen("two", 5e-3) == "template");
}

TEST_CASE_METHOD(Twice, "a choice of a kernel whose tuning was cut short is not complete",
                 "[choice]") {
  twice.alternatives.push_back(process.way("mine", 5e-4));
  TuneOptions little;
  little.max_evaluations = 3;  // of the kernel's four, and of the choice's two
  const auto f = tuned(process.runtime(), twice, {.tuning = little});
  f.prepare({40});
  CHECK(f.chosen({40}).name == "mine");
  const auto known = f.known({40});
  REQUIRE(known);
  CHECK_FALSE(known->complete);
  process.kernel_takes(1e-4);  // as the config that is left does
  const auto again = tuned(process.runtime(), twice);
  again.prepare({40});
  CHECK(again.chosen({40}).name == "mine");  // launches are content with that
  const TuneResult result = again.tune({40});
  CHECK(result.complete);
  CHECK(again.chosen({40}).name == "template");
}

TEST_CASE_METHOD(Twice, "a failure that may pass is not on record", "[choice]") {
  process.kernel_takes(1e-4);
  DoublingWay mine = process.way("mine", 1e-3);
  bool broken = true;
  mine.workspace = [&](Named, const DoublingProblem&) {
    if (broken) throw EnvironmentError("not now");
    return std::size_t{0};
  };
  DoublingWay base = process.way("base", 2e-3);
  twice.alternatives = {base, mine};
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  const auto f = tuned(process.runtime(), twice);
  const TuneResult first = f.tune({40});
  CHECK(first.count(CandidateStatus::not_tried) == 1);
  CHECK(first.count(CandidateStatus::launch_failed) == 0);
  CHECK_FALSE(first.complete);
  broken = false;
  CHECK(f.tune({40}).complete);
  CHECK(f.chosen({40}).name == "mine");
}

TEST_CASE("an alternative whose call takes too long is hung, and not called by another process",
          "[choice]") {
  Directory directory;
  Chooser process(directory.path());
  process.options.tuning.candidate_seconds = patient(1);
  process.kernel_takes(1e-3);
  std::atomic<int> told = 0;
  process.options.log = [&](LogLevel, std::string_view text) {
    told += text.find("it has taken") != std::string_view::npos;
  };
  std::atomic<int> late = 0;
  const auto with_a_late_one = [&](Chooser& chooser) {
    Doubling twice = chooser.twice();
    DoublingWay way = chooser.way("late", 1e-6);
    way.call = [&, right = way.call](const auto& how, Stream s, float* y, const float* x, int n) {
      ++late;
      CHECK(becomes([&] { return told > 0; }));
      right(how, s, y, x, n);
    };
    twice.alternatives.push_back(std::move(way));
    return twice;
  };
  const auto f = tuned(process.runtime(), with_a_late_one(process));
  const TuneResult result = f.tune({40});
  CHECK(f.chosen({40}).name == "template");
  CHECK(result.count(CandidateStatus::hung) == 1);
  CHECK(late == 1);

  Chooser next(directory.path());
  next.kernel_takes(1e-3);
  CHECK(tuned(next.runtime(), with_a_late_one(next)).tune({40}).count(CandidateStatus::hung) == 1);
  CHECK(late == 1);
}

TEST_CASE_METHOD(Twice, "what is no error of Kiln's ends the tuning of a choice", "[choice]") {
  static bool fails;
  fails = false;
  Typed kernel = typed_doubling();
  kernel.bucket = [](const DoublingProblem& p) {
    if (fails) throw std::runtime_error("no bucket");
    return p;
  };
  twice = choice(kernel, "twice");
  twice.bucket = [](const DoublingProblem& p) { return p; };
  twice.alternatives.push_back(process.way("mine", 3e-4));
  const auto f = tuned(process.runtime(), twice);
  fails = true;
  CHECK_THROWS_WITH(f.tune({40}), "no bucket");
  CHECK_FALSE(f.known({40}));
  fails = false;
  f.tune({40});
  CHECK(f.chosen({40}).name == "mine");
}
