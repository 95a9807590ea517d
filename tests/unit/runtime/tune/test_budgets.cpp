// Budgets and stops hold from the moment the caller waits, whatever else is being tuned.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "kiln_test.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuning_session.hpp"
#include "runtime/tune/tuning_turn.hpp"
#include "unit/runtime/typed_fixture.hpp"
#include "unit/runtime/waiting.hpp"

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
    thread_ = std::jthread(
        [runtime] { runtime.tuned(doubling({1, 2, 8, 16})).tune({50}, TuneOptions{}); });
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

/// Trials of the problem {50}. A function that may take long is called before each build.
class LateMaker final : public runtime::TrialMaker {
 public:
  LateMaker(const KernelDefinition& kernel, runtime::Workshop& workshop,
            std::function<void()> before_build)
      : maker_(kernel, problem_, workshop.device(), workshop.builder(), 0),
        before_build_(std::move(before_build)) {}

  detail::Tunable subject() const noexcept override { return maker_.subject(); }
  std::span<const std::int64_t> problem() const noexcept override { return problem_; }
  const DeviceInfo& device() const noexcept override { return maker_.device(); }
  bool has_reference() const noexcept override { return true; }
  unsigned threads() const noexcept override { return 1; }
  runtime::Build build(const Values& config) override {
    before_build_();
    return maker_.build(config);
  }
  std::variant<std::shared_ptr<runtime::Module>, runtime::Refusal> load(
      const Values& config, const runtime::Build& build) override {
    return maker_.load(config, build);
  }
  runtime::TrialBench& bench() override { return maker_.bench(); }
  void expect() override { maker_.expect(); }
  void drop_bench() noexcept override { maker_.drop_bench(); }
  runtime::Trial trial(const Values& config, const runtime::Build& build) override {
    return maker_.trial(config, build);
  }
  std::shared_ptr<runtime::Module> module_of(const runtime::Rig& rig) override {
    return maker_.module_of(rig);
  }

 private:
  const Values problem_{50};
  runtime::KernelMaker maker_;
  const std::function<void()> before_build_;
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
  CHECK(result.winner().reason == "the budget was spent waiting for another tuning");
  CHECK(result.wall_seconds >= 0.05);
  other.release();
  const TuneResult later = handle.tune({60});
  CHECK(later.complete);
  CHECK(later.winner().status == CandidateStatus::measured);
}

TEST_CASE("a budget covers waiting for another process that tunes the problem",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path()), second(directory.path());
  HeldTuning other(process);
  other.begin(process.runtime());
  TuneOptions options;
  options.max_seconds = 0.05;
  const auto handle = second.runtime().tuned(doubling({1, 2, 8, 16}));
  const TuneResult result = handle.tune({50}, options);
  CHECK(result.end == SearchEnd::seconds);
  CHECK_FALSE(result.complete);
  CHECK(second.device->timings == 0);
  other.release();
  const TuneResult later = handle.tune({50});
  CHECK(later.complete);
  CHECK(later.from_store);  // as the other process has left it
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
  // The rest is tuned without a limit, because how far the launch came depends on the machine.
  CHECK(handle.tune({60}, TuneOptions{}).winner().config == Values{8, 0});
}

