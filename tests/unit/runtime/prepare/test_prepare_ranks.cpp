// Ranks that prepare together.
#include <barrier>
#include <stdexcept>
#include <string>
#include <vector>

#include "kiln_test.hpp"
#include "prepare_fixture.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using enum PreparedState;

namespace {

struct Prepared {
  PrepareReport report;
  std::vector<Values> configs;  ///< in use
  int calls = 0;                ///< of the communicator, by launches
  bool right = true;
};

std::vector<Prepared> prepare(Job& job, const std::vector<int>& ns, PrepareOptions options = {},
                              int without_handle = -1) {
  std::vector<Watched*> watched;
  for (int r = 0; r < job.size(); ++r) watched.push_back(&job.watch(r));
  return job.run<Prepared>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    std::optional<DynamicTuned> handle;
    if (rank != without_handle) handle = runtime.tuned(doubling());
    Prepared mine;
    mine.report = runtime.prepare(problems(ns), options);
    const int before = watched[static_cast<std::size_t>(rank)]->calls;
    runtime.seal(OnUnprepared::error);
    for (const int n : handle ? ns : std::vector<int>{}) {
      mine.right = mine.right && launch(*handle, n);
      mine.configs.push_back(handle->config({n}));
    }
    mine.calls = watched[static_cast<std::size_t>(rank)]->calls - before;
    return mine;
  });
}

}  // namespace

TEST_CASE("ranks prepare a manifest in one agreement", "[runtime][prepare][ranks]") {
  Job job(3);
  for (int r = 0; r < 3; ++r) job[r].of(4).seconds = 0.5 * kMs;
  const auto first = prepare(job, {50, 60});
  for (int r = 0; r < 3; ++r) {
    const Prepared& p = first[static_cast<std::size_t>(r)];
    CHECK(states(p.report) == States{tuned, tuned});
    CHECK(p.configs == std::vector<Values>{{4, 0}, {4, 0}});
    CHECK(p.calls == 0);
    CHECK(p.right);
    CHECK(p.report.compiled == static_cast<std::size_t>(job[r].compiler->compiles));
  }
  SECTION("a second start only loads") {
    job.restart();
    for (const Prepared& p : prepare(job, {50, 60})) {
      CHECK(states(p.report) == States{known, known});
      CHECK(p.report.compiled == 0);
      CHECK(p.configs == std::vector<Values>{{4, 0}, {4, 0}});
    }
    for (int r = 0; r < 3; ++r) {
      CHECK(job[r].compiler->compiles == 0);
      CHECK(measured(job[r]) == 0);
    }
  }
  SECTION("without measuring: the same records are used, different ones are not") {
    job.restart();
    for (const Prepared& p : prepare(job, {50, 70}, {.work = PrepareWork::compile})) {
      CHECK(states(p.report) == States{known, untuned});
      CHECK(p.configs == std::vector<Values>{{4, 0}, {2, 0}});
    }
    for (int r = 0; r < 3; ++r) CHECK(measured(job[r]) == 0);
    job.restart();
    for (const auto& file : job.directory(1).entries(".json")) fs::remove(file);
    const auto differ = prepare(job, {50}, {.work = PrepareWork::compile});
    for (const Prepared& p : differ) CHECK(p.configs == std::vector<Values>{{2, 0}});
    for (const Prepared& p : differ) {
      CHECK(states(p.report) == States{on_default});
      CHECK_THAT(p.report.problems[0].why, Catch::Contains("no usable record on rank 1"));
    }
    for (int r = 0; r < 3; ++r) CHECK(measured(job[r]) == 0);
  }
}

TEST_CASE("a rank without the handles does not let the others wait", "[runtime][prepare][ranks]") {
  Job job(3);
  const auto all = prepare(job, {50, 60}, {}, 1);
  CHECK(states(all[1].report) == States{missing, missing});
  for (const int r : {0, 2}) {
    CHECK(states(all[static_cast<std::size_t>(r)].report) == States{on_default, on_default});
    const std::string& why = all[static_cast<std::size_t>(r)].report.problems[0].why;
    CHECK_THAT(why, Catch::Contains("it has none of the manifest's problems"));
    CHECK(all[static_cast<std::size_t>(r)].configs == std::vector<Values>{{2, 0}, {2, 0}});
    CHECK(all[static_cast<std::size_t>(r)].report.seconds < 10);
  }
}

