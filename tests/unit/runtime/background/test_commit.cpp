// Commits of several ranks: all publish the same, or none publishes anything.
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "background_fixture.hpp"
#include "kiln_test.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("ranks publish the same at each commit, whatever each of them found, and when",
          "[runtime][background][ranks]") {
  // The step at which each rank has its first window.
  const auto opens = GENERATE(values<std::array<int, 3>>(
      {{0, 0, 0}, {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}));
  CAPTURE(opens[0], opens[1], opens[2]);
  Job job(3);
  for (int r = 0; r < 3; ++r) {
    job[r].options.mode = Mode::background;
    job[r].of(r == 0 ? 4 : 8).seconds =
        0.5e-3;  // the first rank has another winner than the others
  }
  Findings findings;
  const auto steps = job.run<std::vector<CommitReport>>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    std::vector<CommitReport> reports;
    const auto problem = [](int step) { return 60 + step; };
    run_once(handle, problem(0));
    run_once(handle, problem(1));
    for (int step = 0; step < 4; ++step) {
      {
        std::optional<TuningWindow> window;
        if (step >= opens[static_cast<std::size_t>(rank)]) {
          window = runtime.window();
          becomes([&] { return runtime.statistics().tuned == 2 || runtime.settled(); });
        }
      }
      reports.push_back(runtime.commit());
    }
    for (int tries = 0; tries < 3; ++tries) reports.push_back(runtime.commit());
    findings.check(handle.config({problem(0)}) != Values{2, 0});
    findings.check(handle.config({problem(1)}) != Values{2, 0});
    return reports;
  });
  CHECK(findings.wrong() == "");
  std::size_t changes = 0;
  for (std::size_t step = 0; step < steps[0].size(); ++step) {
    for (const auto& reports : steps) {
      CHECK(reports[step].digest == steps[0][step].digest);
      CHECK(reports[step].changes == steps[0][step].changes);
      CHECK(reports[step].generation == steps[0][step].generation);
    }
    changes += steps[0][step].changes.size();
  }
  CHECK(changes == 2);
}

TEST_CASE("a commit that a rank does not join publishes nothing", "[runtime][background][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) {
    job[r].options.mode = Mode::background;
    job[r].options.tuning.together.first_seconds = 0.3;
    job[r].of(8).seconds = 0.5e-3;
  }
  const Runtime runtime = job[0].runtime();
  const auto handle = runtime.tuned(doubling());
  tune_behind(runtime, handle);
  CHECK_THROWS_AS(runtime.commit(), EnvironmentError);
  CHECK(handle.config({60}) == Values{2, 0});
  CHECK_FALSE(runtime.settled());
}

TEST_CASE("a commit does not undo what was chosen while it loads", "[runtime][background][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) {
    job[r].options.mode = Mode::background;
    job[r].of(8).seconds = 0.5e-3;
  }
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    // The second rank has to load what the first one has found; meanwhile its program decides.
    bool decided = false;
    if (rank == 1)
      process.device->on_load = [&](const std::string&) {
        if (!std::exchange(decided, true))
          detail::Access::engine(runtime)->serving().handles().front()->use(Values{60},
                                                                            Values{4, 0});
      };
    becomes([&] { return !runtime.commit().changes.empty(); });
    process.device->on_load = {};
    return handle.config({60});
  });
  CHECK(configs == std::vector<Values>{{8, 0}, {4, 0}});
}

TEST_CASE("a commit does not give a kernel what was found for another one of its name",
          "[runtime][background][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) {
    job[r].options.mode = Mode::background;
    job[r].of(8).seconds = 0.5e-3;
  }
  KernelDefinition other = doubling();
  other.data_version = "of other data";
  const auto configs = job.run<std::vector<Values>>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto first = runtime.tuned(doubling()), second = runtime.tuned(other);
    run_once(first, 60);
    if (rank == 1) run_once(second, 60);
    if (rank == 0) tune_in_window(runtime);
    becomes([&] { return !runtime.commit().changes.empty(); });
    return std::vector<Values>{first.config({60}), second.config({60})};
  });
  for (const auto& of_rank : configs) CHECK(of_rank == std::vector<Values>{{8, 0}, {2, 0}});
}

TEST_CASE("a commit whose answer cannot be read publishes nothing",
          "[runtime][background][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) {
    job[r].options.mode = Mode::background;
    job[r].of(8).seconds = 0.5e-3;
    job.watch(r).hears_answers = false;
  }
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    tune_in_window(runtime);
    findings.check_throws<EnvironmentError>([&] { runtime.commit(); }, "cannot be reached");
    return handle.config({60});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>{{2, 0}, {2, 0}});
}

