// Runtimes of a job on fake devices: whatever each had, compiled or died of, they choose the same.
#include <atomic>
#include <set>

#include "kiln_test.hpp"
#include "ranks_fixture.hpp"
#include "runtime/candidate_list.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr double kMs = 1e-3;
using Outcome = RankReport::Outcome;

/// Every rank holds the same, and it is this.
void check_plan(const std::vector<TuneResult>& results, int a) {
  for (const TuneResult& r : results) {
    REQUIRE(r.agreed);
    CHECK(r.agreed->why == "");
    CHECK(r.agreed->outcome == Outcome::plan);
    CHECK(r.winner().config == Values{a, 0});
    CHECK(r.agreed->plan_digest.size() == 64);
    CHECK(r.agreed->plan_digest == results.front().agreed->plan_digest);
    CHECK(r.agreed->size == static_cast<int>(results.size()));
  }
}

void check_defaults(const std::vector<TuneResult>& results, const std::string& why) {
  for (const TuneResult& r : results) {
    REQUIRE(r.agreed);
    CHECK(r.agreed->outcome == Outcome::defaults);
    CHECK(r.winner().config == Values{2, 0});
    CHECK_THAT(r.agreed->why, Catch::Contains(why));
    CHECK(r.agreed->plan_digest.empty());
  }
}

int measured(const Process& p) { return p.device->timings; }

}  // namespace

TEST_CASE("the slowest rank counts, or the mean, as is asked", "[runtime][ranks]") {
  for (const RankReduction reduction : {RankReduction::max, RankReduction::mean}) {
    Job job(2);
    RankOptions options = job.settings();
    options.reduction = reduction;
    job.set(options);
    // 4 is best on rank 0 and by the mean; 8 has the better maximum.
    job[0].of(4).seconds = 0.1 * kMs;
    job[1].of(4).seconds = 0.9 * kMs;
    for (const int r : {0, 1}) job[r].of(8).seconds = 0.6 * kMs;
    check_plan(job.tune(), reduction == RankReduction::max ? 8 : 4);
  }
}

