// Commits of ranks for which something takes long: what is late is published later, for all ranks.
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "background_fixture.hpp"
#include "findings.hpp"
#include "kiln_test.hpp"
#include "runtime/background/commit_loader.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/ranks_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// The first rank has found a config; the second one is in its first launch of that problem, from
/// `inside` until `committed`.
void commit_beside_launch(const Runtime& runtime, const DynamicTuned& handle, int rank,
                          const std::atomic<bool>& inside, std::atomic<bool>& committed,
                          Findings& findings) {
  std::optional<std::jthread> launches;
  if (rank == 0) {
    run_once(handle, 60);
    tune_in_window(runtime);
  } else {
    launches.emplace([&] { run_once(handle, 60); });
    findings.check(becomes([&] { return inside.load(); }));
  }
  findings.check(runtime.commit().changes.size() == 1);
  if (rank == 1) committed = true;
}

}  // namespace

TEST_CASE("a compile that is longer than a step makes its own change pending, and no other",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  RankOptions options = job.settings();
  options.step_seconds = patient(3);
  job.set(options);
  const KernelDefinition quick = doubling({1, 2, 8});
  KernelDefinition slow = doubling({1, 2, 4});
  slow.name = "slow";
  for (int r = 0; r < 2; ++r) job[r].of(4).seconds = 0.5e-3;
  std::atomic<bool> released{false};
  job[1].compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry == "k<4, 0>") becomes([&] { return released.load(); });
  };
  std::atomic<int> committed{0};
  Findings findings;
  const auto reports = job.run<std::vector<CommitReport>>([&](Process& process, int rank) {
    std::vector<CommitReport> all;
    try {
      const Runtime runtime = process.runtime();
      const auto first = runtime.tuned(quick), second = runtime.tuned(slow);
      run_once(first, 60);
      run_once(first, 61);
      run_once(second, 60);
      if (rank == 0) {
        const TuningWindow window = runtime.window();
        findings.check(becomes([&] { return runtime.statistics().tuned == 3; }));
      }
      all.push_back(runtime.commit());
      findings.check(!runtime.settled());
      findings.check(!released);
      ++committed;
      findings.check(becomes([&] { return committed == 2; }));
      released = true;
      findings.check(becomes([&] {
        all.push_back(runtime.commit());
        return !all.back().changes.empty() || all.back().dropped > 0;
      }));
      findings.check(runtime.settled());
      findings.check(first.config({60}) == Values{8, 0} && first.config({61}) == Values{8, 0});
      findings.check(second.config({60}) == Values{4, 0});
    } catch (const std::exception&) {
      findings.check(false);
    }
    return all;
  });
  CHECK(findings.wrong() == "");
  for (const auto& all : reports) {
    REQUIRE(all.size() >= 2);
    CHECK(all.front().changes.size() == 2);
    CHECK(all.front().pending == 1);
    CHECK(all.front().dropped == 0);
    CHECK(all.back().changes.size() == 1);
    CHECK(all.back().dropped == 0);
    CHECK(all.back().digest == reports[0].back().digest);
  }
}

TEST_CASE("the end of a runtime waits for a pending config that is being compiled",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  std::atomic<bool> compiles{false}, released{false}, ended{false};
  Findings findings;
  job[1].compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry != "k<8, 0>") return;
    compiles = true;
    becomes([&] { return released.load(); });
    findings.check(!ended);
  };
  job[1].device->on_load = [&](const std::string&) { findings.check(!ended); };
  job[1].options.log = [&](LogLevel, std::string_view) { findings.check(!ended); };
  const auto pending = job.run<std::size_t>([&](Process& process, int rank) {
    std::optional<Runtime> runtime(process.runtime());
    std::optional handle(runtime->tuned(doubling()));
    if (rank == 0) {
      run_once(*handle, 60);
      tune_in_window(*runtime);
      return runtime->commit({.wait = false}).pending;
    }
    // Nothing is compiled ahead for what the program has chosen.
    detail::Access::engine(*runtime)->serving().handles().front()->use(Values{60}, Values{4, 0});
    const std::size_t found = runtime->commit({.wait = false}).pending;
    findings.check(becomes([&] { return compiles.load(); }));
    const std::jthread releaser([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      released = true;
    });
    handle.reset();
    runtime.reset();
    findings.check(released);
    ended = true;
    return found;
  });
  CHECK(findings.wrong() == "");
  CHECK(pending == std::vector<std::size_t>{1, 1});
}

TEST_CASE("a launch that compiles while ranks commit gets what they have agreed on",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  std::atomic<bool> compiles{false}, committed{false};
  job[1].compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry != "k<2, 0>") return;
    compiles = true;
    becomes([&] { return committed.load(); });
  };
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    commit_beside_launch(runtime, handle, rank, compiles, committed, findings);
    findings.check(runtime.settled());
    return handle.config({60});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>{{8, 0}, {8, 0}});
}

TEST_CASE("a launch that has missed what ranks agreed on gets it at the next commit",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  std::atomic<bool> loaded{false}, marks{false}, committed{false};
  job[1].device->on_load = [&](const std::string& entry) { loaded = entry == "k<2, 0>"; };
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    KernelDefinition kernel = doubling();
    // It is asked once more between the loading of a config and its being put in use.
    if (rank == 1)
      kernel.launch = [&, rule = kernel.launch](auto config, auto problem, const auto& limits) {
        if (loaded && !marks.exchange(true)) becomes([&] { return committed.load(); });
        return rule(config, problem, limits);
      };
    const auto handle = runtime.tuned(kernel);
    commit_beside_launch(runtime, handle, rank, marks, committed, findings);
    if (rank == 1) findings.check(handle.config({60}) == Values{2, 0});
    runtime.commit();
    findings.check(runtime.settled());
    return handle.config({60});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>{{8, 0}, {8, 0}});
}

TEST_CASE("a commit reads the sources of a kernel once", "[runtime][background][ranks]") {
  const Directory directory;
  const fs::path file = directory.path() / "doubling.cuh";
  KernelDefinition kernel = doubling();
  std::ofstream(file) << kernel.source.text;
  kernel.source = {.file = file};
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  runtime::RecordBook& records = detail::Access::engine(runtime)->records();
  const auto kept = std::make_shared<const KernelDefinition>(kernel);
  runtime::Definitions definitions;
  const std::string before = definitions.of(records, kept);
  std::ofstream(file, std::ios::app) << "// edited";
  CHECK(definitions.of(records, kept) == before);
  CHECK(runtime::Definitions().of(records, kept) != before);
}
