// Measuring in step with other ranks: whatever happens here, they get the launches they wait for.
#include <limits>
#include <set>
#include <stdexcept>

#include "kiln_test.hpp"
#include "race_fixture.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/support/rank_meeting.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

/// A bench whose launches are counted, and fail where a test says so.
class CountingBench final : public TrialBench {
 public:
  bool knows_results() const noexcept override { return knows; }
  std::variant<std::shared_ptr<Rig>, Refusal> load(const Trial&) override {
    if (!refusal.empty()) return Refusal{CandidateStatus::launch_failed, refusal};
    return std::make_shared<CountedRig>();
  }
  Verdict verify(Rig&) override {
    launch();
    return verdict;
  }
  void keep_cold(bool cold, const TimeLimit&) override { cold_cache = cold; }
  void keep_in_step(GuardedLaunches* how) override { in_step = how; }
  std::size_t most_launches(const Rig&) const override { return most; }
  double time(Rig&, std::size_t count) override {
    launch();
    timed += count;
    return 1e-3 * static_cast<double>(launches);
  }
  bool record(Rig&, std::size_t count) override {
    recorded = count;
    if (cannot_record) throw std::runtime_error("no graph");
    return true;
  }
  void forget_recording(Rig&) override { recorded = 0; }
  std::string repair() override { return damage; }
  bool lost() noexcept override { return is_lost; }
  bool shares_cpu() const noexcept override { return false; }

  bool knows = true, is_lost = false;
  GuardedLaunches* in_step = nullptr;
  bool all_in_step = true;
  std::string refusal, damage;
  Verdict verdict{};
  std::set<int> failing;  ///< launches, from 1 on
  int launches = 0, short_of_memory = 0;
  std::size_t timed = 0, most = 1, recorded = 0;
  bool cannot_record = false;
  std::optional<bool> cold_cache;

 private:
  struct CountedRig final : Rig {
    bool recorded() const noexcept override { return false; }
  };

  void launch() {
    all_in_step = all_in_step && in_step;
    if (in_step) return in_step->run([&] { launch_once(); });
    launch_once();
  }
  void launch_once() {
    if (failing.count(++launches)) throw std::runtime_error("launch " + std::to_string(launches));
    if (launches == short_of_memory) throw OutOfMemory("no memory now");
  }
};

const Values kConfig{8, 0};

Candidate measured(TrialBench& bench, const Trial& trial = {}, const Guard& guard = {}) {
  GuardedLaunches launches(guard);
  return measure_in_step(bench, trial, kConfig, launches);
}

/// Loaded.
Candidate measured(TrialBench& bench, Rig& rig, const TimingPolicy& timing,
                   const Guard& guard = {}) {
  GuardedLaunches launches(guard);
  return measure_in_step(bench, rig, timing, kConfig, launches);
}

}  // namespace

TEST_CASE("in step: one launch verifies, then some warm up, then some count",
          "[runtime][measure]") {
  CountingBench bench;
  const Candidate c = measured(bench);
  const TimingPolicy policy;
  CHECK(bench.launches == 1 + policy.warm_up + policy.launches);
  CHECK(bench.cold_cache == policy.cold_cache);
  CHECK(bench.all_in_step);
  CHECK(bench.in_step == nullptr);
  CHECK(c.config == kConfig);
  CHECK(c.status == CandidateStatus::measured);
  REQUIRE(c.samples.size() == static_cast<std::size_t>(policy.launches));
  CHECK(c.samples.front() == Approx(4e-3));
  CHECK(c.seconds == Approx(7e-3));  // the median of the fourth to the tenth
}

TEST_CASE("in step: the trial's own policy is kept", "[runtime][measure]") {
  CountingBench bench;
  Trial trial;
  trial.timing = {.warm_up = 0, .launches = 3, .cold_cache = true};
  CHECK(measured(bench, trial).samples.size() == 3);
  CHECK(bench.launches == 4);
  CHECK(bench.cold_cache == true);
}