TEST_CASE("sharded candidates are tried once, the best by everyone", "[runtime][ranks]") {
  Job job(3);
  RankOptions options = job.settings();
  options.strategy = RankStrategy::shard;
  options.finalists = 2;
  job.set(options);
  const KernelDefinition kernel = doubling({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  for (int r = 0; r < 3; ++r) {
    job[r].of(7).seconds = 0.5 * kMs;
    job[r].of(9).seconds = 0.4 * kMs;
  }
  const auto results = job.tune(64, kernel);
  check_plan(results, 9);
  std::size_t sum = 0;
  for (const TuneResult& r : results) {
    sum += r.agreed->measured;
    CHECK(r.agreed->measured == 4 + 3);  // a third; 7, 9 and the default again
    CHECK(r.count(CandidateStatus::measured) == 12);
  }
  CHECK(sum == 12 + 3 * 3);
  // Nobody compiled what others tried: a third, the finalists, the default.
  for (int r = 0; r < 3; ++r) CHECK(job[r].compiler->compiles <= 7);
}

TEST_CASE("large shares are split by what the default costs and the model expects",
          "[runtime][ranks]") {
  Job job(2);
  RankOptions options = job.settings();
  options.strategy = RankStrategy::shard;
  options.finalists = 1;
  job.set(options);
  std::vector<std::int64_t> many;
  for (int i = 1; i <= 100; ++i) many.push_back(i);
  KernelDefinition kernel = doubling(many);
  // One that takes as long as many others, by the model.
  kernel.cost = [](auto c, auto, const DeviceLimits&) { return c[0] == 50 ? 8.0 : 1.0; };
  for (const int r : {0, 1}) {
    job[r].options.tuning.max_evaluations = 100;
    job[r].of(77).seconds = 0.2 * kMs;
  }
  const auto results = job.run<TuneResult>([&](Process& process, int) {
    return process.runtime().tuned(kernel).tune({64}, process.options.tuning);
  });
  check_plan(results, 77);
  const std::size_t first = results[0].agreed->measured, second = results[1].agreed->measured;
  CHECK(first + second == 100 + 2 * 2);
  CHECK(std::max(first, second) - std::min(first, second) < 20);
  CHECK(results[0].count(CandidateStatus::measured) == 100);
}

TEST_CASE("one leads, the others receive", "[runtime][ranks]") {
  Job job(3);
  RankOptions options = job.settings();
  options.strategy = RankStrategy::leader;
  options.leader = 1;
  job.set(options);
  job[1].of(8).seconds = 0.2 * kMs;
  job[0].of(4).seconds = 0.1 * kMs;  // nobody asks rank 0
  check_plan(job.tune(), 8);
  CHECK(measured(job[0]) == 0);
  CHECK(measured(job[2]) == 0);
}

TEST_CASE("each for itself, if asked for", "[runtime][ranks]") {
  Job job(2);
  RankOptions options = job.settings();
  options.strategy = RankStrategy::independent;
  job.set(options);
  job[0].of(4).seconds = 0.1 * kMs;
  job[1].of(8).seconds = 0.1 * kMs;
  const auto results = job.tune();
  CHECK(results[0].agreed->outcome == Outcome::own);
  CHECK(results[0].winner().config == Values{4, 0});
  CHECK(results[1].winner().config == Values{8, 0});
}

TEST_CASE("in step: the same launches everywhere, and what fails on one is skipped by all",
          "[runtime][ranks]") {
  Job job(2);
  RankOptions options = job.settings();
  options.lockstep = true;
  job.set(options);
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.1 * kMs;
    job[r].of(4).seconds = 0.5 * kMs;
  }
  SECTION("it does not compile") { job[1].of(8).compile_log = "no such instruction here"; }
  SECTION("it cannot be launched") {
    job[1].device->on_launch = [](const std::string& entry, void**) {
      if (entry == "k<8, 0>") throw EnvironmentError("refused");
    };
  }
  SECTION("it is wrong") {
    job[1].of(8).run = [](void** args) { (*static_cast<float**>(args[0]))[0] = -1; };
  }
  check_plan(job.tune(), 4);
  CHECK(job[0].device->launches == job[1].device->launches);
  CHECK(job[0].device->launches > 0);
}

TEST_CASE("a second start uses what was saved, and measures nothing", "[runtime][ranks]") {
  for (const bool one_store : {false, true}) {
    Job job(2, one_store);
    for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
    const auto first = job.tune();
    check_plan(first, 8);
    // One rank per store writes.
    CHECK(job.directory(0).entries(".json").size() == 1);
    job.restart();
    const auto second = job.tune();
    check_plan(second, 8);
    CHECK(second[0].agreed->plan_digest == first[0].agreed->plan_digest);
    for (const int r : {0, 1}) {
      CHECK(measured(job[r]) == 0);
      CHECK(job[r].compiler->compiles == 0);
      CHECK(second[static_cast<std::size_t>(r)].from_store);
    }
  }
}

TEST_CASE("only some remember: it is given to the others, or all measure", "[runtime][ranks]") {
  for (const OnPartialCache policy : {OnPartialCache::distribute, OnPartialCache::retune}) {
    Job job(3);
    RankOptions options = job.settings();
    options.on_partial_cache = policy;
    job.set(options);
    job[1].of(8).seconds = 0.2 * kMs;
    {
      Process alone(job[1].options.store.directory);  // tuned by itself once
      alone.of(8).seconds = 0.2 * kMs;
      alone.runtime().tuned(doubling()).tune({64});
    }
    for (const int r : {0, 1, 2}) job[r].of(4).seconds = 0.3 * kMs;
    const bool given = policy == OnPartialCache::distribute;
    check_plan(job.tune(), given ? 8 : 4);
    for (const int r : {0, 2}) {
      CHECK((measured(job[r]) == 0) == given);
      CHECK(job.directory(r).entries(".json").size() == 1);
    }
  }
}

TEST_CASE("ranks that remember different winners come to one", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) {
    Process alone(job[r].options.store.directory);
    alone.of(r == 0 ? 4 : 8).seconds = 0.2 * kMs;
    alone.runtime().tuned(doubling()).tune({64});
  }
  const auto results = job.tune();
  check_plan(results, static_cast<int>(results[0].winner().config[0]));
  CHECK(results[0].winner().config != Values{2, 0});
  job.restart();
  check_plan(job.tune(), static_cast<int>(results[0].winner().config[0]));
}

