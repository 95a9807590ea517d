// Ranks that prepare choices together.
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "choice_ranks_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

struct Ready {
  PrepareReport report;
  std::string chosen;
  int calls = 0;  ///< of the communicator, by launches
};

/// `without`: the rank that has no choice
std::vector<Ready> prepare(Job& job, const Manifest& manifest, const PrepareOptions& options = {},
                           int without = -1) {
  std::vector<Watched*> watched;
  for (int r = 0; r < job.size(); ++r) watched.push_back(&job.watch(r));
  return job.run<Ready>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    std::optional<Chosen> f;
    if (rank != without) f = tuned(runtime, kernel_or_mine(process, 0.5 * kMs));
    Ready mine;
    mine.report = runtime.prepare(manifest, options);
    const int before = watched[static_cast<std::size_t>(rank)]->calls;
    runtime.seal(OnUnprepared::error);
    if (f) mine.chosen = launched(process, *f, 40);
    mine.calls = watched[static_cast<std::size_t>(rank)]->calls - before;
    return mine;
  });
}

}  // namespace

TEST_CASE("ranks prepare choices in the order of the manifest", "[choice][prepare][ranks]") {
  Job job(2);
  const Manifest manifest = of_choices({40, 50});
  for (const Ready& p : prepare(job, manifest)) {
    REQUIRE(p.report.problems.size() == 2);
    for (const PreparedProblem& problem : p.report.problems) {
      CHECK(problem.state == PreparedState::tuned);
      CHECK(problem.alternative == "mine");
    }
    CHECK(p.report.complete());
    CHECK(p.chosen == "mine");
    CHECK(p.calls == 0);
  }
  job.restart();
  for (const Ready& p : prepare(job, manifest)) {
    CHECK(p.report.problems[1].state == PreparedState::known);
    CHECK(p.report.compiled == 0);
    CHECK(p.chosen == "mine");
    CHECK(p.calls == 0);
  }
  for (int r = 0; r < 2; ++r) CHECK(measured(job[r]) == 0);
}

TEST_CASE("ranks that may not measure prepare no choice in the mode tune_now",
          "[choice][prepare][ranks]") {
  Job job(2);
  for (const Ready& p : prepare(job, of_choices({40}), {.work = PrepareWork::compile})) {
    CHECK(p.report.problems[0].state == PreparedState::missing);
    CHECK_THAT(p.report.problems[0].why, Catch::Contains("which was not asked for"));
    CHECK_THAT(p.chosen, Catch::Contains("was not prepared"));
  }
  for (int r = 0; r < 2; ++r) CHECK(measured(job[r]) == 0);
}

TEST_CASE("in a mode that does not tune ranks prepare what they have in common",
          "[choice][prepare][ranks]") {
  Job job(2);
  REQUIRE(prepare(job, of_choices({40})).front().report.complete());
  job.restart();
  for (int r = 0; r < 2; ++r) job[r].options.mode = Mode::lookup_only;
  for (const Ready& p : prepare(job, of_choices({40}))) {
    CHECK(p.report.problems[0].state == PreparedState::known);
    CHECK(p.chosen == "mine");
  }
}

TEST_CASE("a rank without the choice is told of, and keeps none waiting",
          "[choice][prepare][ranks]") {
  Job job(2);
  const auto prepared = prepare(job, of_choices({40, 50}), {}, 1);
  for (const PreparedProblem& problem : prepared[0].report.problems) {
    CHECK(problem.state == PreparedState::failed);
    CHECK(problem.why == "the ranks do not all prepare this choice, in the same way");
  }
  for (const PreparedProblem& problem : prepared[1].report.problems) {
    CHECK(problem.state == PreparedState::missing);
    CHECK(problem.why == "there is no choice twice<>");
  }
}

TEST_CASE("kernels and choices of one manifest are agreed on", "[choice][prepare][ranks]") {
  Job job(2);
  Manifest manifest = of_choices({40});
  Findings findings;
  manifest.wanted.insert(manifest.wanted.begin(), {"doubling", {}, "generic", {{"n", 60}}, {}});
  const auto prepared = job.run<PrepareReport>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const Chosen f = tuned(runtime, kernel_or_mine(process, 0.5 * kMs));
    PrepareReport report = runtime.prepare(manifest);
    runtime.seal();
    // The kernel is loaded, and stands in for nothing of the choice.
    findings.check(launched(process, f, 40) == "mine");
    Buffers data(60);
    findings.check_throws<UnpreparedError>([&] { f({}, data.y.data(), data.x.data(), 60); });
    return report;
  });
  CHECK(findings.wrong() == "");
  for (const PrepareReport& report : prepared) {
    REQUIRE(report.problems.size() == 2);
    CHECK(report.problems[0].state == PreparedState::tuned);
    CHECK(report.problems[1].state == PreparedState::tuned);
    CHECK(report.problems[1].alternative == "mine");
  }
}

