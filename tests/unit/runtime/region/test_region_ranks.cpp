#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "kiln/communicators.hpp"
#include "region_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Outcome = RankReport::Outcome;

/// Ranks as threads, each with a device and a store of its own.
struct Job {
  explicit Job(int size) {
    for (int r = 0; r < size; ++r) {
      directories.push_back(std::make_unique<Directory>());
      processes.push_back(std::make_unique<RegionProcess>(directories.back()->path()));
      options.emplace_back();
    }
    connect();
  }

  void connect() {
    auto ends = thread_communicators(static_cast<int>(processes.size()));
    for (std::size_t r = 0; r < options.size(); ++r) {
      options[r].ranks = std::move(ends[r]);
      options[r].together.first_seconds = options[r].together.step_seconds = 20;
      options[r].together.tune_seconds = 20;
    }
  }

  /// `step` on every rank; where it throws, the text is kept.
  using Step = std::function<void(std::size_t rank, Region&, DynamicTuned& first,
                                  DynamicTuned& second, float* y)>;
  void run(const Step& step) {
    const std::size_t size = processes.size();
    results.assign(size, {});
    thrown.assign(size, "");
    runs.assign(size, 0);
    in_use.assign(size, {});
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < size; ++r)
      threads.emplace_back([&, r] {
        const Runtime runtime = processes[r]->runtime();
        const auto kernel = [&](const char* name) {
          KernelDefinition k = counting(name);
          if (cost)
            k.cost = [&, r](auto, auto, const DeviceLimits&) {
              cost(r);
              return 1.0;
            };
          return k;
        };
        DynamicTuned first = runtime.tuned(kernel("first"));
        DynamicTuned second = runtime.tuned(kernel("second"));
        std::vector<float> y(64);
        try {
          results[r] = tune_region(
              runtime,
              [&](Region& region) {
                ++runs[r];
                step(r, region, first, second, y.data());
              },
              options[r]);
        } catch (const std::exception& error) {
          thrown[r] = error.what();
        }
        for (const DynamicTuned* handle : {&first, &second}) try {
            in_use[r].push_back(handle->config({64}));
          } catch (const UserError&) {  // not one of the region's: it would have to be tuned alone
            in_use[r].push_back({2, 0});
          }
      });
    threads.clear();
  }
  void run() { run(both); }

  static void both(std::size_t, Region& region, DynamicTuned& first, DynamicTuned& second,
                   float* y) {
    region(first, {}, {64}, y, 64);
    region(second, {}, {64}, y, 64);
  }

  RegionProcess& operator[](std::size_t r) { return *processes[r]; }

  void check_plan(std::int64_t first, std::int64_t second) const {
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK(thrown[r] == "");
      CHECK(results[r].agreed.why == "");
      CHECK(results[r].tuned());
      CHECK(results[r].agreed.rank == static_cast<int>(r));
      CHECK(results[r].agreed.plan_digest == results[0].agreed.plan_digest);
      REQUIRE(results[r].sites.size() == 2);
      CHECK(chosen(results[r], 0) == first);
      CHECK(chosen(results[r], 1) == second);
      CHECK(in_use[r] == std::vector<Values>{{first, 0}, {second, 0}});
      CHECK(runs[r] == runs[0]);
    }
  }
  void check_defaults(const std::string& why) const {
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK(in_use[r] == std::vector<Values>{{2, 0}, {2, 0}});
      if (!thrown[r].empty()) continue;
      CHECK_FALSE(results[r].tuned());
      CHECK_THAT(results[r].agreed.why, Catch::Contains(why));
    }
  }

  std::vector<std::unique_ptr<Directory>> directories;
  std::vector<std::unique_ptr<RegionProcess>> processes;
  std::vector<RegionOptions> options;
  std::vector<RegionResult> results;
  std::vector<std::string> thrown;
  std::vector<int> runs;
  std::vector<std::vector<Values>> in_use;
  std::function<void(std::size_t rank)> cost;  ///< what the kernels' cost functions do first
};

