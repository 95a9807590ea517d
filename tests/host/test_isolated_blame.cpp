// What a candidate in a worker is blamed for, and what not: workers that cannot be replaced, memory
// that is missing now, budgets, damage by others.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "isolated_tuner.hpp"
#include "kiln/error.hpp"
#include "odd_device.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using kiln::test::TemporaryDirectory;
using trouble::has;
using trouble::Tuner;

namespace {

constexpr double kPatience = 10;

bool was_tried(const TuneResult& result, std::int64_t mode) {
  return std::any_of(result.candidates.begin(), result.candidates.end(), [&](const Candidate& c) {
    return c.config == Values{mode} && c.status != CandidateStatus::not_tried;
  });
}

/// Candidates that are right and have nothing special about them.
constexpr std::int64_t kPlain = 100;

/// The installation's worker, started by a script that can be removed.
struct Removable {
  TemporaryDirectory folder;
  std::filesystem::path path = folder.path() / "worker";

  Removable() {
    const auto real = runtime::worker_options({}).executable;
    test::write_text(path, "#!/bin/sh\nexec " + real.string() + " \"$@\"\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
};

/// A worker on a device that does what the test asks for (odd_device.hpp).
struct Odd {
  TemporaryDirectory folder;
  runtime::WorkerOptions worker;

  Odd() {
    ::setenv("KILN_TEST_ODD", folder.path().c_str(), 1);
    worker.executable =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "odd_worker";
  }
  ~Odd() { ::unsetenv("KILN_TEST_ODD"); }
  void ask_for(const char* what) const { test::write_text(folder.path() / what, ""); }
  /// Asks for it before the worker takes the nth such step, and the ones after that `times - 1`
  /// times more.
  void at(const char* what, std::string_view step, int nth, int times = 1) {
    worker.journal = [this, what, step, nth, times, seen = 0](pid_t, std::string_view now) mutable {
      if (now == step && ++seen >= nth && seen < nth + times) ask_for(what);
    };
  }
};

}  // namespace

TEST_CASE("candidates that no worker is left for stay untried", "[host][isolation]") {
  const Removable executable;
  std::vector<std::int64_t> modes{trouble::slow, trouble::fast, trouble::more};
  for (std::int64_t i = 0; i < 6; ++i) modes.push_back(kPlain + i);
  Tuner tuner;
  runtime::WorkerOptions worker;
  worker.executable = executable.path;
  bool timed = false, gone = false;
  const auto end_for_ever = [&](pid_t process) {
    gone = true;
    std::filesystem::remove(executable.path);
    ::kill(process, SIGKILL);
  };
  SECTION("and the tuning ends with what it has") {
    worker.journal = [&](pid_t process, std::string_view step) {
      timed = timed || step == "time";
      if (step == "load" && timed && !gone) end_for_ever(process);
    };
    const TuneResult result =
        tuner.tune(trouble::kernel(modes), worker, trouble::tuning(kPatience));
    CHECK(gone);
    CHECK(result.end == SearchEnd::stopped);
    CHECK_FALSE(result.complete);
    CHECK(result.winner().config != Values{trouble::slow});
    REQUIRE_FALSE(result.warnings.empty());
    CHECK(has(result.warnings.front(), "no worker can be started any more"));
    CHECK(result.candidates.size() == 4);
    CHECK(result.count(CandidateStatus::measured) == 4);
  }
  SECTION("and without any result that is an error") {
    worker.journal = [&](pid_t process, std::string_view step) {
      if (step == "verify" && !gone) end_for_ever(process);
    };
    CHECK_THROWS_AS(tuner.tune(trouble::kernel(modes), worker, trouble::tuning(kPatience)),
                    runtime::BenchLost);
  }
}

TEST_CASE("a tuning whose workers are ended again and again ends, and blames nobody",
          "[host][isolation]") {
  // Each candidate is timed at least once, and costs a worker then.
  std::vector<std::int64_t> modes{trouble::slow, trouble::fast};
  for (std::int64_t i = 0; i < 50; ++i) modes.push_back(kPlain + i);
  Tuner tuner;
  runtime::WorkerOptions worker;
  int steps = 0;
  worker.journal = [&](pid_t process, std::string_view step) {
    if (step == "time" && ++steps % 2 == 1) ::kill(process, SIGKILL);
  };
  std::string why;
  try {
    const TuneResult result =
        tuner.tune(trouble::kernel(modes), worker, trouble::tuning(kPatience));
    REQUIRE_FALSE(result.warnings.empty());
    why = result.warnings.front();
    CHECK(result.end == SearchEnd::stopped);
    CHECK(result.count(CandidateStatus::crashed) == 0);
  } catch (const runtime::BenchLost& lost) {
    why = lost.what();
  }
  CAPTURE(why, steps);
  CHECK(has(why, "workers ended 50 times"));
}

TEST_CASE("a worker that is ended while it sends outputs is replaced", "[host][isolation]") {
  KernelDefinition kernel = trouble::kernel({trouble::slow, trouble::fast});
  kernel.reference = {};
  const bool checks = GENERATE(false, true);
  if (checks)
    kernel.check = [](auto problem, std::span<void* const> got, auto) -> std::string {
      for (std::int64_t i = 0; i < problem[0]; ++i)
        if (static_cast<const float*>(got[0])[i] != 2 * static_cast<const float*>(got[1])[i])
          return "it does not double";
      return {};
    };
  Tuner tuner;
  runtime::WorkerOptions worker;
  int sent = 0;
  worker.journal = [&](pid_t process, std::string_view step) {
    if (step == "outputs" && ++sent == 1) ::kill(process, SIGKILL);
  };
  const TuneResult result = tuner.tune(kernel, worker, trouble::tuning(kPatience));
  CHECK(sent >= 2);
  CHECK(result.count(CandidateStatus::measured) == 2);
  CHECK(result.winner().config == Values{trouble::fast});
}

TEST_CASE("a budget that ends cuts a candidate off, and does not blame it", "[host][isolation]") {
  Tuner tuner;
  runtime::WorkerOptions worker;
  worker.most_seconds = 2;
  const TuneResult result = tuner.tune(
      trouble::kernel({trouble::slow, trouble::fast, trouble::loops}), worker, trouble::tuning(60));
  CHECK(result.count(CandidateStatus::measured) == 2);
  CHECK_FALSE(was_tried(result, trouble::loops));
  CHECK(trouble::of(result, trouble::loops).cut_seconds == 2);
}

TEST_CASE("a candidate that hangs takes one budget, not that of each later tuning",
          "[host][isolation]") {
  constexpr double kBudget = 7;
  const std::vector<std::int64_t> modes{trouble::slow, trouble::fast, trouble::loops, trouble::more,
                                        kPlain};
  const KernelDefinition kernel = trouble::kernel(modes);
  const TemporaryDirectory folder;
  RuntimeOptions o;
  o.device = "host";
  o.store.directory = folder.path();
  o.isolation = Isolation::always;
  o.compile_processes = 0;
  o.compile_threads = 1;
  {
    // No budget is spent on compiling, however busy the machine is.
    const Runtime host(o);
    const auto handle = host.tuned(kernel);
    Manifest all;
    for (const std::int64_t mode : modes)
      all.wanted.push_back({kernel.name,
                            {},
                            host.device().target.arch,
                            {{"n", trouble::kProblem}},
                            {{"mode", mode}}});
    const PrepareReport report = host.prepare(all, {.work = PrepareWork::compile});
    REQUIRE(static_cast<std::size_t>(report.compiled) == modes.size());
  }
  const auto tune = [&](double seconds, double candidate_seconds) {
    TuneOptions options = trouble::tuning(candidate_seconds);
    options.max_seconds = seconds;
    return Runtime(o).tuned(kernel).tune({trouble::kProblem}, options);
  };
  const TuneResult first = tune(kBudget, 0);
  CHECK(first.compiled == 0);
  CHECK(trouble::of(first, trouble::loops).cut_seconds == kBudget);
  CHECK_FALSE(was_tried(first, trouble::loops));
  CHECK_FALSE(was_tried(first, kPlain));
  const TuneResult second = tune(kBudget, 0);
  CHECK(was_tried(second, trouble::more));
  CHECK(was_tried(second, kPlain));
  CHECK_FALSE(was_tried(second, trouble::loops));
  // Without a budget its own deadline ends it.
  const TuneResult third = tune(0, 3);
  CHECK(trouble::of(third, trouble::loops).status == CandidateStatus::hung);
  CHECK(third.evaluated == 1);
  CHECK(third.complete);
}

TEST_CASE("memory that the machine lacks now is not held against a candidate that eats it",
          "[host][isolation]") {
  const KernelDefinition kernel =
      trouble::kernel({trouble::slow, trouble::fast, trouble::eats, trouble::more});
  Tuner tuner;
  runtime::WorkerOptions worker;
  worker.available = [] { return std::int64_t{500} << 20; };
  const TuneResult first = tuner.tune(kernel, worker, trouble::tuning(60));
  const Candidate& untried = trouble::of(first, trouble::eats);
  CAPTURE(untried.reason);
  CHECK(untried.status == CandidateStatus::not_tried);
  CHECK(has(untried.reason, "the machine has little to spare"));
  CHECK(first.count(CandidateStatus::measured) == 3);
  CHECK_FALSE(first.complete);
  // With all the memory that a worker may ever have, the candidate is to blame.
  runtime::TuneContext context;
  context.prior = &first;
  worker.memory = std::uint64_t{400} << 20;
  const TuneResult second = tuner.tune(kernel, worker, trouble::tuning(60), context);
  CHECK(second.evaluated == 1);
  CHECK(trouble::of(second, trouble::eats).status == CandidateStatus::out_of_memory);
  CHECK(second.complete);
}

TEST_CASE("a small problem that finds no worker leaves the candidates in theirs",
          "[host][isolation]") {
  const Removable executable;
  KernelDefinition kernel = trouble::kernel({trouble::slow, trouble::fast});
  kernel.device_reference = DeviceReference{.config = "mode=0", .problem = {{"n", 100}}};
  kernel.workload = [&, inner = kernel.workload](auto problem, Workload& w) {
    if (problem[0] == 100) std::filesystem::remove(executable.path);
    inner(problem, w);
  };
  Tuner tuner;
  runtime::WorkerOptions worker;
  worker.executable = executable.path;
  const TuneResult result = tuner.tune(kernel, worker, trouble::tuning(kPatience));
  CHECK(result.count(CandidateStatus::measured) == 2);
  const auto warned = [&](std::string_view of) {
    return std::count_if(result.warnings.begin(), result.warnings.end(),
                         [&](const std::string& text) { return has(text, of); });
  };
  CHECK(warned("the reference on the host is used, not that on the device") == 1);
  CHECK(warned("is missing") == 1);
  CHECK(warned("candidates run in this process") == 0);
}

TEST_CASE("this process's device says nothing of a worker's", "[host][isolation]") {
  struct Lost final : test::OddDevice {
    bool lost() noexcept override { return true; }
  };
  KernelDefinition kernel = trouble::kernel({trouble::slow, trouble::fast, trouble::null});
  kernel.device_reference = DeviceReference{.config = "mode=2", .problem = {{"n", 100}}};
  Tuner tuner;
  tuner.device = std::make_shared<Lost>();
  const TuneResult result = tuner.tune(kernel, {}, trouble::tuning(kPatience));
  CHECK(result.count(CandidateStatus::measured) == 2);
  CHECK(std::any_of(result.warnings.begin(), result.warnings.end(), [](const std::string& text) {
    return has(text, "the reference on the host is used, not that on the device");
  }));
}

TEST_CASE("what another candidate damages before it ends its worker is found",
          "[host][isolation]") {
  Tuner tuner;
  const TuneResult result =
      tuner.tune(trouble::kernel({trouble::slow, trouble::fast, trouble::spoils, trouble::later}),
                 {}, trouble::tuning(kPatience));
  CAPTURE(trouble::of(result, trouble::spoils).reason);
  CHECK(trouble::of(result, trouble::later).status == CandidateStatus::crashed);
  CHECK(trouble::of(result, trouble::spoils).status == CandidateStatus::wrong_result);
  CHECK(has(trouble::of(result, trouble::spoils).reason, "wrote element 0 of argument 1"));
  CHECK(result.count(CandidateStatus::measured) == 2);
}

TEST_CASE("memory that a worker lacks now leaves a candidate untried", "[host][isolation]") {
  Tuner tuner;
  Odd odd;
  SECTION("when it is verified") {
    odd.at("no_memory", "verify", 3);
    const TuneResult result =
        tuner.tune(trouble::kernel({trouble::slow, trouble::fast, trouble::more}), odd.worker,
                   trouble::tuning(kPatience));
    CHECK(result.count(CandidateStatus::measured) == 2);
    CHECK_FALSE(result.complete);
    CHECK(trouble::of(result, trouble::more).status == CandidateStatus::not_tried);
    CHECK(has(trouble::of(result, trouble::more).reason, "no memory now"));
  }
  SECTION("when it is to be timed in a new worker") {
    int timed = 0;
    odd.worker.journal = [&](pid_t process, std::string_view step) {
      if (step != "time" || ++timed > 1) return;
      odd.ask_for("no_memory");
      ::kill(process, SIGKILL);
    };
    const TuneResult result = tuner.tune(trouble::kernel({trouble::slow, trouble::fast}),
                                         odd.worker, trouble::tuning(kPatience));
    CHECK_FALSE(result.complete);
    CHECK(trouble::of(result, trouble::slow).status == CandidateStatus::not_tried);
    CHECK(trouble::of(result, trouble::fast).status == CandidateStatus::measured);
  }
}

TEST_CASE("a lost device or a hang is blamed on a candidate that was alone", "[host][isolation]") {
  const KernelDefinition kernel = trouble::kernel({trouble::slow, trouble::fast, trouble::more});
  Tuner tuner;
  Odd odd;
  SECTION("a device that is lost once") {
    odd.at("lost", "verify", 3);
    const TuneResult result = tuner.tune(kernel, odd.worker, trouble::tuning(kPatience));
    CHECK(result.count(CandidateStatus::measured) == 3);
  }
  SECTION("a device that is lost again") {
    odd.at("lost", "verify", 3, 2);
    const TuneResult result = tuner.tune(kernel, odd.worker, trouble::tuning(kPatience));
    CHECK(result.count(CandidateStatus::measured) == 2);
    CHECK(trouble::of(result, trouble::more).status == CandidateStatus::crashed);
    CHECK(has(trouble::of(result, trouble::more).reason, "lost its device: an illegal address"));
  }
  SECTION("a hang that does not come again") {
    odd.at("hangs", "verify", 3);
    const TuneResult result = tuner.tune(kernel, odd.worker, trouble::tuning(2));
    CHECK(result.count(CandidateStatus::measured) == 3);
  }
}

TEST_CASE("an output that was seen before is judged as it is", "[host][isolation]") {
  // After the crash in the first group's race the default is verified anew, in a worker that then
  // meets other outputs, and those of the default again.
  KernelDefinition kernel = trouble::kernel(
      {trouble::slow, trouble::fast, trouble::later, kPlain, trouble::wrong, trouble::more});
  kernel.check = [](auto problem, std::span<void* const> got,
                    std::span<void* const> expected) -> std::string {
    for (std::int64_t i = 0; i < problem[0]; ++i)
      if (static_cast<const float*>(got[0])[i] != static_cast<const float*>(expected[0])[i])
        return "it is not as expected";
    return {};
  };
  Tuner tuner;
  Odd odd;
  odd.ask_for("digests");
  const TuneResult result = tuner.tune(kernel, odd.worker, trouble::tuning(kPatience));
  CHECK(trouble::of(result, trouble::later).status == CandidateStatus::crashed);
  CHECK(trouble::of(result, trouble::wrong).status == CandidateStatus::wrong_result);
  CAPTURE(trouble::of(result, trouble::more).reason);
  CHECK(trouble::of(result, trouble::more).status == CandidateStatus::measured);
  CHECK(result.count(CandidateStatus::measured) == 4);
}

TEST_CASE("what a worker warns of is in the result, once", "[host][isolation]") {
  Tuner tuner;
  Odd odd;
  odd.ask_for("little_memory");
  const TuneResult result = tuner.tune(trouble::kernel({trouble::slow, trouble::fast}), odd.worker,
                                       trouble::tuning(kPatience));
  CHECK(std::count_if(result.warnings.begin(), result.warnings.end(), [](const std::string& text) {
          return has(text, "copies of the arrays");
        }) == 1);
}
