// Commits of ranks that do not wait: what they agree on is loaded behind the launches, and a later
// commit publishes it, on all ranks.
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "background_fixture.hpp"
#include "findings.hpp"
#include "kiln_test.hpp"
#include "runtime/background/ballot.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/no_more_threads.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr CommitOptions kBehind{.wait = false};

/// Commits until something is published or dropped. Returns all reports.
std::vector<CommitReport> commit_until_decided(const Runtime& runtime) {
  std::vector<CommitReport> reports;
  becomes([&] {
    reports.push_back(runtime.commit(kBehind));
    return !reports.back().changes.empty() || reports.back().dropped > 0;
  });
  return reports;
}

}  // namespace

TEST_CASE("a commit that does not wait loads nothing itself, and a later one publishes",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  std::atomic<bool> compiles{false};
  job[1].compiler->on_compile = [&](const codegen::Source& source) {
    while (source.entry == "k<8, 0>" && !compiles) std::this_thread::yield();
  };
  std::mutex mutex;
  std::set<std::thread::id> loaders;  // of what was found
  for (int r = 0; r < 2; ++r)
    job[r].device->on_load = [&](const std::string& entry) {
      const std::lock_guard lock(mutex);
      if (entry == "k<8, 0>") loaders.insert(std::this_thread::get_id());
    };
  Findings findings;
  const auto seen =
      job.run<std::pair<std::vector<CommitReport>, Values>>([&](Process& process, int rank) {
        const Runtime runtime = process.runtime();
        const auto handle = runtime.tuned(doubling());
        run_once(handle, 60);
        if (rank == 0) tune_in_window(runtime);
        for (int commits = 0; commits < 3; ++commits) {  // while the second rank compiles
          const CommitReport report = runtime.commit(kBehind);
          findings.check(report.changes.empty());
          findings.check(report.pending == 1);
          findings.check(report.dropped == 0);
          findings.check(report.generation == 0);
          findings.check(!runtime.settled());
          findings.check(handle.config({60}) == Values{2, 0});
        }
        compiles = true;
        auto reports = commit_until_decided(runtime);
        findings.check(runtime.settled());
        {
          const std::lock_guard lock(mutex);
          findings.check(!loaders.contains(std::this_thread::get_id()));
        }
        return std::pair(std::move(reports), handle.config({60}));
      });
  CHECK(findings.wrong() == "");
  CHECK(seen[0].first.size() == seen[1].first.size());
  for (const auto& [reports, config] : seen) {
    CHECK(reports.back().changes.size() == 1);
    CHECK(reports.back().pending == 0);
    CHECK(reports.back().digest == seen[0].first.back().digest);
    CHECK(config == Values{8, 0});
  }
}

TEST_CASE("what a rank cannot load behind its launches is dropped on all of them",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  if (GENERATE(false, true))
    job[1].of(8).load_error = "no memory for a module";
  else
    job[1].device->on_load = [](const std::string& entry) {
      if (entry == "k<8, 0>") throw 8;  // of a program's own function
    };
  const auto reports = job.run<CommitReport>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    CommitReport last = commit_until_decided(runtime).back();
    if (!runtime.settled() || handle.config({60}) != Values{2, 0}) last.dropped = 100;
    return last;
  });
  for (const CommitReport& report : reports) {
    CHECK(report.changes.empty());
    CHECK(report.dropped == 1);
    CHECK(report.pending == 0);
  }
}

TEST_CASE("what the program chooses while something is pending stays",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    if (runtime.commit(kBehind).pending != 1) return Values{};
    detail::Access::engine(runtime)->serving().handles().front()->use(Values{60}, Values{4, 0});
    for (int commits = 0; commits < 20; ++commits)
      if (!runtime.commit(kBehind).changes.empty()) return Values{};
    return runtime.settled() ? handle.config({60}) : Values{};
  });
  CHECK(configs == std::vector<Values>{{4, 0}, {4, 0}});
}

