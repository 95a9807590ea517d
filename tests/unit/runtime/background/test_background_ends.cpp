// How tuning behind launches ends: windows that close, handles and runtimes that go, errors.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "background_fixture.hpp"
#include "kiln_test.hpp"
#include "runtime/background/background_job.hpp"
#include "runtime/background/background_tuning.hpp"
#include "unit/runtime/no_more_threads.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("where the background gets no thread, launches get the untuned config",
          "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.compile_threads = 1;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  {
    const NoMoreThreads none;
    for (const int n : {60, 60, 120}) run_once(handle, n);
  }
  CHECK(handle.config({60}) == Values{2, 0});
  CHECK(runtime.settled());
  CHECK(std::ranges::count_if(process.warnings(), [](const std::string& text) {
          return text.find("no thread") != std::string::npos;
        }) == 1);
  // A later problem finds one.
  run_once(handle, 240);
  CHECK_FALSE(runtime.settled());
  const TuningWindow window = runtime.window();
  CHECK(becomes([&] { return runtime.statistics().tuned == 1; }));
  CHECK(becomes([&] { return handle.config({240}) == Values{8, 0}; }));
}

TEST_CASE("a window that gets no thread to close it is not open", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  const Runtime runtime = process.runtime();
  const auto times =
      dynamic_cast<runtime::BackgroundTuning&>(*detail::Access::engine(runtime)->background())
          .times();
  {
    const NoMoreThreads none;
    CHECK_THROWS_AS(runtime.window({.max_seconds = 60}), EnvironmentError);
  }
  CHECK_FALSE(times->may_measure());
  {
    const TuningWindow window = runtime.window({.max_seconds = 60});
    CHECK(times->may_measure());
  }
  CHECK_FALSE(times->may_measure());
}

TEST_CASE("a slice that gets no thread to end it is tried again", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.background.duty = 1;
  process.options.compile_threads = 1;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);  // from now on the background has its own thread
  REQUIRE(becomes([&] { return runtime.settled(); }));
  {
    const NoMoreThreads none;
    run_once(handle, 120);
    REQUIRE(becomes([&] { return runtime.metrics().background_errors_total > 0; }));
  }
  CHECK(becomes([&] { return runtime.settled(); }));
  CHECK(handle.config({120}) == Values{8, 0});
}

namespace {

constexpr int kMany = 400;

/// Its search would try kMany candidates.
struct Long : Served {
  explicit Long(const fs::path& directory) : Served(directory) {
    options.background.max_evaluations = kMany;
  }
  static KernelDefinition kernel() { return doubling(up_to(kMany), 2); }
};

/// The first timed launch waits for `what`.
void hold_measuring(Process& process, std::atomic<bool>& held, std::atomic<bool>& came,
                    std::function<bool()> what) {
  process.device->on_launch = [&, what = std::move(what)](const std::string&, void**) {
    if (!process.device->timing || held.exchange(true)) return;
    came = becomes(what);
  };
}

}  // namespace

TEST_CASE("the end of a runtime stops the search in an open window", "[runtime][background]") {
  Directory directory;
  Long process(directory.path());
  std::optional<Runtime> runtime(process.runtime());
  const auto times =
      dynamic_cast<runtime::BackgroundTuning&>(*detail::Access::engine(*runtime)->background())
          .times();
  std::atomic<bool> held{false}, ended{false};
  hold_measuring(process, held, ended, [&] { return times->ended(); });
  const TuningWindow window = runtime->window();
  {
    const auto handle = runtime->tuned(Long::kernel());
    run_once(handle, 60);
    REQUIRE(becomes([&] { return held.load(); }));
  }
  runtime.reset();
  CHECK(ended);
  CHECK(process.compiler->compiles < kMany);
}

