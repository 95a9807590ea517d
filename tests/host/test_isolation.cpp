// Candidates that do what no kernel may, on the host target: each costs a worker, and nothing else.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "isolated_tuner.hpp"
#include "temporary_directory.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using kiln::test::patient;
using kiln::test::TemporaryDirectory;
using trouble::has;
using trouble::kProblem;
using trouble::Tuner;

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kDeadline = 2;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Tally {
  int tried = 0, lost = 0, hangs = 0;
  ~Tally() {
    std::printf("candidate faults tried %d, processes lost %d, hangs %d\n", tried, lost, hangs);
  }
} tally;

TuneOptions tuning() { return trouble::tuning(kDeadline); }

RuntimeOptions options(const std::filesystem::path& store, Isolation isolation) {
  RuntimeOptions o;
  o.device = "host";
  o.store.directory = store;
  o.isolation = isolation;
  o.compile_processes = 0;
  return o;
}

TuneResult tune(const std::filesystem::path& store, const KernelDefinition& kernel,
                Isolation isolation = Isolation::always) {
  const Runtime runtime(options(store, isolation));
  return runtime.tuned(kernel).tune({kProblem}, tuning());
}

struct Expected {
  std::int64_t mode;
  CandidateStatus status;
  std::string reason;
};

const std::vector<Expected> kExpected = {
    {trouble::null, CandidateStatus::crashed, "SIGSEGV"},
    {trouble::wild, CandidateStatus::crashed, "SIGSEGV"},
    {trouble::divide, CandidateStatus::crashed, "SIGFPE"},
    {trouble::aborts, CandidateStatus::crashed, "SIGABRT"},
    {trouble::exits, CandidateStatus::crashed, "ended with exit code 0"},
    {trouble::deep, CandidateStatus::crashed, "SIGSEGV"},
    {trouble::loops, CandidateStatus::hung, "it did not end within 2 s while it was verified"},
    {trouble::closes, CandidateStatus::crashed, "exit code"},
    {trouble::writes, CandidateStatus::crashed, "not a message of Kiln"},
    {trouble::later, CandidateStatus::crashed, "while it was timed"},
    {trouble::wrong, CandidateStatus::wrong_result, "element"},
};

}  // namespace

TEST_CASE("a candidate that faults costs its worker alone", "[host][isolation]") {
  const TemporaryDirectory folder;
  std::ptrdiff_t descriptors = 0;  // once the compiler and the thread pool have their own
  for (const Expected& expected : kExpected) {
    CAPTURE(expected.mode);
    const auto begin = Clock::now();
    const TuneResult result = tune(folder.path() / std::to_string(expected.mode),
                                   trouble::kernel({trouble::slow, trouble::fast, expected.mode}));
    const double seconds = seconds_since(begin);
    ++tally.tried;
    const Candidate& culprit = trouble::of(result, expected.mode);
    CAPTURE(culprit.reason);
    CHECK(culprit.status == expected.status);
    CHECK(has(culprit.reason, expected.reason));
    CHECK(result.winner().config == Values{trouble::fast});
    CHECK(result.default_candidate().status == CandidateStatus::measured);
    CHECK(result.complete);
    // Its trials end by the deadline, of which a hang has a second one: it is blamed if it was
    // alone in its worker. Compiling and the finals take their time besides.
    const int deadlines = expected.status == CandidateStatus::hung ? 2 : 1;
    double longest = 0;
    for (const TraceSpan& span : result.spans)
      if (span.name != "compile" && span.detail == "mode=" + std::to_string(expected.mode))
        longest = std::max(longest, span.seconds);
    CAPTURE(longest);
    CHECK(longest > 0);
    const bool in_time =
        longest < patient(deadlines * kDeadline + 2) && seconds < patient(kDeadline + 2 + 15);
    CHECK(in_time);
    tally.hangs += !in_time;
    CHECK(trouble::children().empty());
    if (descriptors == 0) descriptors = trouble::open_descriptors();
    CHECK(trouble::open_descriptors() == descriptors);
  }
}

TEST_CASE("a candidate that eats memory is ended in time", "[host][isolation]") {
  Tuner tuner;
  runtime::WorkerOptions worker;
  worker.memory = std::uint64_t{400} << 20;
  TuneOptions options = tuning();
  options.candidate_seconds = 60;
  const TuneResult result =
      tuner.tune(trouble::kernel({trouble::slow, trouble::fast, trouble::eats}), worker, options);
  ++tally.tried;
  const Candidate& culprit = trouble::of(result, trouble::eats);
  CAPTURE(culprit.reason);
  CHECK(culprit.status == CandidateStatus::out_of_memory);
  CHECK(has(culprit.reason, "MiB of memory"));
  CHECK(result.winner().config == Values{trouble::fast});
}