TEST_CASE("a winner beyond the list of candidates is used when all have it", "[runtime][ranks]") {
  Job job(2);
  std::vector<std::int64_t> many;
  for (int i = 1; i <= 300; ++i) many.push_back(i);
  const KernelDefinition kernel = doubling(many);
  for (const int r : {0, 1}) {
    Process alone(job[r].options.store.directory);
    alone.of(299).seconds = 0.2 * kMs;
    alone.options.tuning.strategy = "exhaustive";
    alone.runtime().tuned(kernel).tune({64});
    CHECK(alone.runtime().tuned(kernel).known({64})->winner().config == Values{299, 0});
  }
  const auto results = job.run<Values>([&](Process& process, int) {
    process.options.tuning.max_evaluations = 3;
    return process.runtime().tuned(kernel).config({64});
  });
  CHECK(results == std::vector<Values>{{299, 0}, {299, 0}});
  for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);
}

TEST_CASE("a launch is collective, and a record alone is no choice", "[runtime][ranks]") {
  Job job(2);
  {
    Process alone(job[0].options.store.directory);
    alone.of(8).seconds = 0.2 * kMs;
    alone.runtime().tuned(doubling()).tune({64});
  }
  for (const Mode mode : {Mode::lookup_only, Mode::untuned}) {
    for (const int r : {0, 1}) job[r].options.mode = mode;
    const auto configs = job.run<Values>([](Process& process, int) {
      const auto handle = process.runtime().tuned(doubling());
      if (handle.prepare({64})) return Values{-1};  // no binary either
      return handle.config({64});
    });
    CHECK(configs[0] == Values{2, 0});
    CHECK(configs[1] == (mode == Mode::untuned ? Values{2, 0} : Values{-1}));
    job.restart();
  }
  for (const int r : {0, 1}) job[r].options.mode = Mode::tune_now;
  const auto configs = job.run<Values>(
      [](Process& process, int) { return process.runtime().tuned(doubling()).config({64}); });
  CHECK(configs == std::vector<Values>{{8, 0}, {8, 0}});
  job.restart();
  for (const int r : {0, 1}) job[r].options.mode = Mode::lookup_only;
  const auto frozen = job.run<Values>(
      [](Process& process, int) { return process.runtime().tuned(doubling()).config({64}); });
  CHECK(frozen == std::vector<Values>{{8, 0}, {8, 0}});
}

TEST_CASE("what differs is named, and all use defaults", "[runtime][ranks]") {
  Job job(3);
  for (int r = 0; r < 3; ++r) job[r].of(8).seconds = 0.1 * kMs;
  std::string what;
  std::function<void(Process&)> change = [](Process&) {};
  KernelDefinition other = doubling();
  SECTION("candidates") {
    other = doubling({1, 2, 4, 8, 16});
    what = "candidate";
  }
  SECTION("source") {
    other.source.text += "// changed";
    what = "kernel";
  }
  SECTION("problem") { what = "problem"; }
  SECTION("architecture") {
    job[1].device->info().target.arch = "another";
    what = "target";
  }
  SECTION("compiler") {
    job[1].compiler->version = "2";
    what = "build";
  }
  SECTION("settings") {
    job[1].options.tuning.together.reduction = RankReduction::mean;
    what = "settings";
  }
  const auto results = job.run<TuneResult>([&](Process& process, int rank) {
    return process.runtime()
        .tuned(rank == 1 ? other : doubling())
        .tune({rank == 1 && what == "problem" ? 65 : 64});
  });
  check_defaults(results, "rank 1");
  CHECK_THAT(results[0].agreed->why, Catch::Contains(what));
  for (int r = 0; r < 3; ++r) {
    CHECK(measured(job[r]) == 0);
    CHECK(job.directory(r).entries(".json").empty());
    CHECK_FALSE(results[static_cast<std::size_t>(r)].agreed->broken);
  }
  // Nothing hangs, and the job goes on.
  const bool stays = what == "target" || what == "build" || what == "settings";
  if (stays)
    check_defaults(job.tune(128), "rank 1");
  else
    check_plan(job.tune(128), 8);
}

