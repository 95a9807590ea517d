// In a budget for many problems the data of the next one are drawn while one is measured.
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "findings.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/serve/modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace std::chrono_literals;

namespace {

/// Twenty problems of doubling(), whose workloads are watched.
struct Drawing {
  explicit Drawing(const fs::path& directory) : process(directory) {
    kernel.workload = [this, draw = kernel.workload](auto p, Workload& w) {
      {
        const std::lock_guard lock(mutex);
        ++drawn[p[0]];
        threads.insert(std::this_thread::get_id());
      }
      now = std::max<int>(now, ++drawing);
      if (before) before(p[0]);
      draw(p, w);
      --drawing;
    };
  }
  std::vector<TuneResult> tune(const Runtime& runtime, double seconds = 60) {
    const auto handle = runtime.tuned(kernel);
    std::vector<TuneJob> jobs;
    for (int n = 50; n < 70; ++n) jobs.push_back({handle, {n}});
    return runtime.tune(jobs, {.max_seconds = seconds});
  }

  Process process;
  KernelDefinition kernel = doubling();
  std::function<void(std::int64_t n)> before;
  std::mutex mutex;
  std::map<std::int64_t, int> drawn;
  std::set<std::thread::id> threads;
  std::atomic<int> drawing = 0, now = 0;
};

}  // namespace

TEST_CASE("the next problem's data are drawn while one is measured", "[runtime][budget]") {
  const Directory directory;
  Drawing d(directory.path());
  const auto self = std::this_thread::get_id();
  std::atomic<bool> ahead = false, timed = false;
  d.before = [&](std::int64_t) {
    if (std::this_thread::get_id() == self || ahead.exchange(true)) return;
    for (int i = 0; i < 2000 && !timed; ++i) std::this_thread::sleep_for(1ms);
  };
  d.process.device->on_launch = [&](const std::string&, void**) {
    if (ahead && d.drawing > 0 && d.process.device->timing) timed = true;
  };
  const auto results = d.tune(d.process.runtime());
  CHECK(ahead);
  CHECK(timed);
  CHECK(d.now == 1);
  CHECK(d.drawn.size() == 20);
  std::size_t draws = 0;
  for (const auto& [n, count] : d.drawn) draws += static_cast<std::size_t>(count);
  CHECK(draws == 20);  // what was drawn ahead was used
  for (const TuneResult& result : results) CHECK(result.complete);
}

TEST_CASE("no data are drawn ahead where that disturbs what is timed, or nothing needs them",
          "[runtime][budget]") {
  const Directory directory;
  Drawing d(directory.path());
  const Runtime runtime = d.process.runtime();
  SECTION("on the host") {
    d.process.device->host = true;
    d.tune(runtime);
    CHECK(d.threads == std::set{std::this_thread::get_id()});
  }
  SECTION("all is on record") {
    d.tune(runtime);
    CHECK(d.threads.size() > 1);
    d.drawn.clear();
    for (const TuneResult& result : d.tune(runtime)) CHECK(result.from_store);
    CHECK(d.drawn.empty());
  }
}

TEST_CASE("data that cannot be drawn ahead fail their own problem", "[runtime][budget]") {
  const Directory directory;
  Drawing d(directory.path());
  d.before = [](std::int64_t n) {
    if (n == 60) throw std::runtime_error("no data for 60");
  };
  const Runtime runtime = d.process.runtime();
  const auto results = d.tune(runtime);
  CHECK_THAT(results.at(60 - 50).failure, Catch::Contains("no data for 60"));
  const auto handle = runtime.tuned(d.kernel);
  for (int n = 50; n < 70; ++n) CHECK(handle.known({n}).has_value() == (n != 60));
}
