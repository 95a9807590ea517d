// A choice that is measured beside other tunings of its runtime.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "choice_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace std::chrono_literals;

namespace {

const Candidate& of(const TuneResult& result, const std::string& alternative) {
  for (const Candidate& c : result.candidates)
    if (result.describe(c).starts_with("alternative=" + alternative)) return c;
  throw std::out_of_range(alternative);
}

}  // namespace

TEST_CASE_METHOD(Twice, "no other tuning of the runtime is timed while a choice is",
                 "[choice][turn]") {
  const Runtime runtime = process.runtime();
  runtime::TuningTurn& turn = detail::Access::engine(runtime)->workshop().turn();
  std::atomic<bool> calling = false, launched = false;
  std::jthread other;
  process.device->on_launch = [&](const std::string&, void**) {
    if (calling) launched = true;
  };
  DoublingWay mine = process.way("mine", 0);
  mine.call = [&, right = process.way("mine", 5e-4).call](const auto& how, Stream s, float* y,
                                                          const float* x, int n) {
    if (process.device->timing && !other.joinable()) {
      calling = true;
      other = std::jthread([&] { runtime.tuned(doubling()).tune({60}); });
      for (int i = 0; i < 500 && !launched && turn.waiting() == 0; ++i)
        std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(50ms);
      calling = false;
    }
    right(how, s, y, x, n);
  };
  twice.alternatives.push_back(mine);
  const TuneResult result = tuned(runtime, twice).tune({40});
  REQUIRE(other.joinable());
  other.join();
  CHECK_FALSE(launched);
  CHECK(of(result, "mine").seconds == Approx(5e-4));
  CHECK(runtime.tuned(doubling()).known({60}));
}

TEST_CASE_METHOD(Twice, "a call may wait for a tuning on another thread, and is timed again",
                 "[choice][turn]") {
  const Runtime runtime = process.runtime();
  DoublingWay mine = process.way("mine", 0);
  int timed = 0;
  mine.call = [&, right = process.way("mine", 5e-4).call](const auto& how, Stream s, float* y,
                                                          const float* x, int n) {
    right(how, s, y, x, n);
    if (!process.device->timing || ++timed != 4) return;
    std::jthread([&] { runtime.tuned(doubling()).tune({60}); }).join();
    process.device->pass(1);
  };
  twice.alternatives.push_back(mine);
  const auto f = tuned(runtime, twice);
  const TuneResult result = f.tune({40});
  CHECK(timed > 4);
  REQUIRE(of(result, "mine").status == CandidateStatus::measured);
  for (const double seconds : of(result, "mine").samples) CHECK(seconds < 0.1);
  CHECK(f.chosen({40}).name == "mine");
  CHECK(runtime.tuned(doubling()).known({60}));
}

TEST_CASE_METHOD(Twice, "a choice waits for the turn no longer than it may take",
                 "[choice][turn]") {
  const Runtime runtime = process.runtime();
  // Without the kernel, which would wait for its own tuning before it is launched.
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  twice.alternatives = {process.way("first", 1e-3), process.way("mine", 5e-4)};
  const auto f = tuned(runtime, twice);
  runtime::TuningTurn& turn = detail::Access::engine(runtime)->workshop().turn();
  std::atomic<bool> has = false, over = false;
  std::jthread other([&] {
    const auto hold = turn.take();
    has = true;
    while (!over) std::this_thread::sleep_for(1ms);
  });
  while (!has) std::this_thread::yield();
  TuneOptions little;
  little.max_seconds = 0.2;
  const TuneResult result = f.tune({40}, little);
  over = true;
  CHECK(result.winner().status == CandidateStatus::not_tried);
  CHECK(process.calls["mine"] == 0);
}

TEST_CASE_METHOD(Twice, "a call may wait for a tuning of the same choice on another thread",
                 "[choice][turn]") {
  const Runtime runtime = process.runtime();
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  DoublingWay mine = process.way("mine", 0);
  std::function<void()> tune_other;
  int timed = 0;
  mine.call = [&, right = process.way("mine", 5e-4).call](const auto& how, Stream s, float* y,
                                                          const float* x, int n) {
    right(how, s, y, x, n);
    if (process.device->timing && ++timed == 4) std::jthread([&] { tune_other(); }).join();
  };
  twice.alternatives = {process.way("first", 1e-3), mine};
  const auto f = tuned(runtime, twice);
  tune_other = [&] { f.tune({60}); };
  f.tune({40});
  CHECK(timed > 4);
  CHECK(f.chosen({40}).name == "mine");
  CHECK(f.known({60}));
}

TEST_CASE_METHOD(
    Twice, "a thread that has the turn waits for no launch of a choice that waits for the turn",
    "[choice][turn]") {
  const Runtime runtime = process.runtime();
  twice.workload = typed_doubling().workload;
  twice.reference = typed_doubling().reference;
  twice.alternatives = {process.way("first", 1e-3), process.way("mine", 5e-4)};
  const auto f = tuned(runtime, twice);
  runtime::TuningTurn& turn = detail::Access::engine(runtime)->workshop().turn();
  std::jthread other;
  {
    const auto hold = turn.take();
    other = std::jthread([&] { f.prepare({40}); });
    while (turn.waiting() == 0) std::this_thread::yield();
    f.prepare({40});
    f.prepare({60});
    CHECK(f.chosen({60}).name == "mine");
  }
  other.join();
  CHECK(f.chosen({40}).name == "mine");
}