TEST_CASE("a candidate that fails on one rank is nobody's", "[runtime][ranks]") {
  const RankStrategy strategy = GENERATE(RankStrategy::replicate, RankStrategy::shard);
  Job job(2);
  RankOptions options = job.settings();
  options.strategy = strategy;
  job.set(options);
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.1 * kMs;
    job[r].of(4).seconds = 0.5 * kMs;
  }
  SECTION("it does not compile") { job[1].of(8).compile_log = "not here"; }
  SECTION("it is refused") { job[1].of(8).load_error = "no room"; }
  SECTION("it is wrong") {
    job[1].of(8).run = [](void** args) { (*static_cast<float**>(args[0]))[0] = -1; };
  }
  check_plan(job.tune(), 4);
}

TEST_CASE("what the leader found and others cannot build is not used", "[runtime][ranks]") {
  Job job(3);
  RankOptions options = job.settings();
  options.strategy = RankStrategy::leader;
  job.set(options);
  for (int r = 0; r < 3; ++r) job[r].of(8).seconds = 0.1 * kMs;
  job[2].of(8).compile_log = "not here";
  check_defaults(job.tune(), "rank 2");
}

TEST_CASE("every candidate fails: all know, nobody hangs", "[runtime][ranks]") {
  Job job(2);
  for (const int a : {1, 2, 4, 8})
    for (const int r : {0, 1}) job[r].of(a).launch_error = "refused";
  for (const TuneResult& r : job.tune()) {
    CHECK(r.winner().config == Values{2, 0});
    CHECK(r.count(CandidateStatus::measured) == 0);
  }
  for (const int r : {0, 1}) CHECK(job.directory(r).entries(".json").empty());
}

TEST_CASE("many problems, one agreement, candidates of all spread over all", "[runtime][ranks]") {
  Job job(2);
  RankOptions options = job.settings();
  options.strategy = RankStrategy::shard;
  options.finalists = 1;
  job.set(options);
  KernelDefinition other = doubling({1, 2, 16});
  other.name = "other";
  other.bucket = [](std::span<const std::int64_t> p) { return Values{p[0] / 64 * 64}; };
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.2 * kMs;
    job[r].of(16).seconds = 0.1 * kMs;
  }
  const auto all = job.run<std::vector<TuneResult>>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const DynamicTuned first = runtime.tuned(doubling()), second = runtime.tuned(other);
    const std::vector<TuneJob> jobs{{first, {64}}, {second, {130}}, {first, {65}}, {second, {129}}};
    auto results = runtime.tune(jobs, {});
    const int launches = process.device->launches;
    CHECK(first.config({64}) == Values{8, 0});
    CHECK(second.config({140}) == Values{16, 0});
    CHECK(process.device->launches == launches);
    return results;
  });
  for (const std::size_t j : {0, 1, 2, 3}) {
    check_plan({all[0][j], all[1][j]}, j % 2 == 0 ? 8 : 16);
    CHECK(all[0][j].agreed->plan_digest == all[0][0].agreed->plan_digest);
  }
  CHECK(all[0][1].problem == Values{128});
  // 4 + 4 + 3 candidates, and of each subject the best and the default on both.
  CHECK(all[0][0].agreed->measured + all[1][0].agreed->measured == 11 + 2 * 3 * 2);
  CHECK(job.directory(0).entries(".json").size() == 3);
  job.restart();
  const auto again = job.run<std::size_t>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const std::vector<TuneJob> jobs{{runtime.tuned(doubling()), {64}},
                                    {runtime.tuned(other), {130}}};
    std::size_t stored = 0;
    for (const TuneResult& r : runtime.tune(jobs, {})) stored += r.from_store;
    Process stranger(process.options.store.directory);
    const std::vector<TuneJob> strange{{stranger.runtime().tuned(doubling()), {64}}};
    CHECK_THROWS_WITH(runtime.tune(strange, {}), Catch::Contains("another runtime"));
    return stored;
  });
  CHECK(again == std::vector<std::size_t>{2, 2});
}