TEST_CASE("in step: several launches in a row are replayed, and as many are made without a graph",
          "[runtime][measure]") {
  const TimingPolicy policy{.warm_up = 1, .launches = 1, .in_a_row = 20, .replay = true};
  for (const bool cannot : {false, true}) {
    CountingBench bench;
    bench.most = 8;
    bench.cannot_record = cannot;
    const auto rig = std::get<std::shared_ptr<Rig>>(bench.load({}));
    const Candidate c = measured(bench, *rig, policy);
    CHECK(bench.launches == 4);  // verifies, warms up, uploads, counts
    CHECK(bench.timed == 3 * 8);
    CHECK(bench.recorded == 0);  // forgotten
    CHECK(c.status == (cannot ? CandidateStatus::launch_failed : CandidateStatus::measured));
    if (!cannot) CHECK(c.seconds == Approx(4e-3 / 8));
  }
  CountingBench one;  // a launch alone is no graph
  one.cannot_record = true;
  const auto rig = std::get<std::shared_ptr<Rig>>(one.load({}));
  CHECK(measured(one, *rig, policy).status == CandidateStatus::measured);
  CHECK(one.launches == 3);
}

TEST_CASE("in step: a kernel's launches in a row are one graph, if eager ones are not wanted",
          "[runtime][measure]") {
  for (const bool replay : {false, true}) {
    kiln::test::Race race;
    race.bench.device->records = true;
    race.enter(1, 1e-3);
    Rig& rig = *race.contestants.front().rig;
    const Candidate c =
        measured(*race.trials, rig, {.warm_up = 1, .launches = 3, .in_a_row = 4, .replay = replay});
    CHECK(c.status == CandidateStatus::measured);
    CHECK(c.seconds == Approx(1e-3));
    CHECK(race.bench.device->captures == (replay ? 1 : 0));
    CHECK_FALSE(rig.recorded());  // any more
  }
}

TEST_CASE("in step: ranks meet before each sample, when its data are there", "[runtime][measure]") {
  kiln::test::Race race;
  race.enter(1, 1e-3);
  int meetings = 0;
  bool before_clock = true;
  std::vector<int> launched;
  {
    const RankMeeting meeting([&] {
      ++meetings;
      before_clock = before_clock && !race.bench.device->timing;
      launched.push_back(race.bench.device->launches);
    });
    const Candidate c = measured(*race.trials, *race.contestants.front().rig,
                                 {.warm_up = 1, .launches = 3, .in_a_row = 2});
    CHECK(c.seconds == Approx(1e-3));
    race.trials->time(*race.contestants.front().rig, 1);
    CHECK(meetings == 4);  // not for what is not in step
  }
  CHECK(meetings == 4);
  CHECK(before_clock);
  CHECK(launched == std::vector<int>{1, 3, 5, 7});  // after the one that verifies
  race.trials->time(*race.contestants.front().rig, 1);
  CHECK(meetings == 4);  // no meeting any more
}

TEST_CASE("in step: a guard has the launches, not the program's check", "[runtime][measure]") {
  bool inside = false, checked = false;
  int guarded = 0;
  const Guard guard = [&](const auto& launches) {
    inside = true;
    ++guarded;
    launches();
    inside = false;
  };
  kiln::test::Race race;
  const auto& device = *race.bench.device;
  int launched_outside = 0, launches = 0;
  const auto look = [&] {
    if (!inside) launched_outside += device.launches - launches;
    launches = device.launches;
  };
  race.kernel.check = [&](auto, auto, auto) -> std::string {
    checked = !inside;
    look();
    return "";
  };
  race.workload = std::make_unique<DeviceWorkload>(race.kernel, race.problem, race.bench.device, 1);
  race.trials = std::make_unique<KernelBench>(race.bench.device, *race.workload);
  race.enter(1, 1e-3);
  const Candidate c = measured(*race.trials, *race.contestants.front().rig,
                               {.warm_up = 1, .launches = 3}, [&](const auto& all) {
                                 look();
                                 guard([&] {
                                   all();
                                   look();
                                 });
                               });
  look();
  CHECK(c.status == CandidateStatus::measured);
  CHECK(checked);
  CHECK(guarded == 5);
  CHECK(launches == 5);
  CHECK(launched_outside == 0);
}

TEST_CASE("in step: what the guard has ended hangs, and nothing is launched after it",
          "[runtime][measure]") {
  CountingBench whole;
  measured(whole);
  for (int ended = 1; ended <= whole.launches; ++ended) {
    CAPTURE(ended);
    CountingBench bench;
    int guarded = 0;
    const Candidate c = measured(bench, {}, [&](const auto& launches) {
      launches();
      if (++guarded == ended) throw std::runtime_error("rank 1 gave up");
    });
    CHECK(c.status == CandidateStatus::hung);
    CHECK(c.reason == "rank 1 gave up");
    CHECK(c.samples.empty());
    CHECK(guarded == ended);
    CHECK(bench.launches >= ended);
    CHECK(bench.in_step == nullptr);
  }
}