TEST_CASE("a commit waits for ranks that have more to compile", "[runtime][background][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) {
    job[r].options.mode = Mode::background;
    job[r].of(8).seconds = 0.5e-3;
  }
  job[1].compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry == "k<8, 0>") std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  const auto reports = job.run<CommitReport>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    return runtime.commit();
  });
  for (const CommitReport& report : reports) {
    CHECK(report.changes.size() == 1);
    CHECK(report.dropped == 0);
  }
}

TEST_CASE("a rank that cannot commit says so to the others", "[runtime][background][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) job[r].options.mode = Mode::background;
  job.watch(0).before = [](int) { throw std::runtime_error("no memory for a message"); };
  const auto errors = job.run<std::string>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    try {
      runtime.commit();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  CHECK(errors[0] == "no memory for a message");
  CHECK_THAT(errors[1], Catch::Contains("no memory for a message"));
}

TEST_CASE("a rank that fails inside a commit says so, and a later commit publishes",
          "[runtime][background][ranks]") {
  const bool by_a_rule = GENERATE(true, false);  // while it loads; else before it sends anything
  CAPTURE(by_a_rule);
  Job job = serving_job(2);
  Findings findings;
  const auto errors = job.run<std::string>([&](Process& process, int rank) {
    std::atomic<bool> fails{false};
    KernelDefinition kernel = doubling();
    kernel.steps.push_back({.entry = "step",
                            .launch = [](auto, auto) { return Launch{{1}, {1}, 0}; },
                            .only_if =
                                [&](auto) {
                                  if (fails) throw std::runtime_error("a rule that fails");
                                  return false;
                                }});
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    run_once(handle, 60);
    std::optional<DynamicTuned> other;
    if (rank == 0) tune_in_window(runtime);
    if (rank == 1 && !by_a_rule) {
      KernelDefinition untyped = doubling();
      untyped.types = {"no UTF-8: \xff"};
      other.emplace(runtime.tuned(untyped));
      run_once(*other, 60);
    }
    fails = rank == 1 && by_a_rule;
    std::string why;
    try {
      runtime.commit();
    } catch (const std::exception& error) {
      why = error.what();
    }
    findings.check(handle.config({60}) == Values{2, 0});
    findings.check(!runtime.settled());
    fails = false;
    other.reset();
    try {
      findings.check(runtime.commit().changes.size() == 1);
    } catch (const std::exception&) {
      findings.check(false);
    }
    findings.check(handle.config({60}) == Values{8, 0});
    return why;
  });
  CHECK(findings.wrong() == "");
  CHECK_THAT(errors[0], Catch::Contains(by_a_rule ? "another rank failed" : "rank 1 has failed"));
  CHECK_THAT(errors[1], Catch::Contains(by_a_rule ? "a rule that fails" : "UTF-8"));
}

TEST_CASE("a log that throws ends no commit", "[runtime][background][ranks]") {
  Job job = serving_job(2);
  job[1].of(8).load_error = "no memory for a module";
  job[1].options.log = [](LogLevel level, std::string_view) {
    if (level == LogLevel::warning) throw std::runtime_error("no place for a line");
  };
  Findings findings;
  job.run<int>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    try {
      findings.check(runtime.commit().dropped == 1);
    } catch (const std::exception&) {
      findings.check(false);
    }
    findings.check(runtime.settled());
    findings.check(rank == 0 || runtime.metrics().background_errors_total == 1);
    return 0;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("what a commit has put in use is used again after it has left, by all ranks",
          "[runtime][background][bounds][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) {
    job[r].options.mode = Mode::background;
    job[r].options.max_problems = 4;
    job[r].of(8).seconds = 0.5e-3;
  }
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    if (rank == 0) {  // the other one launches it for the first time after the commit
      run_once(handle, 60);
      const TuningWindow window = runtime.window();
      becomes([&] { return runtime.statistics().tuned == 1; });
    }
    becomes([&] { return !runtime.commit().changes.empty(); });
    if (rank == 0) {
      for (int n = 100; n < 110; ++n) run_once(handle, n);
      if (runtime.metrics().problems_evicted_total == 0) return Values{};
    }
    return handle.config({60});
  });
  CHECK(configs == std::vector<Values>{{8, 0}, {8, 0}});
}