TEST_CASE("what one rank did not come to is no record of a search that is over",
          "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  SECTION("a shorter list") {
    for (const int r : {0, 1}) job[r].options.tuning.max_evaluations = 2;
    const auto results = job.run<TuneResult>([](Process& process, int) {
      return process.runtime().tuned(doubling()).tune({64}, process.options.tuning);
    });
    for (const TuneResult& r : results) {
      CHECK(r.agreed->outcome == Outcome::plan);
      CHECK_FALSE(r.complete);
      CHECK(r.candidates.size() == 2);
    }
    job.restart();
    for (const int r : {0, 1}) job[r].options.tuning.max_evaluations = 0;
    check_plan(job.tune(), 8);
  }
  SECTION("a rank was stopped at once") {
    std::stop_source stop;
    stop.request_stop();
    job[1].options.tuning.stop = stop.get_token();
    const auto results = job.run<TuneResult>([](Process& process, int) {
      return process.runtime().tuned(doubling()).tune({64}, process.options.tuning);
    });
    check_defaults({results[1]}, "stopped on rank 1");
    check_defaults({results[0]}, "another rank was stopped");
    for (const TuneResult& r : results) CHECK_FALSE(r.complete);
    for (const int r : {0, 1}) CHECK(job.directory(r).entries(".json").empty());
    job[1].options.tuning.stop = {};
    check_plan(job.tune(128), 8);
  }
}

TEST_CASE("a better winner of a longer search is not overwritten", "[runtime][ranks]") {
  Job job(2);
  std::vector<std::int64_t> many;
  for (int i = 1; i <= 300; ++i) many.push_back(i);
  const KernelDefinition kernel = doubling(many);
  {
    Process alone(job[0].options.store.directory);
    alone.of(299).seconds = 0.2 * kMs;
    alone.options.tuning.strategy = "exhaustive";
    alone.runtime().tuned(kernel).tune({64});
  }
  const auto configs = job.run<Values>([&](Process& process, int) {
    process.options.tuning.max_evaluations = 3;
    return process.runtime().tuned(kernel).config({64});
  });
  CHECK(configs[0] == configs[1]);
  CHECK(configs[0] != Values{299, 0});
  Process alone(job[0].options.store.directory);
  CHECK(alone.runtime().tuned(kernel).known({64})->winner().config == Values{299, 0});
}

TEST_CASE("options that make no sense are told to all at once, and break nothing",
          "[runtime][ranks]") {
  for (const bool everyone : {false, true}) {
    Job job(2);
    for (const int r : {0, 1}) {
      job[r].of(8).seconds = 0.2 * kMs;
      if (everyone || r == 1) job[r].options.tuning.together.leader = 7;
    }
    const auto results = job.run<TuneResult>([&](Process& process, int rank) -> TuneResult {
      const auto handle = process.runtime().tuned(doubling());
      if (!everyone && rank == 0) return handle.tune({64});
      CHECK_THROWS_WITH(handle.tune({64}), Catch::Contains("`leader`"));
      return {};
    });
    if (!everyone) {
      check_defaults({results[0]}, "rank 1 gave up: ");
      CHECK_FALSE(results[0].agreed->broken);
    }
    for (const int r : {0, 1}) job[r].options.tuning.together.leader = 0;
    check_plan(job.tune(), 8);
  }
}

