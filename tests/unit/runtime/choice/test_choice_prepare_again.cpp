// Choices whose kernels cannot be used for all problems: what is prepared once is not measured
// again.
#include <memory>

#include "choice_fixture.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/capturing_device.hpp"

using namespace kiln;
using namespace kiln::test;
using State = PreparedState;

TEST_CASE_METHOD(Twice, "a choice whose kernel has no usable candidate is measured once",
                 "[choice][prepare]") {
  for (const int a : {1, 2, 4, 8}) process.of_typed(a).run = [](void**) {};  // writes nothing
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const auto check_known = [&](const Runtime& runtime, const PrepareOptions& options) {
    const auto f = tuned(runtime, twice);
    process.calls.clear();
    process.device->timings = process.device->launches = 0;
    const PrepareReport report = runtime.prepare(of_choices({50}), options);
    CHECK(report.complete());
    CHECK(report.problems[0].state == State::known);
    CHECK(report.problems[0].alternative == "mine");
    CHECK(report.searched == 0);
    CHECK(report.evaluated == 0);
    CHECK(process.device->timings == 0);
    CHECK(process.device->launches == 0);
    CHECK(process.calls["mine"] == 0);
    CHECK(launches(f, 50));
    CHECK(process.calls["mine"] == 1);
  };
  const PrepareOptions limit{.max_seconds = GENERATE(0.0, 60.0)};
  {
    const Runtime runtime = process.runtime();
    const auto f = tuned(runtime, twice);
    const PrepareReport first = runtime.prepare(of_choices({50}), limit);
    CHECK(first.problems[0].state == State::tuned);
    CHECK(first.problems[0].alternative == "mine");
    REQUIRE(f.known({50}));
    CHECK(f.known({50})->complete);
    check_known(runtime, limit);
  }
  const Runtime runtime = process.runtime();
  check_known(runtime, limit);
  // The next process has loaded the kernel, and knows from the record that it serves nothing.
  const auto f = tuned(runtime, twice);
  runtime.prepare(of_choices({50}), limit);
  runtime.seal();
  CHECK_THROWS_AS(launches(f, 60), UnpreparedError);
  CHECK(launches(f, 50));
}

TEST_CASE_METHOD(Twice, "a kernel that has no config for one problem serves others",
                 "[choice][prepare][sealed]") {
  Typed kernel = typed_doubling();
  kernel.launch = {[](const DoublingConfig& c, const DoublingProblem& p) {
    // For 50 more threads than any device has in a block.
    return Launch{{unsigned((p.n + c.a - 1) / c.a)}, {p.n == 50 ? 1U << 20 : unsigned(c.a)}, 0};
  }};
  twice = choice(kernel, "twice");
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  for (int i = 0; i < 2; ++i) {  // measured, and on record
    const Runtime runtime = process.runtime();
    const auto f = tuned(runtime, twice);
    const PrepareReport report = runtime.prepare(of_choices({50, 70}));
    CHECK(report.complete());
    CHECK(report.problems[0].alternative == "mine");
    CHECK(report.searched == (i == 0 ? 3 : 0));  // the kernel for 70, and twice the choice
    runtime.seal();
    process.calls.clear();
    CHECK(launches(f, 60));
    CHECK(process.calls.empty());
    CHECK(launches(f, 50));
    CHECK(process.calls["mine"] == 1);
  }
}

TEST_CASE_METHOD(Twice, "a choice without a compiler for its kernel is measured once",
                 "[choice][prepare]") {
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  const auto without_compiler = [&] {
    return detail::Access::runtime(std::make_shared<detail::Engine>(
        process.options, process.device, [](Target::Kind) -> std::shared_ptr<codegen::Compiler> {
          throw EnvironmentError("no compiler is installed");
        }));
  };
  for (const State state : {State::tuned, State::known}) {
    const Runtime runtime = without_compiler();
    const auto f = tuned(runtime, twice);
    process.calls.clear();
    for (const State now : {state, State::known}) {
      const PrepareReport report = runtime.prepare(of_choices({50}));
      CHECK(report.problems[0].state == now);
      CHECK(report.problems[0].alternative == "mine");
      CHECK(report.searched == (now == State::tuned ? 1 : 0));
    }
    CHECK((process.calls["mine"] > 0) == (state == State::tuned));
    CHECK(launches(f, 50));
  }
  // Where there is a compiler, the kernel is tuned, and meets `mine`.
  process.of_typed(4).seconds = 0.1e-3;
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  CHECK(runtime.prepare(of_choices({50})).problems[0].state == State::tuned);
  CHECK(f.chosen({50}).name == "template");
}

TEST_CASE_METHOD(Twice, "a sealed runtime counts a choice's other problems in captures, too",
                 "[choice][prepare][sealed]") {
  const auto graphs = std::make_shared<CapturingDevice>(process.script);
  graphs->compute = compute_doubling;
  process.device = graphs;
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  runtime.prepare(of_choices({40}));
  const auto policy = GENERATE(OnUnprepared::serve, OnUnprepared::error);
  runtime.seal(policy);
  Buffers data(50);
  const Stream stream{reinterpret_cast<void*>(0x5000)};
  graphs->begin(stream);
  const auto launch = [&] { f(stream, data.y.data(), data.x.data(), 50); };
  if (policy == OnUnprepared::error)
    CHECK_THROWS_AS(launch(), UnpreparedError);
  else
    CHECK_THROWS_AS(launch(), CaptureError);
  const auto graph = graphs->end(stream);
  CHECK(graph->broken.empty());
  CHECK(graph->nodes.empty());
  CHECK(runtime.statistics().unprepared_refused == 1);
  CHECK(runtime.wanted().wanted == std::vector{wanted_choice(50, 1)});
}