TEST_CASE("in step: under a guard a launch that fails is the last one", "[runtime][measure]") {
  CountingBench bench;
  bench.failing = {3};
  int guarded = 0;
  const Candidate c = measured(bench, {}, [&](const auto& launches) {
    ++guarded;
    launches();
  });
  CHECK(guarded == 3);
  CHECK(c.status == CandidateStatus::launch_failed);
  CHECK(c.reason == "launch 3");
}

TEST_CASE("in step: what a guard throws by itself is no candidate's", "[runtime][measure]") {
  CountingBench bench;
  int guarded = 0;
  CHECK_THROWS_WITH(measured(bench, {},
                             [&](const auto& launches) {
                               if (++guarded == 3) throw std::runtime_error("rank 1 is late");
                               launches();
                             }),
                    "rank 1 is late");
  CHECK(guarded == 3);
  CHECK(bench.in_step == nullptr);
}

TEST_CASE("launches under a guard: a rank that fails before one says so in its place",
          "[runtime][measure]") {
  int guarded = 0, told = 0;
  const Guard guard = [&](const auto& launches) {
    ++guarded;
    try {
      launches();
    } catch (const std::runtime_error&) {
      ++told;
      throw;
    }
  };
  {
    GuardedLaunches launches(guard);
    CHECK_THROWS_WITH(launches.share_failure([] { throw std::runtime_error("no data"); }),
                      "no data");
    CHECK_THROWS_AS(launches.run([] { FAIL("others do not launch any more"); }), GivenUp);
    CHECK_THROWS_AS(launches.share_failure([&] { launches.run([] {}); }), GivenUp);
  }
  CHECK(guarded == 1);
  CHECK(told == 1);
  GuardedLaunches launches(guard);
  launches.share_failure([] {});
  CHECK(guarded == 1);
  CHECK_THROWS_WITH(launches.share_failure([&] {
    launches.run([] {});
    throw std::runtime_error("afterwards");
  }),
                    "afterwards");
  launches.run([] {});  // which is no other rank's business
  CHECK(guarded == 3);
  CHECK(told == 1);
}

TEST_CASE("in step: all launches are made, whichever fails", "[runtime][measure]") {
  CountingBench whole;
  measured(whole);
  for (int failing = 1; failing <= whole.launches; ++failing) {
    CAPTURE(failing);
    CountingBench bench;
    bench.failing = {failing, whole.launches};
    const Candidate c = measured(bench);
    CHECK(bench.launches == whole.launches);
    CHECK(c.status == CandidateStatus::launch_failed);
    CHECK(c.reason == "launch " + std::to_string(failing));  // the first
    CHECK(c.samples.empty());
  }
}

TEST_CASE("in step: memory that is short now is not held against a candidate",
          "[runtime][measure]") {
  CountingBench bench;
  bench.short_of_memory = 2;
  const Candidate c = measured(bench);
  CHECK(bench.launches == 10);
  CHECK(c.status == CandidateStatus::not_tried);
  CHECK(c.reason == "no memory now");
  CHECK(c.samples.empty());
}

TEST_CASE("in step: wrong results, and damage, end a candidate after its launches",
          "[runtime][measure]") {
  CountingBench bench;
  bench.verdict = {false, std::numeric_limits<double>::infinity(), "element 3 is 1"};
  Candidate c = measured(bench);
  CHECK(bench.launches == 10);
  CHECK(c.status == CandidateStatus::wrong_result);
  CHECK(c.reason == "element 3 is 1");
  CHECK(c.max_error == std::numeric_limits<double>::infinity());
  CHECK(c.samples.empty());
  bench.verdict = {};
  bench.damage = "wrote outside argument 0";
  c = measured(bench);
  CHECK(c.status == CandidateStatus::wrong_result);
  CHECK(c.reason == "wrote outside argument 0");
}

TEST_CASE("in step: what nobody can judge by one launch is not verified", "[runtime][measure]") {
  CountingBench bench;
  bench.knows = false;
  CHECK(measured(bench).status == CandidateStatus::measured);
  CHECK(bench.launches == 9);
}

TEST_CASE("in step: a lost device and a trial that cannot be loaded are errors",
          "[runtime][measure]") {
  CountingBench bench;
  bench.failing = {5};
  bench.is_lost = true;
  CHECK_THROWS_AS(measured(bench), DeviceLost);
  CHECK(bench.launches == 10);
  CountingBench refuses;
  refuses.refusal = "no memory";
  CHECK_THROWS_AS(measured(refuses), EnvironmentError);
  CHECK(refuses.launches == 0);
}