/// An engine's own, with something else to do at its first reduction, such as to throw.
class Throwing : public Communicator {
 public:
  Throwing(std::shared_ptr<Communicator> base, std::function<void()> thrower)
      : base_(std::move(base)), thrower_(std::move(thrower)) {}
  int rank() const noexcept override { return base_->rank(); }
  int size() const noexcept override { return base_->size(); }
  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline d) override {
    return base_->gather(mine, all, d);
  }
  Failure reduce(std::span<float> values, Reduction op, Deadline d) override {
    if (!std::exchange(thrown_, true)) thrower_();
    return base_->reduce(values, op, d);
  }
  Failure broadcast(std::span<std::byte> bytes, int root, Deadline d) override {
    return base_->broadcast(bytes, root, d);
  }
  void abort(const RankFailure& why) noexcept override { base_->abort(why); }
  bool settles() const noexcept override { return base_->settles(); }
  std::optional<bool> settle(const Digest& question, bool proposal, Deadline d) override {
    return base_->settle(question, proposal, d);
  }
  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline d) override {
    return base_->split(group, part, d);
  }

 private:
  std::shared_ptr<Communicator> base_;
  std::function<void()> thrower_;
  bool thrown_ = false;
};

}  // namespace

TEST_CASE("ranks choose what is best on the slowest, in the same runs",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(3);
  for (std::size_t r = 0; r < 3; ++r) {
    job[r].kernel("first", 4).seconds = r == 1 ? 2e-3 : 0.1e-3;
    job[r].kernel("first", 8).seconds = 0.5e-3;
    job[r].kernel("second", 1).seconds = 0.5e-3;
  }
  job.run();
  job.check_plan(8, 1);
  for (std::size_t r = 0; r < 3; ++r) {
    // What ran is the same everywhere, launch by launch.
    CHECK(job[r].launched == job[0].launched);
    CHECK(candidate(job.results[r], 0, 4).seconds == Approx(2e-3));
  }
  SECTION("and again from their stores, in one run") {
    job.connect();
    job.run();
    job.check_plan(8, 1);
    CHECK(job.runs[0] == 1);
    CHECK(job.results[2].sites[0].tuned.from_store);
  }
  SECTION("one that has lost its store gets the others' choice") {
    job.directories[1] = std::make_unique<Directory>();
    const auto script = job[1].script;
    job.processes[1] = std::make_unique<RegionProcess>(job.directories[1]->path());
    for (std::size_t r = 0; r < 3; ++r) job[r].launched.clear();
    job.connect();
    job.run();
    job.check_plan(8, 1);
    CHECK(job.runs[0] == 1);
    // The first run was made before anything was agreed on.
    const std::vector<std::string> defaults{entry("first", 2), entry("second", 2)};
    for (std::size_t r = 0; r < 3; ++r) CHECK(job[r].launched == defaults);
  }
}

TEST_CASE("a candidate that one rank's record calls dangerous is tried by none",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].kernel("second", 1).seconds = 0.5e-3;
    job.options[r].max_runs = 6;  // so that more is to be tried the next time
    job.options[r].candidate_seconds = 0.5;
  }
  job[0].then = [](const std::string& instance) {
    if (instance == entry("first", 8)) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  job.run();
  REQUIRE(candidate(job.results[0], 0, 8).status == CandidateStatus::hung);
  REQUIRE(candidate(job.results[1], 0, 8).status != CandidateStatus::hung);
  for (std::size_t r = 0; r < 2; ++r) {
    job.options[r].max_runs = 0;
    job[r].launched.clear();
  }
  job.connect();
  job.run();
  job.check_plan(2, 1);
  CHECK(job.runs[0] > 6);
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(std::ranges::count(job[r].launched, entry("first", 8)) == 0);
    CHECK(job[r].launched == job[0].launched);
  }
  CHECK(candidate(job.results[0], 0, 8).status == CandidateStatus::hung);
}

TEST_CASE("by the mean, if so asked", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  for (std::size_t r = 0; r < 2; ++r) {
    job.options[r].together.reduction = RankReduction::mean;
    job[r].kernel("first", 4).seconds = r == 1 ? 0.9e-3 : 0.1e-3;
    job[r].kernel("first", 8).seconds = 0.6e-3;
  }
  job.run();
  job.check_plan(4, 2);
}

