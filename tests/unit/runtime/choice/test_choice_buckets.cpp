// Choices: problems that share a bucket, and what each of them uses.
#include <atomic>
#include <thread>

#include "choice_fixture.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE_METHOD(TwiceInBuckets, "a launch of a bucket's other problem uses what can do that one",
                 "[choice]") {
  DoublingWay mine = process.way("mine", 1e-4);
  mine.supports = [](const DoublingProblem& p, const DeviceInfo&) { return p.n % 2 ? "odd" : ""; };
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  CHECK(f.chosen({40}).name == "mine");
  const int before = process.calls["mine"];
  CHECK(f.chosen({42}).name == "mine");
  CHECK(f.chosen({41}).name == "template");
  CHECK(process.calls["mine"] == before);  // all of one bucket, which is tuned once
  CHECK(process.warnings().size() == 1);
  Buffers data(41);
  f({}, data.y.data(), data.x.data(), 41);
  CHECK(data.doubled());
}

TEST_CASE_METHOD(TwiceInBuckets, "what was wrong is launched for no problem of its bucket",
                 "[choice]") {
  process.kernel_takes(1e-3);
  DoublingWay mine = process.way("mine", 1e-4);
  mine.supports = [](const DoublingProblem& p, const DeviceInfo&) { return p.n % 2 ? "odd" : ""; };
  DoublingWay wrong = process.way("wrong", 1e-5);
  wrong.call = [](const auto&, Stream, float* y, const float*, int n) { std::fill_n(y, n, 0.0f); };
  twice.alternatives.insert(twice.alternatives.begin(), {wrong, mine});
  const auto launch = [&] {
    const auto f = tuned(process.runtime(), twice);
    CHECK(f.chosen({40}).name == "mine");
    CHECK(f.chosen({41}).name == "template");
    Buffers data(41);
    f({}, data.y.data(), data.x.data(), 41);
    CHECK(data.doubled());
  };
  launch();
  launch();  // from the record
  // Without another one it is an error.
  twice.alternatives.pop_back();
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  const auto f = tuned(process.runtime(), twice);
  CHECK(f.chosen({40}).name == "mine");
  CHECK_THROWS_WITH(f.prepare({41}), Catch::Contains("no candidate can be used"));
}

TEST_CASE_METHOD(TwiceInBuckets,
                 "a kernel is not launched for a bucket's other problem that it does not support",
                 "[choice]") {
  process.kernel_takes(1e-4);
  twice.alternatives[0].supports = [](const DoublingProblem& p, const DeviceInfo&) {
    return p.n % 2 ? "odd" : "";
  };
  twice.alternatives.push_back(process.way("mine", 1e-3));
  const auto f = tuned(process.runtime(), twice);
  CHECK(f.chosen({40}).name == "template");
  CHECK(f.chosen({41}).name == "mine");
  CHECK_THROWS_WITH(tuned(process.runtime(), twice, {.choose = "template"}).prepare({41}),
                    Catch::Contains("alternative template: odd"));
}

TEST_CASE_METHOD(TwiceInBuckets,
                 "a problem that is being made uses what its bucket's tuning has found meanwhile",
                 "[choice]") {
  DoublingWay mine = process.way("mine", 1e-4);
  std::function<void()> meanwhile;
  mine.supports = [&](const DoublingProblem& p, const DeviceInfo&) {
    if (p.n == 42 && meanwhile) std::exchange(meanwhile, {})();
    return "";
  };
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  CHECK(f.chosen({40}).name == "mine");
  meanwhile = [&] {
    process.kernel_takes(1e-5);
    f.tune({40}, {.retune = true});
  };
  CHECK(f.chosen({42}).name == "template");
  CHECK_FALSE(meanwhile);
  CHECK(f.chosen({40}).name == "template");
}

