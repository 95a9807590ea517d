// What a handle remembers of what its ranks have agreed on.
#include <cstdint>
#include <string>
#include <vector>

#include "unit/runtime/ranks_fixture.hpp"
#include "unit/runtime/serve/modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("what the ranks agreed on is used again after it has left, in regions as well",
          "[runtime][bounds][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) {
    job[r].options.max_problems = 2;
    job[r].of(8).seconds = 0.5e-3;
  }
  const auto configs = job.run<Values>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    handle.tune({60});
    const auto served = detail::Access::engine(runtime)->serving().handles().front();
    for (int n = 100; n < 110; ++n) served->use(Values{n}, Values{2, 0});
    if (served->find(Values{60})) return Values{};
    return served->current(Values{60})->config;
  });
  CHECK(configs == std::vector<Values>{{8, 0}, {8, 0}});
}

TEST_CASE("ranks that have agreed on as many problems as they remember ask no more, all alike",
          "[runtime][bounds][ranks]") {
  Job job(2);
  std::vector<Watched*> watched;
  for (int r = 0; r < 2; ++r) {
    job[r].options.max_problems = 4;
    job[r].of(8).seconds = 0.5e-3;
    watched.push_back(&job.watch(r));
  }
  Findings findings;
  job.run<int>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    findings.check(launch(handle, 60));
    const auto served = detail::Access::engine(runtime)->serving().handles().front();
    runtime::Problems& problems = served->problems();
    // One rank has decided something by itself.
    if (rank == 0) served->use(Values{70}, Values{4, 0});
    for (std::int64_t n = 1; n < std::int64_t{runtime::Problems::kMostAgreed}; ++n)
      problems.agree(Values{1000 + n}, {1, 0});
    const int asked = watched[static_cast<std::size_t>(rank)]->calls;
    for (int n = 100; n < 110; ++n) {
      findings.check(launch(handle, n));
      findings.check(handle.config({n}) == Values{2, 0});
      findings.check(!problems.agreed(Values{n}));
    }
    // What was agreed on holds, and has been loaded again.
    findings.check(!served->find(Values{60}));
    findings.check(handle.config({60}) == Values{8, 0});
    findings.check(watched[static_cast<std::size_t>(rank)]->calls == asked);
    // Nothing else is put in use either, on any rank.
    const TuneResult tuned = handle.tune({120});
    findings.check(tuned.winner().config == Values{8, 0});
    findings.check(handle.config({120}) == Values{2, 0});
    std::size_t told = 0;
    for (const std::string& text : process.warnings())
      told += text.find("all others use the default config") != std::string::npos;
    findings.check(told == 1);
    return 0;
  });
  CHECK(findings.wrong() == "");
}
