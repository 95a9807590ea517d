// An alternative that keeps the host busy for longer than the device.
#include <memory>
#include <vector>

#include "choice_fixture.hpp"
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