TEST_CASE("one rank asks to measure again: all do", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  check_plan(job.tune(), 8);
  job.restart();
  job[1].options.tuning.retune = true;
  for (const int r : {0, 1}) job[r].of(4).seconds = 0.1 * kMs;
  check_plan(job.tune(), 4);
  for (const int r : {0, 1}) CHECK(measured(job[r]) > 0);
}

TEST_CASE("ranks without a disk remember while they live", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.2 * kMs;
    job[r].options.store.disk = false;
  }
  const auto stored = job.run<bool>([](Process& process, int) {
    const Runtime runtime = process.runtime();
    runtime.tuned(doubling()).tune({64});
    return runtime.tuned(doubling()).tune({64}).from_store;
  });
  CHECK(stored == std::vector<bool>{true, true});
}

TEST_CASE("what all hold is used, whatever else is asked at the same time", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  check_plan(job.tune(64), 8);
  job.restart();
  for (const int r : {0, 1}) job[r].of(4).seconds = 0.1 * kMs;
  const auto all = job.run<std::vector<TuneResult>>([](Process& process, int) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(doubling());
    return runtime.tune(std::vector<TuneJob>{{handle, {64}}, {handle, {65}}}, {});
  });
  for (const auto& results : all) {
    CHECK(results[0].winner().config == Values{8, 0});
    CHECK(results[0].from_store);
    CHECK(results[1].winner().config == Values{4, 0});
  }
}

TEST_CASE("what was agreed holds, also where it cannot be loaded at once", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const auto handle = process.runtime().tuned(doubling());
    if (rank == 0) return handle.config({64});
    // Works while it is measured and prepared, not when it is loaded for good, then again.
    int loads = 0;
    process.device->on_load = [&](const std::string& entry) {
      if (entry == "k<8, 0>" && ++loads == 3) throw EnvironmentError("no memory just now");
    };
    CHECK_THROWS_WITH(handle.config({64}), Catch::Contains("just now"));
    return handle.config({64});
  });
  CHECK(configs == std::vector<Values>{{8, 0}, {8, 0}});
}

TEST_CASE("a communicator that throws is a rank that failed", "[runtime][ranks]") {
  struct Throwing final : Communicator {
    explicit Throwing(std::shared_ptr<Communicator> b, int c) : base(std::move(b)), calls(c) {}
    int rank() const noexcept override { return base->rank(); }
    int size() const noexcept override { return base->size(); }
    Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                   Deadline deadline) override {
      if (calls-- == 0) throw std::bad_alloc();
      return base->gather(mine, all, deadline);
    }
    Failure reduce(std::span<float> values, Reduction op, Deadline deadline) override {
      return base->reduce(values, op, deadline);
    }
    Failure broadcast(std::span<std::byte> bytes, int root, Deadline deadline) override {
      return base->broadcast(bytes, root, deadline);
    }
    void abort(const RankFailure& why) noexcept override { base->abort(why); }
    bool settles() const noexcept override { return base->settles(); }
    std::optional<bool> settle(const Digest& question, bool proposal, Deadline d) override {
      return base->settle(question, proposal, d);
    }
    Failure split(int group, std::unique_ptr<Communicator>& part, Deadline deadline) override {
      return base->split(group, part, deadline);
    }
    std::shared_ptr<Communicator> base;
    int calls;
  };
  for (int calls = 0; calls < 5; ++calls) {  // who has it, digest, vote, compare, confirm
    Job job(2);
    for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
    auto& ranks = job[1].options.tuning.ranks;
    ranks = std::make_shared<Throwing>(ranks, calls);
    const auto results = job.tune();
    CAPTURE(calls);
    CHECK(results[0].winner().config == results[1].winner().config);
    CHECK(results[0].agreed->outcome == results[1].agreed->outcome);
  }
}

