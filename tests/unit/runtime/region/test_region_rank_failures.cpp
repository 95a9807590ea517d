// What a rank does wrong while ranks tune a region together leaves all of them with the defaults.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "findings.hpp"
#include "region_ranks.hpp"
#include "unit/runtime/noted_guard.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Job = RegionJob;

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

TEST_CASE("a guard has a region's runs, not what comes before and after them",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  Findings findings;
  const bool fails = GENERATE(false, true);
  NotedGuard noted[2];
  int begun = 0;
  for (std::size_t r = 0; r < 2; ++r) {
    job.options[r].together.guard = noted[r].guard();
    job.options[r].before = [&, r] {
      findings.check(!noted[r].inside);
      if (r == 1 && ++begun == 3 && fails) throw std::runtime_error("nothing to begin with");
    };
    job.options[r].check = [&, r]() -> std::string {
      findings.check(!noted[r].inside);
      return "";
    };
    job[r].kernel("first", 8).seconds = 0.1e-3;
  }
  job.run([&](std::size_t r, Region& region, DynamicTuned& first, DynamicTuned& second, float* y) {
    findings.check(noted[r].inside);
    Job::both(r, region, first, second, y);
  });
  CHECK(findings.wrong() == "");
  // A rank that fails before a run calls the guard all the same: the others may be in that run.
  CHECK(noted[0].calls == noted[1].calls);
  CHECK(job.runs == std::vector<int>{noted[0].calls, noted[1].calls - (fails ? 1 : 0)});
  if (!fails) return job.check_plan(8, 2);
  CHECK_THAT(job.thrown[1], Catch::Contains("nothing to begin with"));
  job.check_defaults("");
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
