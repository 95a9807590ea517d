// Budgets and stops hold from the moment the caller waits, whatever else is being tuned.
#include <atomic>
#include <future>
#include <thread>

#include "kiln_test.hpp"
#include "runtime/tuning_turn.hpp"
#include "typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// A tuning of the problem {50} on another thread, held up while it compiles its own last config.
class HeldTuning {
 public:
  explicit HeldTuning(Process& process) {
    process.compiler->on_compile = [this](const codegen::Source& source) {
      if (source.entry != "k<16, 0>") return;
      inside_ = true;
      released_.wait(false);
    };
  }
  ~HeldTuning() { release(); }
  /// Begins, and returns once it is held.
  void begin(const Runtime& runtime) {
    thread_ = std::jthread([runtime] { runtime.tuned(doubling({1, 2, 8, 16})).tune({50}); });
    while (!inside_) std::this_thread::yield();
  }
  void release() {
    released_ = true;
    released_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> inside_{false}, released_{false};
  std::jthread thread_;
};

bool launches_right(const DynamicTuned& handle, int n) {
  Buffers b(n);
  handle({}, Values{n}, b.y.data(), b.x.data(), n);
  return b.doubled();
}

}  // namespace

TEST_CASE("a budget covers waiting for another problem's tuning", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  HeldTuning other(process);
  const Runtime runtime = process.runtime();
  other.begin(runtime);
  TuneOptions options;
  options.max_seconds = 0.05;
  const auto handle = runtime.tuned(doubling());
  const TuneResult result = handle.tune({60}, options);  // returns at all: the other one is held
  CHECK(result.end == SearchEnd::seconds);
  CHECK_FALSE(result.complete);
  CHECK(result.winner().status == CandidateStatus::not_tried);
  CHECK(result.winner().config == Values{2, 0});
  CHECK(result.winner().reason == "the budget went in waiting for another tuning");
  CHECK(result.wall_seconds >= 0.05);
  other.release();
  const TuneResult later = handle.tune({60});
  CHECK(later.complete);
  CHECK(later.winner().status == CandidateStatus::measured);
}

TEST_CASE("a stop ends the wait for another tuning", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  HeldTuning other(process);
  const Runtime runtime = process.runtime();
  other.begin(runtime);
  std::stop_source stop;
  TuneOptions options;
  options.stop = stop.get_token();
  auto waiting =
      std::async(std::launch::async, [&] { return runtime.tuned(doubling()).tune({60}, options); });
  stop.request_stop();
  const TuneResult result = waiting.get();
  CHECK(result.end == SearchEnd::stopped);
  CHECK(result.winner().status == CandidateStatus::not_tried);
}

TEST_CASE("what is known of a problem is the answer when the budget goes in waiting",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  HeldTuning other(process);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  REQUIRE(handle.tune({60}).winner().config == Values{8, 0});
  other.begin(runtime);
  TuneOptions options;
  options.max_seconds = 0.02;
  options.retune = true;
  const TuneResult result = handle.tune({60}, options);
  CHECK(result.end == SearchEnd::seconds);
  CHECK(result.winner().config == Values{8, 0});
}

TEST_CASE("a launch whose budget goes in waiting runs the default, and is tuned later",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  process.options.tuning.max_seconds = 0.05;
  HeldTuning other(process);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  other.begin(runtime);
  CHECK(launches_right(handle, 60));
  CHECK_FALSE(handle.known({60}));
  other.release();
  CHECK(launches_right(handle, 60));
  CHECK(handle.known({60}));
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("use_default never waits for a tuning, of its own problem or of another's",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  process.options.while_busy = WhileBusy::use_default;
  HeldTuning other(process);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  other.begin(runtime);
  for (int i = 0; i < 3; ++i) CHECK(launches_right(handle, 60));
  CHECK_FALSE(handle.known({60}));
  other.release();
  CHECK(launches_right(handle, 60));
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("past its deadline a run times one candidate, and says what it left",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  TuneOptions options;
  options.max_seconds = 1e-9;
  const TuneResult result = runtime.tuned(doubling()).tune({60}, options);
  CHECK(result.end == SearchEnd::seconds);
  CHECK(result.count(CandidateStatus::measured) == 1);
  CHECK(result.winner().config == Values{2, 0});
  CHECK(result.winner().samples.size() == 1);
  CHECK_FALSE(result.complete);
  // The next one, without a limit, goes on.
  const TuneResult rest = runtime.tuned(doubling()).tune({60});
  CHECK(rest.complete);
  CHECK(rest.winner().config == Values{8, 0});
}

TEST_CASE("a turn is one thread's, again and again", "[runtime][budget]") {
  runtime::TuningTurn turn;
  CHECK_FALSE(turn.mine());
  {
    const auto outer = turn.take();
    const auto inner = turn.take(runtime::TimeLimit::already_passed());
    CHECK(outer);
    CHECK(inner);
    CHECK(turn.mine());
    CHECK_FALSE(turn.is_anothers());
    bool taken = true, anothers = false;
    std::jthread([&] {
      anothers = turn.is_anothers();
      taken = static_cast<bool>(turn.take(runtime::TimeLimit::already_passed()));
    }).join();
    CHECK(anothers);
    CHECK_FALSE(taken);
  }
  bool taken = false;
  std::jthread([&] {
    taken = static_cast<bool>(turn.take(runtime::TimeLimit::already_passed()));
  }).join();
  CHECK(taken);
  CHECK_FALSE(turn.mine());
}