TEST_CASE("a region may wait for its other ranks inside", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(3);
  std::barrier<> meet(3);
  // All that makes ranks different: builds, failures, times, limits.
  job[0].kernel("first", 1).compile_log = "not here";
  job[0].kernel("first", 1).seconds = 1e-9;
  job[1].kernel("first", 1).seconds = 1e-9;
  job[1].kernel("second", 4).launch_error = "not here either";
  job[1].kernel("second", 4).fails_after = 2;
  job[2].kernel("second", 4).seconds = job[0].kernel("second", 4).seconds = 1e-9;
  job[2].kernel("second", 8).load_error = "no room on this one";
  for (std::size_t r = 0; r < 3; ++r) job[r].kernel("second", 1).seconds = 0.5e-3;
  const auto step = [&](std::size_t, Region& region, DynamicTuned& first, DynamicTuned& second,
                        float* y) {
    region(first, {}, {64}, y, 64);
    meet.arrive_and_wait();
    region(second, {}, {64}, y, 64);
    meet.arrive_and_wait();
  };
  SECTION("to the end") {
    job.run(step);
    job.check_plan(2, 1);
    CHECK(contains(candidate(job.results[0], 0, 1).reason, "not here"));
    CHECK(contains(candidate(job.results[2], 0, 1).reason, "another rank"));
    CHECK(contains(candidate(job.results[1], 1, 4).reason, "not here either"));
    CHECK(contains(candidate(job.results[0], 1, 4).reason, "another rank"));
    CHECK(contains(candidate(job.results[0], 1, 8).reason, "another rank"));
    // A candidate that one rank cannot build is run by none.
    for (std::size_t r = 0; r < 3; ++r)
      CHECK(std::count(job[r].launched.begin(), job[r].launched.end(), entry("first", 1)) == 0);
  }
  SECTION("stopped by one rank") {
    std::stop_source stop;
    job.options[2].stop = stop.get_token();
    job.options[2].progress = [&](const RegionProgress& p) {
      if (p.runs == 6) stop.request_stop();
    };
    job.run(step);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(job.runs[r] == 6);
      CHECK(job.results[r].end == SearchEnd::stopped);
      CHECK(job.results[r].tuned());
      CHECK(job.results[r].agreed.plan_digest == job.results[0].agreed.plan_digest);
    }
  }
  SECTION("with fewer runs allowed on one rank") {
    job.options[1].max_runs = 9;
    job.run(step);
    CHECK(job.runs == std::vector<int>{9, 9, 9});
  }
  SECTION("with less time on one rank") {
    job.options[0].max_seconds = 0.03;
    job[0].then = [](const std::string&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    job.run(step);
    CHECK(job.runs[1] == job.runs[0]);
    CHECK(job.runs[2] == job.runs[0]);
    CHECK(job.runs[0] < 20);
  }
  SECTION("with a verdict of one rank") {
    bool guilty = false;
    job.options[1].before = [&] { guilty = false; };
    job[1].then = [&](const std::string& instance) { guilty |= instance == entry("second", 1); };
    job.options[1].check = [&]() -> std::string { return guilty ? "off by one" : ""; };
    job.run(step);
    job.check_plan(2, 2);
    CHECK(candidate(job.results[1], 1, 1).reason == "off by one");
    CHECK(contains(candidate(job.results[0], 1, 1).reason, "another rank"));
    CHECK(candidate(job.results[0], 1, 1).status == CandidateStatus::wrong_result);
  }
}

