// Launches on a sealed runtime: what they get, what they may not do, what is said of them.
#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include <sys/inotify.h>
#include <unistd.h>

#include "findings.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/allocations.hpp"
#include "unit/runtime/opened_files.hpp"
#include "unit/runtime/prepare/prepare_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using enum PreparedState;

namespace {

/// Counts opened files and folders, of a folder and those in it.
class OpenCounter {
 public:
  explicit OpenCounter(const fs::path& folder) : queue_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    REQUIRE(queue_ >= 0);
    watch(folder);
    for (const auto& item : fs::recursive_directory_iterator(folder))
      if (item.is_directory()) watch(item.path());
  }
  ~OpenCounter() { ::close(queue_); }
  OpenCounter(const OpenCounter&) = delete;
  OpenCounter& operator=(const OpenCounter&) = delete;

  /// Since the last call.
  std::size_t count() const {
    std::size_t opened = 0;
    alignas(inotify_event) std::array<char, 4096> bytes;
    for (ssize_t got; (got = ::read(queue_, bytes.data(), bytes.size())) > 0;)
      for (ssize_t at = 0; at < got;) {
        const auto* event = reinterpret_cast<const inotify_event*>(bytes.data() + at);
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
        ++opened;
      }
    return opened;
  }

 private:
  void watch(const fs::path& folder) const {
    REQUIRE(::inotify_add_watch(queue_, folder.c_str(), IN_OPEN | IN_CREATE) >= 0);
  }
  int queue_;
};

std::vector<std::int64_t> ns_of(const Manifest& manifest) {
  std::vector<std::int64_t> ns;
  for (const WantedInstance& w : manifest.wanted) {
    CHECK(w.config.empty());
    ns.push_back(w.problem.at("n"));
  }
  std::ranges::sort(ns);
  return ns;
}

}  // namespace

TEST_CASE("a sealed runtime serves random problems from many threads and touches nothing",
          "[runtime][seal][threads]") {
  constexpr int kThreads = 8, kLaunches = 12500, kProblems = 64, kPrepared = 24, kSmallest = 16;
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  std::vector<int> prepared, others;
  for (int i = 0; i < kProblems; ++i) (i < kPrepared ? prepared : others).push_back(kSmallest + i);
  REQUIRE(runtime.prepare(problems(prepared), {.work = PrepareWork::compile}).complete());
  runtime.seal();
  CHECK(runtime.sealed());

  const OpenCounter files(directory.path());
  (void)runtime.statistics();
  CHECK(files.count() > 0);  // the counter counts: statistics look at the folder
  const OpenedFiles anywhere;
  std::jthread([] {
    OpenedFiles::count_this_thread();
    std::ifstream("/dev/null");
  }).join();
  CHECK(anywhere.count() == 1);  // this one, too
  // What the last round did: launches of all threads, of each of the problems.
  const auto round = [&] {
    const auto before = runtime.statistics();
    (void)files.count();
    const int compiles = process.compiler->compiles, loads = process.device->loads;
    const std::size_t device_bytes = process.device->allocated;
    std::atomic<std::size_t> allocated{0}, unprepared{0};
    Findings findings;
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          OpenedFiles::count_this_thread();
          std::mt19937 random(static_cast<unsigned>(t));
          Buffers b(kSmallest + kProblems);
          void* args[] = {nullptr, nullptr, nullptr, nullptr};
          float *y = b.y.data(), *x = b.x.data();
          std::size_t mine = 0;
          const std::size_t start = allocations();
          for (int i = 0; i < kLaunches; ++i) {
            int n = kSmallest + static_cast<int>(random() % kProblems);
            args[0] = &y, args[1] = &x, args[2] = &n;
            y[n - 1] = 0;
            handle.launch({}, {n}, args);
            if (y[n - 1] != 2 * x[n - 1]) findings.check(false);
            if (n >= kSmallest + kPrepared) ++mine;
          }
          allocated += allocations() - start;
          unprepared += mine;
        });
    }
    CHECK(findings.wrong() == "");
    const std::size_t opened = files.count() + anywhere.count() - 1;
    const auto after = runtime.statistics();
    CHECK(opened == 0);
    CHECK(allocated == 0);
    CHECK(process.compiler->compiles == compiles);
    CHECK(process.device->loads == loads);
    CHECK(process.device->allocated == device_bytes);
    CHECK(process.device->timings == 0);
    CHECK(after.store.misses == before.store.misses);
    CHECK(after.store.memory_hits == before.store.memory_hits);
    CHECK(after.unprepared_refused == 0);
    const std::size_t served = after.unprepared_served - before.unprepared_served;
    WARN("sealed: " << kThreads * kLaunches << " launches from " << kThreads
                    << " threads, compiled " << process.compiler->compiles - compiles
                    << ", files opened " << opened << ", allocations " << allocated.load()
                    << ", unprepared " << served);
    return std::pair{served, unprepared.load()};
  };
  const auto [served, expected] = round();
  CHECK(served == expected);
  CHECK(served > 0);
  CHECK(ns_of(runtime.wanted()) == std::vector<std::int64_t>(others.begin(), others.end()));

  // The loop is closed: what was wanted is prepared, and nothing is unprepared any more.
  REQUIRE(runtime.prepare(runtime.wanted(), {.work = PrepareWork::compile}).complete());
  CHECK(runtime.wanted().wanted.empty());
  CHECK(round().first == 0);
  CHECK(runtime.sealed());
}