TEST_CASE("all at once, and what is on record is not tried again", "[host][isolation]") {
  const TemporaryDirectory folder;
  std::vector<std::int64_t> all{trouble::slow, trouble::fast};
  for (const Expected& expected : kExpected) all.push_back(expected.mode);
  const TuneResult first = tune(folder.path(), trouble::kernel(all));
  CHECK(first.winner().config == Values{trouble::fast});
  for (const Expected& expected : kExpected) {
    ++tally.tried;
    CAPTURE(expected.mode, trouble::of(first, expected.mode).reason);
    CHECK(trouble::of(first, expected.mode).status == expected.status);
  }
  CHECK(first.count(CandidateStatus::measured) == 2);
  // Another space is another search, which tries nothing twice.
  all.push_back(trouble::more);
  const auto begin = Clock::now();
  const TuneResult second = tune(folder.path(), trouble::kernel(all), Isolation::after_fault);
  CHECK(second.evaluated == 1);
  for (const TraceSpan& span : second.spans)
    for (const Expected& expected : kExpected)
      CHECK_FALSE(
          (span.name == "verify" && span.detail == "mode=" + std::to_string(expected.mode)));
  CHECK(second.winner().config == Values{trouble::fast});
  CHECK(trouble::of(second, trouble::loops).status == CandidateStatus::hung);
  CHECK(trouble::of(second, trouble::loops).reason == trouble::of(first, trouble::loops).reason);
  CHECK(seconds_since(begin) < patient(15));
  const TuneResult third = tune(folder.path(), trouble::kernel(all));
  CHECK(third.from_store);
}

TEST_CASE("a fault on one rank sends candidates to workers on all of them", "[host][isolation]") {
  const auto strategy = GENERATE(RankStrategy::leader, RankStrategy::shard);
  const TemporaryDirectory stores;
  const auto tune_on_ranks = [&](const std::vector<std::int64_t>& modes, Isolation isolation) {
    auto ends = thread_communicators(2);
    std::vector<TuneResult> results(2);
    std::vector<std::string> failed(2);
    std::vector<std::thread> ranks;
    for (std::size_t r : {0U, 1U})
      ranks.emplace_back([&, r, end = std::shared_ptr(std::move(ends[r]))]() mutable {
        try {
          TuneOptions tuning = ::tuning();
          tuning.ranks = std::move(end);
          tuning.together.strategy = strategy;
          const Runtime runtime(options(stores.path() / std::to_string(r), isolation));
          results[r] = runtime.tuned(trouble::kernel(modes)).tune({kProblem}, tuning);
        } catch (const std::exception& error) {
          failed[r] = error.what();
        }
      });
    for (std::thread& rank : ranks) rank.join();
    CHECK(failed == std::vector<std::string>(2));
    return results;
  };
  const auto faults = [](const TuneResult& result) {
    return result.count(CandidateStatus::crashed);
  };
  const auto first =
      tune_on_ranks({trouble::slow, trouble::fast, trouble::null}, Isolation::always);
  REQUIRE(faults(first[0]) + faults(first[1]) == 1);
  // The rank that has this to try is another one than before, or has no fault of its own on record.
  const auto second =
      tune_on_ranks({trouble::slow, trouble::divide, trouble::aborts, trouble::fast, trouble::null},
                    Isolation::after_fault);
  tally.tried += 3;
  CHECK(faults(second[0]) + faults(second[1]) >= 3);
  for (const TuneResult& result : second) CHECK(result.winner().config == Values{trouble::fast});
}

TEST_CASE("metrics tell why workers were started again", "[host][isolation]") {
  const TemporaryDirectory folder;
  const Runtime runtime(options(folder.path(), Isolation::always));
  TuneOptions several = tuning();
  several.seed = 3;
  const TuneResult result =
      runtime.tuned(trouble::kernel({trouble::slow, trouble::null, trouble::loops, trouble::fast}))
          .tune({kProblem}, several);
  tally.tried += 2;
  CHECK(trouble::of(result, trouble::null).status == CandidateStatus::crashed);
  CHECK(trouble::of(result, trouble::loops).status == CandidateStatus::hung);
  const MetricSeries restarts = runtime.metrics().worker_restarts_total;
  // The culprit is tried again, alone.
  CHECK(restarts.at({"fault"}) >= 1);
  CHECK(restarts.at({"late"}) >= 1);
  CHECK(restarts.at({"killed"}) + restarts.at({"stopped"}) + restarts.at({"memory"}) +
            restarts.at({"device"}) + restarts.at({"peer"}) ==
        0);
}

TEST_CASE("a worker takes no memory that the program reserves", "[host][isolation]") {
  const TemporaryDirectory folder;
  RuntimeOptions o = options(folder.path(), Isolation::always);
  o.reserve_bytes = std::uint64_t{1} << 62;
  const Runtime runtime(o);
  std::string why;
  try {
    runtime.tuned(trouble::kernel({trouble::slow, trouble::fast})).tune({kProblem}, tuning());
  } catch (const EnvironmentError& error) {
    why = error.what();
  }
  CHECK(has(why, "are reserved"));
}