TEST_CASE("ranks whose regions differ use the defaults", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(3);
  for (std::size_t r = 0; r < 3; ++r) job[r].kernel("first", 8).seconds = 0.1e-3;
  SECTION("in how much they launch") {
    job.run([](std::size_t r, Region& region, DynamicTuned& first, DynamicTuned& second, float* y) {
      region(first, {}, {64}, y, 64);
      if (r != 1) region(second, {}, {64}, y, 64);
    });
    job.check_defaults("1 to 2");
  }
  SECTION("nothing on one rank") {
    job.run([](std::size_t r, Region& region, DynamicTuned& first, DynamicTuned&, float* y) {
      if (r != 2) region(first, {}, {64}, y, 64);
    });
    job.check_defaults("0 to 1");
  }
  SECTION("in what they launch") {
    job.run([](std::size_t r, Region& region, DynamicTuned& first, DynamicTuned& second, float* y) {
      region(first, {}, {64}, y, 64);
      const std::int64_t n = r == 1 ? 32 : 64;
      region(second, {}, {n}, y, static_cast<int>(n));
    });
    job.check_defaults("rank");
  }
  CHECK(job.runs == std::vector<int>{1, 1, 1});
}

TEST_CASE("a region that throws on one rank leaves all with the defaults",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  for (const int at : {1, 2, 7}) {
    Job job(3);
    for (std::size_t r = 0; r < 3; ++r) job[r].kernel("first", 8).seconds = 0.1e-3;
    job.run(
        [&](std::size_t r, Region& region, DynamicTuned& first, DynamicTuned& second, float* y) {
          Job::both(r, region, first, second, y);
          if (r == 1 && job.runs[r] == at) throw std::runtime_error("rank 1 stumbled");
        });
    CHECK(job.thrown[1] == "rank 1 stumbled");
    CHECK(job.thrown[0] == "");
    job.check_defaults(at == 1 ? "failed on another rank" : "rank 1 stumbled");
    CHECK(job.runs == std::vector<int>{at, at, at});
    CHECK_FALSE(job.results[0].agreed.broken);
  }
}

TEST_CASE("ranks need not wait for one whose region is refused", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(3);
  for (std::size_t r = 0; r < 3; ++r) job[r].kernel("first", 8).seconds = 0.1e-3;
  const bool guarded = GENERATE(false, true);
  if (guarded)
    for (RegionOptions& options : job.options)
      options.together.guard = [](const auto& launches) { launches(); };
  job.options[1].repeats = 0;
  const auto begin = std::chrono::steady_clock::now();
  job.run();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK_THAT(job.thrown[1], Catch::Contains("`repeats` is 0"));
  for (const std::size_t r : {0, 2}) {
    CHECK(job.in_use[r] == std::vector<Values>{{2, 0}, {2, 0}});
    if (guarded)
      CHECK_THAT(job.thrown[r], Catch::Contains("refused on another rank"));
    else
      CHECK_FALSE(job.results[r].tuned());
  }
}

TEST_CASE("a region of which a kernel's rule throws on one rank leaves all with the defaults",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].kernel("first", 8).seconds = 0.1e-3;
    // Launches must not ask: rank 0 uses the default, and does not answer.
    job[r].options.tuning.ranks = job.options[r].ranks;
    job[r].options.tuning.together.first_seconds = 20;
  }
  const auto begin = std::chrono::steady_clock::now();
  job.cost = [](std::size_t r) {
    if (r == 1) throw UserError("no cost today");
  };
  job.run();
  CHECK(job.thrown[1] == "no cost today");
  CHECK(job.thrown[0] == "");
  job.check_defaults("rank 1 gave up");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("a rank that is gone leaves the others with the defaults", "[runtime][region][ranks]") {
  Watchdog watchdog;
  for (const int at : {1, 4}) {
    Job job(2);
    job[0].kernel("first", 8).seconds = 0.1e-3;
    job.run(
        [&](std::size_t r, Region& region, DynamicTuned& first, DynamicTuned& second, float* y) {
          Job::both(r, region, first, second, y);
          if (r == 1 && job.runs[r] == at)
            job.options[r].ranks->abort({RankFailure::Kind::lost, {1}, "pulled the plug"});
        });
    job.check_defaults("plug");
    CHECK(job.results[0].agreed.broken);
  }
}