TEST_CASE("what takes long to load is loaded once, however often ranks commit meanwhile",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  std::atomic<int> loads{0};
  job[1].device->on_load = [&](const std::string& entry) {
    if (entry != "k<8, 0>") return;
    ++loads;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  const auto changes = job.run<std::size_t>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    for (;;) {
      const CommitReport report = runtime.commit(kBehind);
      if (!report.changes.empty() || report.dropped > 0) return report.changes.size();
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
  CHECK(changes == std::vector<std::size_t>{1, 1});
  CHECK(loads == 1);
}

TEST_CASE("a commit waits if one of the ranks does", "[runtime][background][ranks]") {
  Job job = serving_job(2);
  const auto reports = job.run<CommitReport>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    return runtime.commit({.wait = rank == 1});
  });
  for (const CommitReport& report : reports) {
    CHECK(report.changes.size() == 1);
    CHECK(report.pending == 0);
  }
}

TEST_CASE("a rank whose background has no thread loads in the commit",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  const Runtime second = job[1].runtime();
  const auto second_handle = second.tuned(doubling());
  std::optional<NoMoreThreads> none;
  std::atomic<bool> no_more{false};
  const auto reports = job.run<CommitReport>([&](Process& process, int rank) {
    if (rank == 1) {
      // All threads that the first rank needs run before there can be no more.
      while (!no_more) std::this_thread::yield();
      run_once(second_handle, 60);
      return second.commit(kBehind);
    }
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    tune_in_window(runtime);
    none.emplace();
    no_more = true;
    return runtime.commit(kBehind);
  });
  for (const CommitReport& report : reports) {
    CHECK(report.changes.size() == 1);
    CHECK(report.pending == 0);
  }
  CHECK(second_handle.config({60}) == Values{8, 0});
}

TEST_CASE("what is pending outlives the handles and the runtime that it was loaded for",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  const auto changes = job.run<std::size_t>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    std::optional handle(runtime.tuned(doubling()));
    run_once(*handle, 60);
    if (rank == 0) tune_in_window(runtime);
    runtime.commit(kBehind);
    if (rank == 1) handle.reset();
    const auto reports = commit_until_decided(runtime);
    if (rank == 0 && handle->config({60}) != Values{8, 0}) return std::size_t{100};
    return reports.back().changes.size();
  });
  CHECK(changes == std::vector<std::size_t>{1, 1});
  // Runtimes that end while something is pending.
  Job ends = serving_job(2);
  const auto pending = ends.run<std::size_t>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    return runtime.commit(kBehind).pending;
  });
  CHECK(pending == std::vector<std::size_t>{1, 1});
}

TEST_CASE("what ranks have agreed on stands, whatever is found meanwhile",
          "[runtime][background][ranks]") {
  const runtime::KernelChange place{{"k", {}, {{"n", 60}}, {}}, "definition"};
  const runtime::Named agreed{{"a", 8}}, found{{"a", 4}};
  const std::vector<runtime::Entry> entries{{.place = place, .found = found},
                                            {.place = place, .found = found},
                                            {.place = place, .found = agreed, .agreed = true},
                                            {.place = place}};
  const runtime::Choices choices = runtime::choose(entries);
  REQUIRE(choices.found.size() == 1);
  CHECK(choices.found[0].found == agreed);
  CHECK(choices.open.empty());
  const runtime::Choices before = runtime::choose(std::span(entries).first(2));
  CHECK(before.found.at(0).found == found);
}

TEST_CASE("without ranks a commit that does not wait publishes what was found, and no more",
          "[runtime][background]") {
  const Directory directory;
  Served process(directory.path());
  process.options.background.publish = Publish::at_commit;
  const Runtime runtime = process.runtime();
  const auto first = runtime.tuned(doubling());
  tune_behind(runtime, first);
  const auto second = runtime.tuned(doubling());
  run_once(second, 60);
  CHECK(runtime.commit(kBehind).changes.size() == 1);
  CHECK(first.config({60}) == Values{8, 0});
  CHECK(second.config({60}) == Values{2, 0});
  const TuningWindow window = runtime.window();  // the other one finds it on record
  REQUIRE(becomes([&] {
    runtime.commit(kBehind);
    return second.config({60}) == Values{8, 0};
  }));
}
