// What launches of a choice take besides time of the device: the host's work, and a workspace.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "choice_fixture.hpp"
#include "kiln/metrics.hpp"
#include "kiln/report.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// The kernel takes 100 us. `hosted` takes 30 us on the device, and 150 us of the host before.
struct Hosted : Twice {
  Hosted() {
    process.device->records = true;
    process.kernel_takes(1e-4);
    process.of(1).seconds = 3e-5;
    const auto fast = runtime.tuned(doubling({1, 2})).with_config({1, 0});
    twice.alternatives.push_back(
        {.name = "hosted",
         .call = [this, fast](const auto&, Stream stream, float* y, const float* x, int n) {
           process.device->pass(1.5e-4);
           Launched& args = *launched.emplace_back(std::make_unique<Launched>(y, x, n));
           fast.launch(stream, ProblemValues{n}, args.pointers);
         }});
  }

  /// Arguments of a launch that may be replayed.
  struct Launched {
    Launched(float* y_, const float* x_, int n_) : y(y_), x(x_), n(n_) {}
    float* y;
    const float* x;
    int n;
    void* pointers[3] = {&y, &x, &n};
  };
  std::vector<std::unique_ptr<Launched>> launched;
  const Runtime runtime = process.runtime();
};

}  // namespace

TEST_CASE_METHOD(Hosted, "host work counts where launches are timed eagerly, and in no graph",
                 "[choice]") {
  const auto f = tuned(runtime, twice);
  const auto measured = [&](Launching launching) {
    TuneOptions options;
    options.launching = launching;
    TuneResult result = f.tune({40}, options);
    CHECK(result.describe(result.winner()).starts_with("alternative=" + f.chosen({40}).name));
    return result;
  };
  const TuneResult graph = measured(Launching::graph);
  CHECK(f.chosen({40}).name == "hosted");
  CHECK(graph.winner().seconds == Approx(3e-5));
  CHECK(graph.default_candidate().seconds == Approx(1e-4));
  CHECK(measured(Launching::graph).from_store);
  // Times of the two are not compared, so each is measured anew.
  const TuneResult eager = measured(Launching::eager);
  CHECK_FALSE(eager.from_store);
  CHECK(f.chosen({40}).name == "template");
  REQUIRE(eager.candidates.size() == 2);
  CHECK(eager.candidates[1].seconds == Approx(1.8e-4));
  for (const double seconds : eager.candidates[1].samples) CHECK(seconds > 1.5e-4);
  CHECK(measured(Launching::eager).from_store);
  const TuneResult again = measured(Launching::graph);
  CHECK_FALSE(again.from_store);
  CHECK(f.chosen({40}).name == "hosted");
  for (const double seconds : again.winner().samples) CHECK(seconds == Approx(3e-5));
}

TEST_CASE_METHOD(Hosted, "host work counts for all where one of them may not be captured",
                 "[choice]") {
  twice.alternatives.back().capturable = false;
  const auto f = tuned(runtime, twice);
  CHECK(f.tune({40}).candidates[1].seconds == Approx(1.8e-4));
  CHECK(f.chosen({40}).name == "template");
}

TEST_CASE_METHOD(Hosted, "what a launch costs the host is measured, on record and told",
                 "[choice]") {
  constexpr double kBusy = 3e-3;  // seconds
  auto& hosted = twice.alternatives.back();
  hosted.call = [call = hosted.call](const auto& how, Stream s, float* y, const float* x, int n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    call(how, s, y, x, n);
  };
  twice.alternatives.push_back(process.way("off", 1e-3));
  const ChoiceOptions options{.backends = {"-off"}};
  const auto of = [](const TuneResult& result, const std::string& name) {
    const auto found = std::ranges::find_if(
        result.candidates, [&](const Candidate& c) { return result.show(0, c.config[0]) == name; });
    REQUIRE(found != result.candidates.end());
    return found->host_seconds;
  };
  const auto f = tuned(runtime, twice, options);
  for (const AlternativeInfo& info : f.alternatives({40})) CHECK(info.host_seconds == 0);
  const TuneResult result = f.tune({40});
  CHECK(f.chosen({40}).name == "hosted");  // it decides nothing
  CHECK(of(result, "template") > 0);
  CHECK(of(result, "hosted") >= kBusy);
  CHECK(of(result, "template") < of(result, "hosted"));
  CHECK(metrics(result, result.winner()).host_seconds == of(result, "hosted"));
  CHECK_THAT(to_json(result), Catch::Contains("\"host_ms\":"));
  // A kernel by itself is not called by the program.
  CHECK(runtime.tuned(typed_doubling()).known({40})->winner().host_seconds == 0);

  const auto g = tuned(process.runtime(), twice, options);
  const auto known = g.known({40});
  REQUIRE(known);
  const auto all = g.alternatives({40});
  REQUIRE(all.size() == 3);
  for (const std::size_t i : {0U, 1U}) {
    CHECK(all[i].host_seconds == of(result, all[i].name));
    CHECK(all[i].host_seconds == of(*known, all[i].name));
  }
  CHECK(all[2].host_seconds == 0);
}

TEST_CASE("where launches compute on the host, they have no host cost apart", "[choice]") {
  Twice t;
  t.process.device->host = true;
  t.twice.alternatives.push_back(t.process.way("mine", 0.5e-3));
  const TuneResult result = tuned(t.process.runtime(), t.twice).tune({40});
  for (const Candidate& c : result.candidates) CHECK(c.host_seconds == 0);
}

TEST_CASE_METHOD(Twice, "a callable's workspace is there on streams that prepare was given",
                 "[choice][prepare]") {
  DoublingWay mine = process.way("mine", 0);
  mine.call = [&](const auto& how, Stream, float* y, const float* x, int n) {
    static_cast<char*>(how.workspace)[99] = 1;
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    process.device->pass(1e-4);
  };
  mine.workspace = [](Named, const DoublingProblem&) { return std::size_t{100}; };
  twice.alternatives.push_back(mine);
  {
    const Runtime runtime = process.runtime();
    tuned(runtime, twice).prepare({40});  // now it is on record
  }
  const bool named = GENERATE(true, false);
  int here = 0;
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  PrepareOptions options;
  if (named) options.streams = {Stream{&here}};
  REQUIRE(runtime.prepare(of_choices({40}), options).complete());
  REQUIRE(f.chosen({40}).name == "mine");
  runtime.seal(OnUnprepared::error);
  Buffers data(40);
  for (int i = 0; i < 2; ++i) f({&here}, data.y.data(), data.x.data(), 40);
  CHECK(data.doubled());
  CHECK(runtime.metrics().workspace_allocations_total == (named ? 0u : 1u));
}