TEST_CASE("the end of a handle stops its search", "[runtime][background]") {
  Directory directory;
  Long process(directory.path());
  const Runtime runtime = process.runtime();
  std::atomic<bool> held{false}, settled{false};
  hold_measuring(process, held, settled, [&] { return runtime.settled(); });
  const TuningWindow window = runtime.window();
  {
    const auto handle = runtime.tuned(Long::kernel());
    run_once(handle, 60);
    REQUIRE(becomes([&] { return held.load(); }));
  }
  REQUIRE(becomes([&] { return settled && process.device->live_allocations == 0; }));
  CHECK(process.compiler->compiles < kMany);
}

TEST_CASE("a fork of the process lets a runtime go that measures in the process",
          "[runtime][background]") {
  Directory directory;
  Long process(directory.path());
  std::optional<Runtime> runtime(process.runtime());
  std::atomic<bool> held{false}, forked{false}, came{false};
  hold_measuring(process, held, came, [&] { return forked.load(); });
  std::optional<TuningWindow> window(runtime->window());
  std::optional<DynamicTuned> handle(runtime->tuned(Long::kernel()));
  run_once(*handle, 60);
  REQUIRE(becomes([&] { return held.load(); }));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    window.reset();
    handle.reset();
    runtime.reset();
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  forked = true;
}