TEST_CASE_METHOD(TwiceInBuckets, "a callable's constraints are asked for the exact problem",
                 "[choice]") {
  DoublingWay mine = process.way("mine", 1e-4);
  mine.knobs.parameter("wide", {1, 0}, 1);
  mine.knobs.where("wide needs an even number",
                   [](auto c, auto p, const DeviceLimits&) { return c[0] == 0 || p[0] % 2 == 0; });
  std::int64_t wide = -1;
  mine.call = [&](const AlternativeCall<DoublingProblem>& how, Stream, float* y, const float* x,
                  int n) {
    wide = how.knobs["wide"];
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    process.device->pass(wide ? 1e-4 : 2e-4);
  };
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  CHECK(f.chosen({40}).text == "alternative=mine,mine.wide=1");
  // The winner's alternative is asked before the default.
  CHECK(f.chosen({41}).text == "alternative=mine,mine.wide=0");
  Buffers data(41);
  f({}, data.y.data(), data.x.data(), 41);
  CHECK(wide == 0);
  CHECK(data.doubled());
}

TEST_CASE_METHOD(TwiceInBuckets,
                 "tuning a problem changes what all known problems of its bucket use", "[choice]") {
  DoublingWay mine = process.way("mine", 0);
  double seconds = 1e-4;
  mine.call = [&](const auto&, Stream, float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    process.device->pass(seconds);
  };
  twice.alternatives.push_back(mine);
  const auto f = tuned(process.runtime(), twice);
  CHECK(f.chosen({40}).name == "mine");
  CHECK(f.chosen({41}).name == "mine");
  CHECK(f.chosen({100}).name == "mine");
  seconds = 5e-3;
  TuneOptions again;
  again.retune = true;
  f.tune({40}, again);
  CHECK(f.chosen({41}).name == "template");
  CHECK(f.chosen({100}).name == "mine");  // of another bucket
}

TEST_CASE_METHOD(TwiceInBuckets, "a problem that cannot be made ready keeps what it has",
                 "[choice]") {
  double seconds = 3e-4;
  bool fails = false;
  DoublingWay mine = process.way("mine", 0);
  mine.call = [&](const auto&, Stream, float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    process.device->pass(seconds);
  };
  DoublingWay other = process.way("other", 1e-3);
  other.workspace = [&](Named, const DoublingProblem& p) -> std::size_t {
    if (fails && p.n == 41) throw std::runtime_error("not today");
    return 0;
  };
  twice.alternatives = {other, mine};
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  const auto f = tuned(process.runtime(), twice);
  f.prepare({41});
  REQUIRE(f.chosen({41}).name == "mine");
  seconds = 3e-3;
  fails = true;
  TuneOptions anew;
  anew.retune = true;
  CHECK_THROWS_WITH(f.tune({64}, anew), "not today");
  CHECK(f.chosen({64}).name == "other");
  CHECK(f.chosen({41}).name == "mine");
}

TEST_CASE("a launch that another process's tuning leaves no time decides nothing", "[choice]") {
  Directory directory;
  Chooser first(directory.path()), second(directory.path());
  for (Chooser* const process : {&first, &second}) process->kernel_takes(1e-3);
  Doubling held = first.twice(), waits = second.twice();
  std::atomic<bool> inside{false}, go{false};
  DoublingWay slow = first.way("mine", 1e-4);
  slow.call = [&, call = slow.call](const AlternativeCall<DoublingProblem>& how, Stream stream,
                                    float* y, const float* x, int n) {
    inside = true;
    go.wait(false);
    call(how, stream, y, x, n);
  };
  held.alternatives.push_back(slow);
  waits.alternatives.push_back(second.way("mine", 1e-4));
  const auto one = tuned(first.runtime(), held);
  second.options.tuning.retune = true;  // what the other has saved so far is no answer
  second.options.tuning.max_seconds = patient(4);
  const auto two = tuned(second.runtime(), waits);
  std::thread other([&] { one.tune({40}); });
  while (!inside) std::this_thread::yield();
  CHECK(two.chosen({40}).name == "template");
  go = true;
  go.notify_all();
  other.join();
  CHECK(two.chosen({40}).name == "mine");
}