TEST_CASE("unprepared launches are served, warned of, or refused", "[runtime][seal]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  REQUIRE(runtime.prepare(problems({50})).complete());
  const int compiles = process.compiler->compiles;
  SECTION("served") {
    runtime.seal(OnUnprepared::serve);
    CHECK(launch(handle, 60));
    CHECK(launch(handle, 60));
    CHECK(launch(handle, 50));
    CHECK(process.warnings().empty());
    CHECK(runtime.statistics().unprepared_served == 2);
    CHECK(ns_of(runtime.wanted()) == std::vector<std::int64_t>{60});
  }
  SECTION("with a warning, once per problem") {
    runtime.seal(OnUnprepared::warn);
    for (const int n : {60, 60, 70}) CHECK(launch(handle, n));
    CHECK(process.warnings() ==
          std::vector<std::string>{"doubling n=60: it was not prepared, so a=2,b=0 is launched",
                                   "doubling n=70: it was not prepared, so a=2,b=0 is launched"});
  }
  SECTION("refused") {
    runtime.seal(OnUnprepared::error);
    try {
      launch(handle, 60);
      FAIL("it was launched");
    } catch (const UnpreparedError& error) {
      CHECK(error.wanted() == wanted(60));
      CHECK_THAT(error.what(), Catch::StartsWith("kernel doubling for n=60: it was not prepared"));
    }
    CHECK_THROWS_AS(handle.at({60}), EnvironmentError);
    CHECK(launch(handle, 50));
    CHECK(runtime.statistics().unprepared_refused == 2);
    CHECK(runtime.statistics().unprepared_served == 0);
    CHECK(ns_of(runtime.wanted()) == std::vector<std::int64_t>{60});
  }
  SECTION("nothing of the kernel is loaded") {
    const auto late = runtime.tuned(doubling());
    runtime.seal();
    const auto later = runtime.tuned(doubling());
    for (const auto& other : {late, later}) CHECK_THROWS_AS(launch(other, 60), UnpreparedError);
    CHECK(runtime.statistics().unprepared_refused == 2);
  }
  SECTION("open again") {
    runtime.seal(OnUnprepared::error);
    CHECK(runtime.sealed());
    runtime.unseal();
    CHECK_FALSE(runtime.sealed());
    CHECK(launch(handle, 60));
    CHECK(runtime.statistics().tuned == 2);
    return;
  }
  SECTION("explicit calls work") {
    runtime.seal(OnUnprepared::error);
    CHECK_FALSE(handle.prepare({60}));
    CHECK(launch(handle, 60));
    CHECK(handle.tune({70}).winner().status == CandidateStatus::measured);
    CHECK(launch(handle, 70));
    CHECK(runtime.prepare(problems({80})).complete());
    CHECK(launch(handle, 80));
    CHECK(runtime.statistics().unprepared_refused == 0);
    return;
  }
  CHECK(process.compiler->compiles == compiles);
}

TEST_CASE("verifying is no launch: a sealed runtime makes what it needs", "[runtime][seal]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  runtime.seal(OnUnprepared::error);
  CHECK(handle.verify({60}).right);
  CHECK(runtime.wanted().wanted.empty());
}

TEST_CASE("what is wanted outlives the handle, and is bounded", "[runtime][seal]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  std::vector<WantedInstance> launched{wanted(60), wanted(70)};
  launched[0].launches = 2, launched[1].launches = 1;
  {
    const auto handle = runtime.tuned(doubling());
    CHECK(runtime.prepare(problems({50}), {.work = PrepareWork::compile}).complete());
    runtime.seal();
    for (const int n : {60, 70, 60}) CHECK(launch(handle, n));
    CHECK(runtime.wanted().wanted == launched);
  }
  CHECK(runtime.wanted().wanted == launched);
  CHECK(runtime.metrics().wanted_cut_total == 0);
  const auto handle = runtime.tuned(doubling());
  CHECK(runtime.prepare(problems({60}), {.work = PrepareWork::compile}).complete());
  for (int n = 100; n < 3100; ++n) CHECK(launch(handle, n));
  CHECK(runtime.wanted().wanted.size() == 2 + 1024);
  CHECK(runtime.metrics().wanted_cut_total == 3000 - 1024);
  CHECK(runtime.statistics().unprepared_served == 3 + 3000);
}

