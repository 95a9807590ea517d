// When ranks are settled: at the same commit, whatever happens to one of them alone.
#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "background_fixture.hpp"
#include "findings.hpp"
#include "kiln_test.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/no_more_threads.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

KernelDefinition without_data() {
  KernelDefinition kernel = doubling();
  kernel.reference = [](auto, auto) { throw std::runtime_error("no data can be made"); };
  return kernel;
}

/// Whether graphs that capture launches of n = 60 could be refreshed.
bool is_refreshable(const Runtime& runtime) {
  const auto handle = detail::Access::engine(runtime)->serving().handles().front();
  const detail::Ready ready = handle->find(Values{60});
  return ready && ready->provisional;
}

void give_up_in_window(const Runtime& runtime) {
  const TuningWindow window = runtime.window();
  becomes([&] { return runtime.metrics().background_errors_total > 0; });
}

/// What a rank saw of its commits.
struct Seen {
  std::vector<Digest> digests;
  std::vector<bool> settled, refreshable;  ///< after each of them
  std::size_t dropped = 0;
  Values config;
  std::string failed;
  bool operator==(const Seen&) const = default;
};

Seen commit_until_settled(const Runtime& runtime, const DynamicTuned& handle,
                          const std::function<void(int commits)>& between) {
  Seen seen;
  try {
    for (int commits = 0; commits < 10 && !runtime.settled(); ++commits) {
      between(commits);
      const CommitReport report = runtime.commit();
      seen.digests.push_back(report.digest);
      seen.settled.push_back(runtime.settled());
      seen.refreshable.push_back(is_refreshable(runtime));
      seen.dropped += report.dropped;
    }
  } catch (const EnvironmentError& error) {  // left alone
    seen.failed = error.what();
  }
  seen.config = handle.config({60});
  return seen;
}

}  // namespace

TEST_CASE("ranks are settled at the same commit, also where one has given up",
          "[runtime][background][ranks]") {
  enum class Lacks { data, thread, device };
  const auto lacks = GENERATE(Lacks::data, Lacks::thread, Lacks::device);
  CAPTURE(static_cast<int>(lacks));
  Job job = serving_job(2);
  // The first rank launches before the other, where threads start.
  const Runtime first = job[0].runtime();
  const auto first_handle = first.tuned(lacks == Lacks::data ? without_data() : doubling());
  {
    std::optional<NoMoreThreads> none;
    if (lacks == Lacks::thread) none.emplace();
    run_once(first_handle, 60);
  }
  if (lacks == Lacks::data) give_up_in_window(first);
  if (lacks == Lacks::device) {
    job[0].of(8).launch_error = "device lost";
    give_up_in_window(first);
  }
  const auto seen = job.run<Seen>([&](Process& process, int rank) {
    if (rank == 0) return commit_until_settled(first, first_handle, [](int) {});
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    return commit_until_settled(runtime, handle, [&](int commits) {
      if (commits == 2) tune_in_window(runtime);
    });
  });
  CHECK(seen[1].failed == "");
  CHECK(seen[0] == seen[1]);
  CHECK(seen[1].settled == std::vector<bool>{false, false, true});
  CHECK(seen[1].refreshable == std::vector<bool>{true, true, false});
  // A rank that has lost its device loads nothing.
  CHECK(seen[1].dropped == (lacks == Lacks::device ? 1 : 0));
  CHECK(seen[1].config == (lacks == Lacks::device ? Values{2, 0} : Values{8, 0}));
}

TEST_CASE("what all ranks have given up stays as it is, also where it is launched later",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  const auto seen = job.run<Seen>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(without_data());
    if (rank == 0) {
      run_once(handle, 60);
      give_up_in_window(runtime);
    }
    Seen all = commit_until_settled(runtime, handle, [](int) {});
    if (rank == 1) run_once(handle, 60);
    all.refreshable.push_back(is_refreshable(runtime));
    all.digests.push_back(runtime.commit().digest);
    all.settled.push_back(runtime.settled());
    return all;
  });
  CHECK(seen[1].failed == "");
  CHECK(seen[0].digests == seen[1].digests);
  for (const Seen& of_rank : seen) {
    CHECK(of_rank.settled == std::vector<bool>{true, true});
    CHECK_FALSE(of_rank.refreshable.back());
    CHECK(of_rank.config == Values{2, 0});
  }
}

TEST_CASE("what a rank cannot load is settled on all of them", "[runtime][background][ranks]") {
  Job job = serving_job(2);
  job[1].of(8).load_error = "no memory for a module";
  const auto seen = job.run<Seen>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    run_once(handle, 60);
    if (rank == 0) tune_in_window(runtime);
    return commit_until_settled(runtime, handle, [](int) {});
  });
  CHECK(seen[1].failed == "");
  CHECK(seen[0] == seen[1]);
  CHECK(seen[0].dropped == 1);
  CHECK(seen[0].settled == std::vector<bool>{true});
  CHECK(seen[0].refreshable == std::vector<bool>{false});
  CHECK(seen[0].config == Values{2, 0});
}

TEST_CASE("ranks that launch something new are settled as of their last commit",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    findings.check(!runtime.settled());  // no commit has told
    runtime.commit();
    findings.check(runtime.settled());
    if (rank == 0) run_once(handle, 60);
    findings.check(runtime.settled());
    runtime.commit();
    findings.check(!runtime.settled());
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("in any mode a runtime is not settled while launches get a stand-in",
          "[runtime][stand_ins]") {
  const Directory directory;
  Process process(directory.path());
  process.options.while_busy = WhileBusy::use_default;
  std::atomic<bool> inside{false}, go{false};
  process.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry == "k<2, 0>") return;  // the default, which stands in
    inside = true;
    while (!go) std::this_thread::yield();
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(runtime.settled());
  std::thread other([&] { handle.prepare({60}); });
  while (!inside) std::this_thread::yield();
  run_once(handle, 60);
  CHECK_FALSE(runtime.settled());
  go = true;
  other.join();
  CHECK(runtime.settled());
}