TEST_CASE("a launch that waits for another tuning has its default compiled meanwhile",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.options.tuning.max_seconds = 1000;
  HeldTuning other(process);
  std::atomic<bool> compiled{false};
  process.compiler->on_compile = [&, held = process.compiler->on_compile](const auto& source) {
    compiled = compiled || source.entry == "k<2, 5>";
    held(source);
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling({1, 2, 4, 8}, 2, {5}));
  other.begin(runtime);
  auto launch = std::async(std::launch::async, [&] { return launches_right(handle, 60); });
  for (int i = 0; i < 10'000 && !compiled; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(compiled);
  other.release();
  CHECK(launch.get());
  CHECK(handle.known({60}));
}

TEST_CASE("a launch that gets its turn late leaves the tuning to a later one",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.options.tuning.max_seconds = 0.1;
  HeldTuning other(process);
  process.compiler->on_compile = [&, held = process.compiler->on_compile,
                                  first = true](const auto& source) mutable {
    held(source);
    if (source.entry != "k<2, 5>" || !std::exchange(first, false)) return;
    other.release();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling({1, 2, 4, 8}, 2, {5}));
  other.begin(runtime);
  CHECK(launches_right(handle, 60));  // the turn is free by now, but the time is over
  CHECK_FALSE(handle.known({60}));
  CHECK(launches_right(handle, 60));
  CHECK(handle.known({60}));
}

TEST_CASE("a launch that gets its turn late uses what was found for its problem meanwhile",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  HeldTuning other(process);
  const Runtime runtime = process.runtime();
  other.begin(runtime);
  runtime::Workshop& workshop = detail::Access::engine(runtime)->workshop();
  const KernelDefinition kernel = doubling({1, 2, 8, 16});
  LateMaker maker(kernel, workshop, [&] {
    other.release();  // returns when it has ended
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  TuneOptions options;
  options.max_seconds = 0.1;
  const TuneResult result = runtime::tune_alone(workshop, maker, options, true).result;
  CHECK(result.winner().config == Values{8, 0});
  CHECK(result.end == SearchEnd::finished);
  CHECK(result.complete);
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

TEST_CASE("with a budget, nothing is built beside the default where builds share the CPU",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.device->host = true;
  std::atomic<bool> default_builds{false}, beside{false};
  process.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry != "k<2, 0>") {
      if (default_builds) beside = true;
      return;
    }
    default_builds = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    default_builds = false;
  };
  TuneOptions options;
  options.max_seconds = 100;
  const TuneResult result = process.runtime().tuned(doubling()).tune({60}, options);
  CHECK_FALSE(beside);
  CHECK(result.count(CandidateStatus::measured) == 4);
}

TEST_CASE("a run does not wait for builds that outlast its budget", "[runtime][budget]") {
  Directory directory;
  std::atomic<bool> open{false};
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  process.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry == "k<16, 0>") open.wait(false);
  };
  const TuneOptions options{.max_seconds = patient(3)};
  const Runtime runtime = process.runtime();
  const TuneResult result = runtime.tuned(doubling({1, 2, 4, 8, 16})).tune({60}, options);
  CHECK(result.end == SearchEnd::seconds);  // returns at all: the build has not ended
  CHECK_FALSE(result.complete);
  CHECK(result.winner().config == Values{8, 0});
  open = true;
  open.notify_all();
  // The handle is gone, its kernel was built all the same.
  const TuneResult rest = runtime.tuned(doubling({1, 2, 4, 8, 16})).tune({60});
  CHECK(rest.complete);
  CHECK(rest.compiled == 0);
  CHECK(process.compiler->compiles == 5);
}

TEST_CASE("a run that is stopped does not wait for builds", "[runtime][budget]") {
  Directory directory;
  std::atomic<bool> open{false};
  std::stop_source stop;
  Process process(directory.path());
  process.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry != "k<16, 0>") return;
    stop.request_stop();
    open.wait(false);
  };
  TuneOptions options;
  options.stop = stop.get_token();
  const Runtime runtime = process.runtime();
  CHECK(runtime.tuned(doubling({1, 2, 4, 8, 16})).tune({60}, options).end == SearchEnd::stopped);
  open = true;
  open.notify_all();
}