TEST_CASE("a guard's seconds begin when all ranks have come", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  std::atomic<bool> come{false};
  bool early = false;
  job.options[0].together.guard = [&](const auto& launches) {
    early = early || !come;
    launches();
  };
  SECTION("a rank that is late") {
    job.options[1].together.guard = [](const auto& launches) { launches(); };
    job.options[1].ranks = std::make_shared<Throwing>(job.options[1].ranks, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      come = true;
    });
    for (std::size_t r = 0; r < 2; ++r) job[r].kernel("first", 8).seconds = 0.1e-3;
    job.run();
    job.check_plan(8, 2);
    CHECK_FALSE(early);
  }
  SECTION("a rank that does not come") {
    job.options[1].together.guard = [](const auto& launches) { launches(); };
    job.options[1].ranks =
        std::make_shared<Throwing>(job.options[1].ranks, [&, other = job.options[1].ranks] {
          other->abort({RankFailure::Kind::lost, {1}, "gone"});
        });
    job.run();
    job.check_defaults("gone");
    for (std::size_t r = 0; r < 2; ++r) CHECK_THAT(job.thrown[r], Catch::Contains("gone"));
    CHECK(job.runs == std::vector<int>{0, 0});
  }
  SECTION("a rank without a guard") {
    job.run();
    job.check_defaults("failed on another rank");
    CHECK_THAT(job.thrown[0], Catch::Contains("not all ranks have a guard"));
    CHECK(job.thrown[1] == "");
    CHECK(job.runs == std::vector<int>{0, 1});
  }
}

TEST_CASE("a communicator that throws leaves all with the defaults", "[runtime][region][ranks]") {
  Watchdog watchdog;
  const auto [why, thrower] = GENERATE(
      std::pair<std::string, std::function<void()>>{
          "a bug of the engine", [] { throw std::logic_error("a bug of the engine"); }},
      std::pair<std::string, std::function<void()>>{"the communicator failed", [] { throw 42; }});
  Job job(2);
  job[0].kernel("first", 8).seconds = 0.1e-3;
  job.options[1].ranks = std::make_shared<Throwing>(job.options[1].ranks, thrower);
  job.run();
  CHECK(job.thrown == std::vector<std::string>{"", ""});
  job.check_defaults(why);
  for (const RegionResult& result : job.results) CHECK(result.agreed.broken);
}

TEST_CASE("with a communicator of one rank a region is each rank's own",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  job[0].kernel("first", 8).seconds = 0.1e-3;
  job[1].kernel("first", 1).seconds = 0.1e-3;
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].options.tuning.ranks = std::move(job.options[r].ranks);
    job.options[r].ranks = std::move(thread_communicators(1).front());
  }
  job.run();
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(job.thrown[r] == "");
    CHECK(job.results[r].agreed.outcome == Outcome::plan);
    CHECK(job.results[r].agreed.size == 1);
  }
  CHECK(chosen(job.results[0], 0) == 8);
  CHECK(chosen(job.results[1], 0) == 1);
}

TEST_CASE("a rank that runs a region alone goes on with what all have agreed on",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  std::barrier agreed(2);
  std::vector<std::vector<Values>> in_use(2);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].options.tuning.ranks = job.options[r].ranks;
    job[r].kernel("first", 8).seconds = 0.1e-3;
    threads.emplace_back([&, r] {
      Pair pair(job[r]);
      pair.tune(job.options[r]);
      agreed.arrive_and_wait();
      RegionOptions alone = job.options[r];
      alone.together.first_seconds = alone.together.step_seconds = 0.2;
      if (r == 0) job.results.push_back(pair.tune(alone));
      in_use[r] = {pair.first.config({64}), pair.second.config({64})};
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(job.results.at(0).tuned());
  CHECK(in_use[0] == std::vector<Values>{{8, 0}, {2, 0}});
  CHECK(in_use[1] == in_use[0]);
}

TEST_CASE("the runtime's ranks are the region's", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].options.tuning.ranks = std::move(job.options[r].ranks);
    job[r].options.tuning.together = job.options[r].together;
    job[r].kernel("second", 4).seconds = r == 0 ? 0.1e-3 : 5e-3;
  }
  job.run();
  job.check_plan(2, 2);
}