TEST_CASE("closing a window does not wait for data", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  std::atomic<bool> making{false}, closed{false}, closed_first{false};
  KernelDefinition kernel = doubling();
  kernel.reference = [&, right = kernel.reference](auto problem, auto args) {
    if (!making.exchange(true)) closed_first = becomes([&] { return closed.load(); });
    right(problem, args);
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  TuningWindow window = runtime.window();
  run_once(handle, 60);
  REQUIRE(becomes([&] { return making.load(); }));
  window.close();
  closed = true;
  CHECK(process.device->timings == 0);
  const TuningWindow next = runtime.window();
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(closed_first);
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("data are made once for all windows", "[runtime][background]") {
  Directory directory;
  Long process(directory.path());
  std::atomic<int> references{0};
  // The search outlasts a window, also where this thread is not woken at once.
  process.device->on_launch = [](const std::string&, void**) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  KernelDefinition kernel = doubling(up_to(64), 2);
  kernel.reference = [&, right = kernel.reference](auto problem, auto args) {
    ++references;
    right(problem, args);
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  run_once(handle, 60);
  for (int windows = 0; windows < 5; ++windows) {
    const int timings = process.device->timings;
    const TuningWindow window = runtime.window();
    REQUIRE(becomes([&] { return process.device->timings > timings || runtime.settled(); }));
  }
  const TuningWindow window = runtime.window();
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(references == 1);
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("closing a window does not wait for compilations", "[runtime][background]") {
  Directory directory;
  Long process(directory.path());
  std::atomic<bool> compiling{false}, closed{false}, closed_first{true};
  process.compiler->on_compile = [&](const codegen::Source&) {
    if (process.device->timings == 0) return;  // ahead of the search
    compiling = true;
    if (!becomes([&] { return closed.load(); })) closed_first = false;
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(Long::kernel());
  run_once(handle, 60);
  {
    TuningWindow window = runtime.window();
    REQUIRE(becomes([&] { return compiling.load(); }));
    window.close();
  }
  closed = true;
  CHECK(closed_first);
}

TEST_CASE("finals that were stopped are held by the next run", "[runtime][background]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  for (const std::size_t most : {0, 3}) {
    const int n = 60 + static_cast<int>(most);
    std::stop_source stop;
    int finals = 0;
    TuneOptions options;
    options.max_evaluations = most;
    options.stop = stop.get_token();
    options.progress = [&](const TuneProgress& now) {
      if (now.phase != TuneProgress::Phase::finals) return;
      ++finals;
      stop.request_stop();
    };
    const TuneResult cut = handle.tune({n}, options);
    REQUIRE(finals == 1);
    CHECK(cut.end == SearchEnd::stopped);
    CHECK_FALSE(cut.complete);
    options.stop = {};
    const TuneResult held = handle.tune({n}, options);
    CHECK(finals == 2);
    CHECK(held.evaluated == 0);
    CHECK(held.end == (most == 0 ? SearchEnd::finished : SearchEnd::evaluations));
    CHECK(held.complete == (most == 0));
    CHECK(handle.tune({n}, options).from_store);
  }
}

TEST_CASE("windows that are too short for finals still come to a winner", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  const Runtime runtime = process.runtime();
  const auto times =
      dynamic_cast<runtime::BackgroundTuning&>(*detail::Access::engine(runtime)->background())
          .times();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  // A race loads its candidates, and takes fewer samples than this. Finals take more.
  constexpr int kSamples = 150;
  std::atomic<int> samples{0}, cut{0};
  process.device->on_load = [&](const std::string&) { samples = 0; };
  process.device->on_launch = [&](const std::string&, void**) {
    if (!process.device->timing || ++samples < kSamples) return;
    ++cut;
    times->interrupt();
  };
  const TuningWindow window = runtime.window();
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(cut > 0);
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("slices grow until a candidate is finished in one", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.background.duty = 1;
  KernelDefinition kernel = doubling();
  // A reference on the device keeps data from being made ahead; this one cannot be used.
  auto broken = std::make_shared<KernelDefinition>(doubling());
  broken->entry = "broken";
  (*process.script)["broken<2, 0>"].compile_log = "no";
  kernel.device_reference = {.config = "", .problem = {{"n", 8}}, .kernel = broken};
  kernel.reference = [right = kernel.reference](auto problem, auto args) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));  // more than a slice
    right(problem, args);
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  run_once(handle, 60);
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("after an error of the environment there is a pause", "[runtime][background]") {
  using std::chrono::steady_clock;
  Directory directory;
  Served process(directory.path());
  std::mutex mutex;
  std::vector<steady_clock::time_point> attempts;
  KernelDefinition kernel = doubling();
  kernel.reference = [&, right = kernel.reference](auto problem, auto args) {
    {
      const std::lock_guard lock(mutex);
      attempts.push_back(steady_clock::now());
      if (attempts.size() == 1) throw EnvironmentError("no memory at the moment");
    }
    right(problem, args);
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  const TuningWindow window = runtime.window();
  run_once(handle, 60);
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(handle.config({60}) == Values{8, 0});
  CHECK(process.warnings().empty());
  CHECK(runtime.metrics().background_errors_total == 1);
  REQUIRE(attempts.size() == 2);
  CHECK(attempts[1] - attempts[0] >= std::chrono::milliseconds(500));
}

TEST_CASE("exceptions of the program's functions do not end the background",
          "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.log = [](LogLevel level, std::string_view) {
    if (level == LogLevel::warning) throw std::runtime_error("the log is full");
  };
  KernelDefinition wrong = doubling(), wild = doubling();
  wrong.reference = [](auto, auto) { throw UserError("no reference today"); };
  wild.name = "wild";
  wild.workload = [](auto, auto&) { throw 42; };
  const Runtime runtime = process.runtime();
  const auto first = runtime.tuned(wrong), second = runtime.tuned(wild);
  const auto third = runtime.tuned(doubling());
  const TuningWindow window = runtime.window();
  run_once(first, 60);
  run_once(second, 60);
  run_once(third, 70);
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(first.config({60}) == Values{2, 0});
  CHECK(second.config({60}) == Values{2, 0});
  CHECK(third.config({70}) == Values{8, 0});
  CHECK(runtime.metrics().background_errors_total == 4);  // two tunings, and the log twice
}

TEST_CASE("data are of one handle's kernel, wherever another handle lies",
          "[runtime][background]") {
  runtime::JobData data;
  data.kernel = std::make_shared<const KernelDefinition>(doubling());
  data.problem = {60};
  runtime::BackgroundJob job;
  job.kernel = data.kernel;
  job.problem = {60};
  CHECK(data.of(job));
  job.problem = {61};
  CHECK_FALSE(data.of(job));
  job.problem = {60};
  job.kernel = std::make_shared<const KernelDefinition>(doubling());
  CHECK_FALSE(data.of(job));
}