TEST_CASE("a build that goes on is of the same key, without the program's functions",
          "[runtime][budget]") {
  Bench bench;
  auto of_program = std::make_shared<int>(0);
  KernelDefinition kernel = doubling();
  kernel.flops = [of_program](std::span<const std::int64_t>) { return 1.0; };
  kernel.space.where("no", [of_program](auto, auto, const DeviceLimits&) { return true; });
  kernel.steps = {
      {.entry = "s", .only_if = [of_program](auto c) { return ++*of_program, c[0] > 2; }},
      {.entry = "t", .only_if = [of_program](auto) { return false; }}};
  kernel.workspace = {.size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{}; },
                      .only_if = [of_program](auto c) { return c[0] > 2; }};
  kernel.maps = {{.argument = 0, .only_if = [of_program](auto c) { return c[0] == 8; }}};
  runtime::KernelMaker maker(kernel, Values{60}, bench.device, bench.builder, 0);
  const auto lasting = maker.lasting_builds();
  REQUIRE(lasting);
  for (const std::int64_t block : {2, 4, 8}) {
    const long references = of_program.use_count();
    const auto job = lasting->job({block, 0});
    CHECK(of_program.use_count() == references);
    const int called = *of_program;
    const runtime::Build build = job();
    CHECK(*of_program == called);
    CHECK(build.compiled);
    CHECK(build.key == maker.build({block, 0}).key);
  }
  CHECK(bench.compiler->compiles == 3);
}

TEST_CASE("with few threads a limited search goes on compiling while it measures",
          "[runtime][budget]") {
  Directory directory;
  std::atomic<bool> measuring{false}, overlapped{false}, first_two{false};
  Process process(directory.path());
  process.options.compile_threads = 1;
  process.compiler->on_compile = [&](const codegen::Source&) {
    if (first_two && !overlapped)
      overlapped = becomes([&] { return measuring.load(); }, patient(2));
    first_two = process.compiler->compiles > 1;
  };
  process.of(1).run = [&, first = true](void** args) mutable {
    measuring = std::exchange(first, false);
    for (int i = 0; i < 2000 && measuring && !overlapped; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    measuring = false;
    compute_doubling(args);
  };
  TuneOptions options;
  options.max_seconds = 1000;
  CHECK(process.runtime().tuned(doubling({1, 2, 4, 8, 16})).tune({60}, options).complete);
  CHECK(overlapped);
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

TEST_CASE("a thread that only tries to take the turn does not wait for it", "[runtime][budget]") {
  runtime::TuningTurn turn;
  int wanted = 0;
  turn.when_wanted([&] { ++wanted; });
  const auto mine = turn.take();
  CHECK(turn.try_take());
  bool taken = true;
  std::jthread([&] { taken = static_cast<bool>(turn.try_take()); }).join();
  CHECK_FALSE(taken);
  CHECK(wanted == 0);
  std::jthread([&] {
    taken = static_cast<bool>(turn.take(runtime::TimeLimit(1e-3, runtime::Clock::now())));
  }).join();
  CHECK_FALSE(taken);
  CHECK(wanted == 1);
}

TEST_CASE("a thread whose turn it is does not wait for one that waits for the turn",
          "[runtime][budget]") {
  const Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  runtime::TuningTurn& turn = detail::Access::engine(runtime)->workshop().turn();
  std::jthread other;
  {
    const auto mine = turn.take();
    const auto launch = [&] {
      Buffers b(60);
      handle({}, Values{60}, b.y.data(), b.x.data(), 60);
    };
    other = std::jthread(launch);
    while (turn.waiting() == 0) std::this_thread::yield();
    // As a region that is being tuned may do.
    launch();
    CHECK_FALSE(handle.prepare({60}));
    CHECK(handle.config({60}) == Values{2, 0});
  }
  other.join();
  CHECK(runtime.statistics().tuned == 1);
}

TEST_CASE("nothing is being compiled any more when a runtime is sealed", "[runtime][budget]") {
  Directory directory;
  std::atomic<bool> open{false}, built{false};
  Process process(directory.path());
  process.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry != "k<16, 0>") return;
    open.wait(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    built = true;
  };
  const TuneOptions options{.max_seconds = patient(3)};
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling({1, 2, 4, 8, 16}));
  CHECK_FALSE(handle.tune({60}, options).complete);
  open = true;
  open.notify_all();
  runtime.seal();
  CHECK(built);
  CHECK(launches_right(handle, 60));
}