TEST_CASE("a rank whose preparation throws before the agreement lets no rank wait",
          "[runtime][prepare][ranks]") {
  Job job(2);
  PrepareOptions wrong;
  std::string what;
  SECTION("while it compiles") {
    what = "the engine's callback failed";
    wrong.progress = [&](const PrepareProgress& now) {
      if (now.step == PrepareProgress::Step::compile) throw std::runtime_error(what);
    };
  }
  SECTION("because its options make no sense") {
    what = "max_seconds is -1";
    wrong.max_seconds = -1;
  }
  bool busy = false;
  SECTION("because another one of its runtime is going on") {
    what = "another preparation";
    busy = true;
  }
  Watched& watch = job.watch(1);
  Findings findings;
  std::barrier both(2);
  const auto reports = job.run<PrepareReport>([&](Process& process, int rank) -> PrepareReport {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(doubling());
    if (rank == 0) {
      PrepareReport report = runtime.prepare(problems({50}));
      both.arrive_and_wait();
      return report;
    }
    std::optional<runtime::Serving::Preparing> other;
    if (busy) other.emplace(detail::Access::engine(runtime)->serving().begin_preparing());
    const auto says_why = [&](const auto& call) {
      try {
        call();
      } catch (const std::exception& error) {
        return std::string(error.what()).find(what) != std::string::npos;
      }
      return false;
    };
    findings.check(says_why([&] { runtime.prepare(problems({50}), wrong); }));
    both.arrive_and_wait();
    // The others do not answer, because they have something in use.
    const int calls = watch.calls;
    findings.check(says_why([&] { handle.config({50}); }));
    findings.check(watch.calls == calls);
    return {};
  });
  CHECK(findings.wrong() == "");
  CHECK(states(reports[0]) == States{on_default});
  CHECK_THAT(reports[0].problems[0].why,
             Catch::Contains("rank 1 gave up: ") && Catch::Contains(what));
  CHECK(reports[0].seconds < 10);
}

TEST_CASE("ranks that prepare nothing, or may not compile", "[runtime][prepare][ranks]") {
  Job job(2);
  for (const bool right : job.run<bool>([&](Process& process, int) {
         const Runtime runtime = process.runtime();
         bool refused = false;
         try {
           runtime.prepare(problems({50}), {.work = PrepareWork::look_up});
         } catch (const UserError&) {
           refused = true;
         }
         // Nobody has a handle.
         return refused && runtime.prepare({}).complete() &&
                states(runtime.prepare(problems({50}))) == States{missing};
       }))
    CHECK(right);
}

TEST_CASE("a problem that fails on ranks costs the others nothing", "[runtime][prepare][ranks]") {
  Job job(2);
  for (int r = 0; r < 2; ++r) {
    job[r].of(4).seconds = 0.5 * kMs;
    for (const int a : {1, 2, 4, 8})
      (*job[r].script)["wrong<" + std::to_string(a) + ", 0>"].run = [](void**) {};
  }
  KernelDefinition wrong = doubling(), lacks = doubling();
  wrong.name = "wrong";
  wrong.entry = "wrong";
  lacks.name = "lacks";
  Manifest manifest = problems({50, 60, 70});
  manifest.wanted[1].kernel = "wrong";
  manifest.wanted[2].kernel = "lacks";
  Findings findings;
  for (const PrepareReport& report : job.run<PrepareReport>([&](Process& process, int) {
         const Runtime runtime = process.runtime();
         const auto right = runtime.tuned(doubling()), failing = runtime.tuned(wrong);
         const auto lacking = runtime.tuned(lacks);
         lacking.symbol("none", 1);
         PrepareReport report = runtime.prepare(manifest);
         findings.check(right.config({50}) == Values{4, 0});
         const auto handles = detail::Access::engine(runtime)->serving().handles();
         findings.check(!handles[1]->find(Values{60}));
         return report;
       })) {
    CHECK(states(report) == States{tuned, failed, failed});
    CHECK_THAT(report.problems[1].why, Catch::Contains("none of its candidates can be used"));
    CHECK_THAT(report.problems[2].why, Catch::Contains("none"));
    CHECK(report.problems[1].config.empty());
  }
  CHECK(findings.wrong() == "");
}

TEST_CASE("a rank that loses its device while ranks prepare says so, and no other waits",
          "[runtime][prepare][ranks]") {
  Job job(2);
  FakeDevice& lost = *job[1].device;
  lost.on_launch = [&](const std::string&, void**) { lost.is_lost = true; };
  const auto threw = job.run<std::string>([&](Process& process, int) -> std::string {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    try {
      runtime.prepare(problems({50, 60}));
      return {};
    } catch (const EnvironmentError& error) {
      return error.what();
    }
  });
  CHECK(threw[0].empty());
  CHECK_THAT(threw[1], Catch::Contains("lost"));
}