TEST_CASE("a launch whose tuning no worker is left for runs untuned", "[host][isolation]") {
  const TemporaryDirectory folder;
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  const auto allow = [&](rlim_t count) {
    const rlimit some{count, files.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &some);
  };
  RuntimeOptions o = options(folder.path(), Isolation::always);
  bool warned = false;
  o.log = [&](LogLevel, std::string_view said) {
    const std::string text(said);
    if (!has(text, "no worker can be started any more")) return;
    warned = has(text, "the untuned config is used");
    allow(files.rlim_cur);
  };
  KernelDefinition kernel = trouble::kernel({trouble::slow, trouble::fast});
  kernel.check = [&](auto, auto, auto) -> std::string {
    for (const pid_t worker : trouble::children()) ::kill(worker, SIGKILL);
    allow(3);  // a new one needs descriptors
    return {};
  };
  std::vector<float> in(kProblem, 1), out(kProblem);
  const Runtime runtime(o);
  runtime.tuned(kernel)({}, Values{kProblem}, out.data(), static_cast<const float*>(in.data()),
                        int(kProblem));
  allow(files.rlim_cur);
  CHECK(warned);
  CHECK(out.front() == 2);
  CHECK(out.back() == 2);
}

TEST_CASE("a worker that others kill or stop is replaced, and no candidate is blamed",
          "[host][isolation]") {
  const KernelDefinition kernel = trouble::kernel({trouble::slow, trouble::fast});
  Tuner tuner;
  TuneOptions options = tuning();
  // What a tuning asks for, by kind.
  std::vector<std::string> lines;
  runtime::WorkerOptions worker;
  worker.journal = [&](pid_t, std::string_view step) { lines.emplace_back(step); };
  tuner.tune(kernel, worker, options);
  std::vector<std::size_t> chosen;
  std::map<std::string, int> seen;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const int count = ++seen[lines[i]];
    // The next tuning may be much shorter, if the machine is quieter then.
    if (count == 1 || (i % 16 == 0 && i < 64)) chosen.push_back(i);
  }
  CHECK(seen.count("load") == 1);
  CHECK(seen.count("verify") == 1);
  CHECK(seen.count("time") == 1);
  CHECK(seen.count("keep_cold") == 1);
  CHECK(seen.count("repair") == 1);
  std::set<std::string> stopped;
  for (const int signal : {SIGKILL, SIGSTOP})
    for (const std::size_t line : chosen) {
      const bool launches =
          lines[line] == "verify" || lines[line] == "time" || lines[line] == "load";
      // Requests that launch nothing may take ten seconds at least, so one is enough. Each other
      // kind is tried once.
      if (signal == SIGSTOP &&
          ((!launches && lines[line] != "keep_cold") || !stopped.insert(lines[line]).second))
        continue;
      CAPTURE(signal, line, lines[line]);
      std::size_t at = 0;
      bool struck = false;
      pid_t victim = 0;
      Clock::time_point since;
      double gone = 0;  // seconds until another worker was asked for something
      worker.journal = [&](pid_t process, std::string_view) {
        if (struck && process != victim && gone == 0) gone = seconds_since(since);
        if (at++ != line || struck) return;
        victim = process;
        since = Clock::now();
        struck = ::kill(process, signal) == 0;
      };
      const TuneResult result = tuner.tune(kernel, worker, options);
      ++tally.tried;
      CHECK(struck);
      CHECK(result.count(CandidateStatus::measured) == 2);
      CHECK(result.winner().config == Values{trouble::fast});
      const double deadline = signal == SIGKILL ? 0 : launches ? kDeadline : 10;
      CAPTURE(gone);
      const bool in_time = gone > 0 && gone < deadline + patient(4);
      CHECK(in_time);
      tally.hangs += !in_time;
      CHECK(trouble::children().empty());
    }
}