TEST_CASE("a rank that gives up a preparation keeps none waiting", "[choice][prepare][ranks]") {
  Job job(2);
  Manifest manifest = of_choices({40, 50, 40});
  manifest.wanted.push_back({"doubling", {}, "generic", {{"n", 60}}, {}});
  using Step = PrepareProgress::Step;
  const auto at = GENERATE(Step::check, Step::load, Step::tune);
  const auto start = std::chrono::steady_clock::now();
  Findings findings;
  const auto reports = job.run<PrepareReport>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const Chosen f = tuned(runtime, kernel_or_mine(process, 0.5 * kMs));
    PrepareOptions options;
    if (rank == 1)
      options.progress = [&](const PrepareProgress& p) {
        if (p.step == at) throw std::runtime_error("no more");
      };
    try {
      PrepareReport report = runtime.prepare(manifest, options);
      findings.check(rank == 0);
      return report;
    } catch (const std::runtime_error& error) {
      findings.check(rank == 1 && std::string(error.what()) == "no more");
      return PrepareReport{};
    }
  });
  CHECK(findings.wrong() == "");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  for (const PreparedProblem& p : reports[0].problems)
    if (p.is_choice) CHECK((p.state == PreparedState::failed || p.state == PreparedState::tuned));
}

TEST_CASE("a rank that gives up a preparation that does not tune keeps none waiting",
          "[choice][prepare][ranks]") {
  Job job(2);
  if (GENERATE(false, true)) job[1].options.mode = Mode::untuned;  // which decides without tuning
  const auto start = std::chrono::steady_clock::now();
  job.run<bool>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const Chosen f = tuned(runtime, kernel_or_mine(process, 0.5 * kMs));
    PrepareOptions options{.work = PrepareWork::compile};
    if (rank == 1)
      options.progress = [&](const PrepareProgress& p) {
        if (p.step == PrepareProgress::Step::tune && p.done == 1) throw std::runtime_error("no");
      };
    try {
      runtime.prepare(of_choices({40, 50}), options);
    } catch (const std::runtime_error&) {
    }
    return true;
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("ranks agree once on a bucket of a choice", "[choice][prepare][ranks]") {
  Job job(2);
  const auto prepared = job.run<PrepareReport>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    Doubling twice = kernel_or_mine(process, 0.5 * kMs);
    twice.bucket = to_64;
    const Chosen f = tuned(runtime, twice);
    return runtime.prepare(of_choices({40, 50, 64}));
  });
  for (const PrepareReport& report : prepared) {
    CHECK(report.problems[0].state == PreparedState::tuned);
    CHECK(report.problems[1].state == PreparedState::known);
    CHECK(report.problems[2].state == PreparedState::known);
    CHECK(report.searched == 1);
  }
}

TEST_CASE("ranks that prepare in different ways decide on no choice", "[choice][prepare][ranks]") {
  Job job(2);
  const auto reports = job.run<PrepareReport>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const Chosen f = tuned(runtime, kernel_or_mine(process, 0.5 * kMs));
    std::optional<Chosen> other;
    if (rank == 1) other = tuned(runtime, kernel_or_mine(process, 0.5 * kMs));
    return runtime.prepare(of_choices({40}));
  });
  for (const PrepareReport& report : reports)
    for (const PreparedProblem& p : report.problems) {
      CHECK(p.state == PreparedState::failed);
      CHECK_THAT(p.why, Catch::Contains("do not all prepare"));
    }
}

TEST_CASE("what ranks left on a default is decided by the next preparation",
          "[choice][prepare][ranks]") {
  Job job(2);
  const auto states = job.run<std::vector<PreparedState>>([&](Process& process, int) {
    process.options.mode = Mode::untuned;
    const Runtime runtime = process.runtime();
    const Chosen f = tuned(runtime, kernel_or_mine(process, 0.5 * kMs));
    std::vector<PreparedState> all;
    for (int i = 0; i < 2; ++i) {
      const PrepareReport report = runtime.prepare(of_choices({40}));
      all.push_back(report.problems[0].state);
    }
    return all;
  });
  for (const auto& of_rank : states) CHECK(of_rank == std::vector(2, PreparedState::on_default));
}