TEST_CASE("what serves an unprepared problem is allowed for it", "[runtime][seal]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  KernelDefinition kernel = doubling();
  SECTION("constraints") {
    kernel.space.where("n is a multiple of a", [](auto config, auto problem, const auto&) {
      return problem[0] % config[0] == 0;
    });
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    REQUIRE(runtime.prepare(problems({64})).complete());  // 8 is in use, 2 is the default
    REQUIRE(handle.config({64}) == Values{8, 0});
    runtime.seal();
    CHECK(launch(handle, 60));
    CHECK(handle.config({60}) == Values{2, 0});
    CHECK_THROWS_AS(launch(handle, 61), UnpreparedError);
  }
  SECTION("shared memory") {
    kernel.launch = [](std::span<const std::int64_t> c, std::span<const std::int64_t> p) {
      const auto block = static_cast<unsigned>(c[0]);
      return Launch{{1}, {block}, static_cast<unsigned>(p[0])};
    };
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    REQUIRE(runtime.prepare(problems({64, 128}), {.work = PrepareWork::compile}).complete());
    runtime.seal();
    CHECK(launch(handle, 100));
    CHECK_THROWS_AS(launch(handle, 129), UnpreparedError);  // it was loaded for 128 bytes
  }
  SECTION("a cooperative grid") {
    DeviceLimits& limits = process.device->info().limits;
    limits.cooperative = true;
    limits.multiprocessors = 4;
    limits.max_blocks_per_multiprocessor = 1;
    kernel.launch = [](std::span<const std::int64_t> c, std::span<const std::int64_t> p) {
      return Launch{
          .grid = {static_cast<unsigned>(p[0] / c[0])}, .block = {32}, .cooperative = true};
    };
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    REQUIRE(runtime.prepare(problems({8}), {.work = PrepareWork::compile}).complete());
    runtime.seal();
    CHECK(launch(handle, 6));
    CHECK_THROWS_AS(launch(handle, 12), UnpreparedError);  // 6 blocks, but 4 fit
  }
  SECTION("the default first, then what most problems use") {
    process.of(8).seconds = 1e-3;
    kernel = doubling({1, 2, 4, 8}, 2);
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    REQUIRE(runtime.prepare(problems({64}), {.work = PrepareWork::compile}).complete());
    runtime.seal();
    CHECK(handle.config({60}) == Values{2, 0});
  }
}

TEST_CASE("a problem of which another thread makes the launchable gets what stands in",
          "[runtime][seal][threads]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  std::atomic<bool> measuring{false}, hold{true};
  process.device->on_launch = [&](const std::string&, void** args) {
    if (*static_cast<int*>(args[2]) != 50) return;
    measuring = true;
    while (hold) std::this_thread::yield();
  };
  Findings findings;
  std::jthread tuner([&] { findings.check(launch(handle, 50)); });
  while (!measuring) std::this_thread::yield();
  const PrepareReport report = runtime.prepare(problems({50}), {.work = PrepareWork::compile});
  CHECK(states(report) == States{on_default});
  CHECK_THAT(report.problems[0].why, Catch::Contains("another thread"));
  runtime.seal();
  CHECK(handle.config({50}) == Values{2, 0});
  CHECK(runtime.statistics().unprepared_served == 1);
  hold = false;
  tuner.join();
  CHECK(findings.wrong() == "");
  CHECK(launch(handle, 50));  // what that thread found is in use
  CHECK(runtime.statistics().unprepared_served == 1);
}

TEST_CASE("sealing, launching and making handles at the same time", "[runtime][seal][threads]") {
  Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  REQUIRE(runtime.prepare(problems({50})).complete());
  std::atomic<bool> end{false};
  Findings findings;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; !end; ++i) {
          findings.check(launch(handle, 51 + (i * 3 + t) % 200));
          const auto other = runtime.tuned(doubling());
          try {
            findings.check(launch(other, 50));
          } catch (const UnpreparedError&) {
          }
        }
      });
    for (int i = 0; i < 200; ++i) {
      runtime.seal(i % 2 == 0 ? OnUnprepared::serve : OnUnprepared::warn);
      (void)runtime.wanted();
      if (i % 3 == 0) runtime.unseal();
    }
    end = true;
  }
  CHECK(findings.wrong() == "");
}