TEST_CASE("where no worker can be used, candidates run in this process, with a warning",
          "[host][isolation]") {
  const TemporaryDirectory folder;
  const KernelDefinition kernel = trouble::kernel({trouble::slow, trouble::fast});
  Tuner tuner;
  const auto warned = [&](const std::filesystem::path& executable) {
    runtime::WorkerOptions worker;
    worker.executable = executable;
    const TuneResult result = tuner.tune(kernel, worker, tuning());
    CHECK(result.winner().config == Values{trouble::fast});
    return result.warnings.empty() ? std::string() : result.warnings.front();
  };
  CHECK(has(warned(folder.path() / "none"), "none is missing"));
  // What starts, and is no worker, may be one the next time: nothing runs in this process for it.
  const auto script = [&](const char* name, const std::string& text) {
    const auto path = folder.path() / name;
    test::write_text(path, "#!/bin/sh\n" + text + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  };
  CHECK_THROWS_WITH(warned(script("ends", "echo no library >&2; exit 127")),
                    Catch::Contains("exit code 127"));
  CHECK_THROWS_WITH(warned(script("talks", "echo hello >&0; sleep 9")),
                    Catch::Contains("not a message of Kiln"));
}

/// Started by the case below, as a program of its own.
TEST_CASE("a program that tunes what would end it", "[.program]") {
  const std::string how = std::getenv("KILN_TEST_ISOLATION");
  const std::int64_t culprit = std::atoi(std::getenv("KILN_TEST_CULPRIT"));
  tune(std::getenv("KILN_TEST_STORE"), trouble::kernel({trouble::slow, trouble::fast, culprit}),
       how == "always" ? Isolation::always : Isolation::after_fault);
}

namespace {

/// Starts that program.
pid_t start(const std::filesystem::path& store, const char* isolation, std::int64_t culprit) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").string();
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("KILN_TEST_STORE", store.c_str(), 1);
    ::setenv("KILN_TEST_ISOLATION", isolation, 1);
    ::setenv("KILN_TEST_CULPRIT", std::to_string(culprit).c_str(), 1);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, 1);
    ::dup2(nowhere, 2);
    ::execl(program.c_str(), program.c_str(), "[.program]", nullptr);
    ::_exit(126);
  }
  return child;
}

/// Whether that program, on this store, ends well.
bool lives(const std::filesystem::path& store, const char* isolation) {
  const pid_t child = start(store, isolation, trouble::null);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool within(double seconds, const std::function<bool()>& condition) {
  const auto begin = Clock::now();
  while (!condition()) {
    if (seconds_since(begin) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace

TEST_CASE("after a process died over a problem, the next one tunes it in a worker",
          "[host][isolation]") {
  const TemporaryDirectory folder;
  CHECK_FALSE(lives(folder.path() / "here", "after_fault"));
  const bool isolated = lives(folder.path() / "there", "always");
  CHECK(isolated);
  tally.lost += !isolated;
  const KernelDefinition kernel =
      trouble::kernel({trouble::slow, trouble::fast, trouble::null, trouble::divide});
  const TuneResult result = tune(folder.path() / "here", kernel, Isolation::after_fault);
  ++tally.tried;
  CHECK(trouble::of(result, trouble::null).status == CandidateStatus::crashed);
  CHECK(trouble::of(result, trouble::divide).status == CandidateStatus::crashed);
  CHECK(result.winner().config == Values{trouble::fast});
}

TEST_CASE("the candidate that a process died over is not forgotten before it was met again",
          "[host][isolation]") {
  const TemporaryDirectory folder;
  const auto store = folder.path() / "store";
  REQUIRE_FALSE(lives(store, "after_fault"));
  const KernelDefinition kernel = trouble::kernel({trouble::slow, trouble::fast, trouble::null});
  TuneOptions first = tuning();
  SECTION("by a search that ends before") {
    first.max_evaluations = 1;
    const Runtime runtime(options(store, Isolation::after_fault));
    const TuneResult result = runtime.tuned(kernel).tune({kProblem}, first);
    CHECK(result.count(CandidateStatus::measured) == 1);
    CHECK(result.count(CandidateStatus::crashed) == 0);
    CHECK(lives(store, "after_fault"));
    CHECK(tune(store, kernel).from_store);
  }
  SECTION("by a search without a result") {
    const Runtime runtime(options(store, Isolation::after_fault));
    const DynamicTuned tuned = runtime.tuned(kernel);
    std::stop_source stop;
    stop.request_stop();
    first.stop = stop.get_token();
    CHECK(tuned.tune({kProblem}, first).count(CandidateStatus::measured) == 0);
    const TuneResult result = tuned.tune({kProblem}, tuning());
    CHECK(trouble::of(result, trouble::null).status == CandidateStatus::crashed);
    CHECK(result.winner().config == Values{trouble::fast});
  }
  ++tally.tried;
}

TEST_CASE("a worker goes with the program that is killed", "[host][isolation]") {
  const TemporaryDirectory folder;
  const pid_t program = start(folder.path(), "always", trouble::loops);
  std::vector<pid_t> workers;
  const bool started = within(30, [&] {
    workers = trouble::children(program);
    return !workers.empty();
  });
  // In the middle of a launch, as likely as not in the endless one.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  workers = trouble::children(program);
  ::kill(program, SIGKILL);
  ::waitpid(program, nullptr, 0);
  CHECK(started);
  for (const pid_t worker : workers)
    CHECK(within(10, [&] { return ::kill(worker, 0) != 0 || trouble::is_zombie(worker); }));
  ++tally.tried;
}