TEST_CASE_METHOD(Twice, "a choice holds as many problems as it may, and finds others on record",
                 "[choice][bounds]") {
  constexpr int kMost = 8, kProblems = 64;
  process.options.max_problems = kMost;
  twice.alternatives.push_back(process.way("mine", 5e-4));
  twice.bucket = [](const DoublingProblem& p) { return p; };
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const auto held = [&] { return runtime.metrics().problems.at({"twice"}); };
  f.prepare({1000});
  for (int n = 1; n <= kProblems; ++n) {
    Buffers data(n);
    f({}, data.y.data(), data.x.data(), n);
    CHECK(data.doubled());
    CHECK(held() <= kMost);
  }
  runtime.seal(OnUnprepared::error);  // what was prepared has not left
  Buffers prepared(1000);
  f({}, prepared.y.data(), prepared.x.data(), 1000);
  runtime.unseal();
  CHECK(runtime.metrics().problems_evicted_total >= kProblems - kMost);
  const auto tunings = runtime.statistics().tuned;
  for (int n = 1; n <= kProblems; ++n) {
    Buffers data(n);
    f({}, data.y.data(), data.x.data(), n);
    CHECK(data.doubled());
    CHECK(f.chosen({n}).name == "mine");
  }
  CHECK(runtime.statistics().tuned == tunings);
}

TEST_CASE_METHOD(Twice, "kernels that a choice launches keep to the bound on modules",
                 "[choice][bounds]") {
  constexpr std::uint64_t kMost = 8;
  process.device->modules_apart = true;
  process.options.max_module_bytes = kMost * typed_entry(2).size();
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const auto launch = [&](int n) {
    Buffers data(n);
    f({}, data.y.data(), data.x.data(), n);
    return data.doubled();
  };
  bool right = launch(1001), within = true;
  f.prepare({1000});
  f.prepare({1001});  // which is in use, and did not need to stay until now
  for (int n = 1; n <= 64; ++n) {
    right = launch(n) && right;
    within = within && runtime.metrics().module_bytes <= *process.options.max_module_bytes;
  }
  CHECK(right);
  CHECK(within);
  CHECK(f.chosen({40}).name == "template");
  const int loads = process.device->loads;
  CHECK(launch(1000));
  CHECK(launch(1001));
  CHECK(process.device->loads == loads);
  // What a tuning finds for a problem that was prepared stays as well.
  process.of_typed(8).seconds = 1e-4;
  f.tune({1000}, {.retune = true});
  for (int n = 1; n <= 64; ++n) right = launch(n) && right;
  runtime.seal(OnUnprepared::error);
  CHECK(launch(1000));
  CHECK(right);
}

TEST_CASE_METHOD(Twice, "a kernel that a prepared choice does not launch any more may leave",
                 "[choice][bounds]") {
  process.device->modules_apart = true;
  process.options.max_module_bytes = typed_entry(2).size();
  process.options.max_problems = GENERATE(0, 1000);  // 0: no bound, as on devices with graphs
  process.kernel_takes(1e-3);
  twice.alternatives.push_back(process.way("mine", 2e-3));
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  f.prepare({1000});
  f.tune({1000});
  REQUIRE(f.chosen({1000}).name == "template");
  const auto kernel = runtime.tuned(typed_doubling());
  const auto bytes_beside = [&](int n) {
    Buffers data(n);
    kernel({}, data.y.data(), data.x.data(), n);
    CHECK(data.doubled());
    return runtime.metrics().module_bytes;
  };
  CHECK(bytes_beside(1) > *process.options.max_module_bytes);
  process.kernel_takes(9e-3);
  f.tune({1000}, {.retune = true});
  REQUIRE(f.chosen({1000}).name == "mine");
  bytes_beside(2);
  CHECK(bytes_beside(3) <= *process.options.max_module_bytes);
}

TEST_CASE_METHOD(Twice, "problems of a choice leave while others are launched",
                 "[choice][bounds][threads]") {
  process.options.max_problems = 4;
  process.options.mode = Mode::untuned;
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  DoublingWay mine = process.way("mine", 0);
  mine.call = [](const auto&, Stream, float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
  };
  twice.alternatives = {mine};
  const auto f = tuned(process.runtime(), twice);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 300; ++i) {
          const int n = 1 + (7 * i + 3 * t) % 32;
          Buffers data(n);
          f({}, data.y.data(), data.x.data(), n);
          if (!data.doubled()) ++wrong;
        }
      });
  }
  CHECK(wrong == 0);
}