TEST_CASE("a rank in trouble takes nobody with it", "[runtime][ranks]") {
  Job job(2);
  job[0].of(8).seconds = 0.1 * kMs;
  SECTION("its compiler is gone") {
    job[1].compiler->on_compile = [](const codegen::Source&) {
      throw EnvironmentError("the compiler crashed");
    };
    const auto results = job.run<TuneResult>([](Process& process, int rank) -> TuneResult {
      const auto handle = process.runtime().tuned(doubling());
      if (rank == 0) return handle.tune({64});
      CHECK_THROWS_WITH(handle.tune({64}), Catch::Contains("the compiler crashed"));
      return {};  // not even the default can be had here
    });
    check_defaults({results[0]}, "the compiler crashed");
  }
  SECTION("its device is lost") {
    job[1].of(4).launch_error = "device lost";
    check_defaults({job.tune()[0]}, "rank 1");
  }
}

TEST_CASE("sub-groups tune different kernels, and do not wait for each other", "[runtime][ranks]") {
  Job job(4);
  KernelDefinition other = doubling({1, 2, 16});
  other.name = "other";
  for (int r = 0; r < 4; ++r) {
    job[r].of(8).seconds = 0.2 * kMs;
    job[r].of(16).seconds = 0.1 * kMs;
  }
  const auto results = job.run<std::vector<TuneResult>>([&](Process& process, int rank) {
    // Ranks 0 and 2 are one group, 1 and 3 the other, which tunes twice as often.
    std::unique_ptr<Communicator> part;
    const auto failure = process.options.tuning.ranks->split(rank % 2, part, kiln::deadline_in(30));
    if (failure) throw EnvironmentError(failure->describe());
    process.options.tuning.ranks = std::move(part);
    const Runtime runtime = process.runtime();
    if (rank % 2 == 0) return std::vector{runtime.tuned(doubling()).tune({64})};
    const auto handle = runtime.tuned(other);
    return std::vector{handle.tune({64}), handle.tune({65})};
  });
  check_plan({results[0][0], results[2][0]}, 8);
  for (const std::size_t j : {0, 1}) check_plan({results[1][j], results[3][j]}, 16);
  for (std::size_t r = 0; r < 4; ++r) CHECK(results[r][0].agreed->rank == static_cast<int>(r / 2));
}

TEST_CASE("a rank that never comes is not waited for", "[runtime][ranks]") {
  Job job(2);
  RankOptions options = job.settings();
  options.first_seconds = 0.2;
  job.set(options);
  const auto results = job.run<TuneResult>([](Process& process, int rank) -> TuneResult {
    if (rank == 1) return {};
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    TuneResult result = handle.tune({64});
    // It goes on alone, with defaults.
    std::vector<float> x(64, 1), y(64);
    handle({}, Values{64}, y.data(), static_cast<const float*>(x.data()), 64);
    CHECK(y[63] == 2);
    CHECK(handle.config({65}) == Values{2, 0});
    return result;
  });
  check_defaults({results[0]}, "rank 1");
  CHECK(results[0].agreed->broken);
}

TEST_CASE("a list of candidates is the default and then the most promising", "[runtime][ranks]") {
  const FakeDevice device(std::make_shared<Script>());
  std::vector<std::int64_t> many;
  for (int i = 1; i <= 1000; ++i) many.push_back(i);
  KernelDefinition kernel = doubling(many, 500);
  kernel.cost = [](auto c, auto, const DeviceLimits&) { return static_cast<double>(c[0]); };
  const Values problem{64};
  const auto list = [&](std::size_t most) {
    return runtime::candidate_list(kernel, problem, device.info(), most, 1).configs;
  };
  const auto forty = list(40);
  REQUIRE(forty.size() == 40);
  CHECK(forty[0] == Values{500, 0});
  std::set<Values> all(forty.begin(), forty.end());
  CHECK(all.size() == 40);
  for (int a = 1; a <= 25; ++a) CHECK(all.count({a, 0}) == 1);
  CHECK(forty.back()[0] > 500);  // and some that the model thinks little of
  CHECK(list(0).size() == 66);
  CHECK(list(5000).size() == 1000);
  CHECK(list(1) == std::vector<Values>{{500, 0}});
  CHECK(list(40) == forty);
}