TEST_CASE("a second choice of one name is decided beside one that was decided before",
          "[choice][prepare][ranks]") {
  Job job(2);
  struct Made {
    PrepareReport report;
    std::string first, second;
  };
  const auto made = job.run<Made>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const Doubling twice = kernel_or_mine(process, 0.5 * kMs);
    const Chosen first = tuned(runtime, twice);
    runtime.prepare(of_choices({40}));
    const Chosen second = tuned(runtime, twice);
    Made mine{runtime.prepare(of_choices({40})), {}, {}};
    runtime.seal(OnUnprepared::error);
    mine.first = launched(process, first, 40);
    mine.second = launched(process, second, 40);
    return mine;
  });
  for (const Made& m : made) {
    REQUIRE(m.report.problems.size() == 2);
    CHECK(m.report.complete());
    CHECK(m.report.problems[0].why == "");
    CHECK(m.report.problems[1].why == "");
    CHECK(m.first == "mine");
    CHECK(m.second == "mine");
  }
}

namespace {

/// Ranks whose runtimes have no communicator, but whose choices have one.
struct OwnRanks {
  explicit OwnRanks(int size) : job(size) {
    for (int r = 0; r < size; ++r) job[r].options.tuning.ranks = nullptr;
    for (auto& end : thread_communicators(size)) ends.push_back(std::move(end));
  }
  ChoiceOptions options(Process& process, int rank) {
    TuneOptions tuning = process.options.tuning;
    tuning.ranks = ends[static_cast<std::size_t>(rank)];
    return {.tuning = tuning};
  }

  Job job;
  std::vector<std::shared_ptr<Communicator>> ends;
};

}  // namespace

TEST_CASE("choices with a communicator of their own are prepared together",
          "[choice][prepare][ranks]") {
  OwnRanks ranks(2);
  Findings findings;
  const auto reports = ranks.job.run<PrepareReport>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const Chosen f =
        tuned(runtime, kernel_or_mine(process, 0.5 * kMs), ranks.options(process, rank));
    PrepareReport report = runtime.prepare(of_choices({40, 50}));
    findings.check(launched(process, f, 40) == "mine");
    // What kernels run with is the ranks' business, and not on record.
    const auto known = f.known({40});
    findings.check(known && known->kernels.size() == 1 && known->kernels[0].config.empty());
    return report;
  });
  CHECK(findings.wrong() == "");
  for (const PrepareReport& report : reports) {
    CHECK(report.complete());
    for (const PreparedProblem& p : report.problems) CHECK(p.state == PreparedState::tuned);
  }
}

TEST_CASE("a rank that gives up choices with a communicator of their own keeps none waiting",
          "[choice][prepare][ranks]") {
  OwnRanks ranks(2);
  using Step = PrepareProgress::Step;
  const auto at = GENERATE(Step::check, Step::load, Step::tune);
  const auto start = std::chrono::steady_clock::now();
  Findings findings;
  const auto reports = ranks.job.run<PrepareReport>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const Chosen f =
        tuned(runtime, kernel_or_mine(process, 0.5 * kMs), ranks.options(process, rank));
    const auto kernel = runtime.tuned(typed_doubling());  // something to load
    Manifest manifest = of_choices({40, 50});
    manifest.wanted.push_back({"doubling", {}, "generic", {{"n", 60}}, {}});
    PrepareOptions options;
    if (rank == 1)
      options.progress = [&](const PrepareProgress& p) {
        if (p.step == at) throw std::runtime_error("no more");
      };
    try {
      return runtime.prepare(manifest, options);
    } catch (const std::runtime_error&) {
      findings.check(rank == 1);
      return PrepareReport{};
    }
  });
  CHECK(findings.wrong() == "");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  REQUIRE(reports[0].problems.size() == 4);  // the choice's kernel has a handle, too
  for (const PreparedProblem& p : reports[0].problems)
    if (p.is_choice) CHECK((p.state == PreparedState::failed || p.state == PreparedState::tuned));
}

TEST_CASE("ranks that differ in choices with a communicator of their own are told of it",
          "[choice][prepare][ranks]") {
  OwnRanks ranks(2);
  const auto start = std::chrono::steady_clock::now();
  const auto reports = ranks.job.run<PrepareReport>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const Doubling twice = kernel_or_mine(process, 0.5 * kMs);
    const Chosen f = tuned(runtime, twice, ranks.options(process, rank));
    std::optional<Chosen> other;
    if (rank == 1) other = tuned(runtime, twice, ranks.options(process, rank));
    return runtime.prepare(of_choices({40}));
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  for (const PrepareReport& report : reports)
    for (const PreparedProblem& p : report.problems) {
      CHECK(p.state == PreparedState::failed);
      CHECK_THAT(p.why, Catch::Contains("do not all prepare"));
    }
}
