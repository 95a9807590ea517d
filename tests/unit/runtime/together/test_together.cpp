// Runtimes of a job on fake devices: they measure together, and choose the same.
#include <array>
#include <map>
#include <set>

#include "runtime/device/spare_memory.hpp"
#include "runtime/tune/candidate_list.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// With the options that each process has been given.
std::vector<TuneResult> tune_as_set(Job& job, const KernelDefinition& kernel) {
  return job.run<TuneResult>([&](Process& process, int) {
    return process.runtime().tuned(kernel).tune({64}, process.options.tuning);
  });
}

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

TEST_CASE("in step the best candidate of several launches is in the finals", "[runtime][ranks]") {
  Job job(2);
  RankOptions options = job.settings();
  options.lockstep = true;
  options.finalists = 1;
  job.set(options);
  KernelDefinition kernel = doubling({1, 2, 4}, 2, {0, 1});
  kernel.steps = {{.entry = "after",
                   .launch = [](auto, auto) { return Launch{{1}, {1}}; },
                   .only_if = [](auto config) { return config[1] == 1; }}};
  std::array<std::map<std::string, int>, 2> launches;
  for (const int r : {0, 1}) {
    job[r].device->on_launch = [&mine = launches[static_cast<std::size_t>(r)]](
                                   const std::string& entry, void**) { ++mine[entry]; };
    for (const int a : {1, 2, 4}) {
      job[r].of(a).seconds = 0.1 * a * kMs;
      job[r].of(a, 1).seconds = (a == 4 ? 0.5 : 0.9) * kMs;
      (*job[r].script)["after<" + std::to_string(a) + ", 1>"].run = [](void**) {};
    }
  }
  check_plan(tune_as_set(job, kernel), 1);
  const std::set<std::string> finalists{"k<1, 0>", "k<2, 0>", "k<4, 1>"};  // with the default
  for (const auto& mine : launches)
    for (const int b : {0, 1})
      for (const int a : {1, 2, 4}) {
        const std::string entry = "k<" + std::to_string(a) + ", " + std::to_string(b) + ">";
        CAPTURE(entry);
        CHECK((mine.at(entry) > 10) == finalists.contains(entry));
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
  KernelDefinition kernel = doubling(up_to(100));
  // By the model, one config takes as long as several others.
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

TEST_CASE("with a communicator of one rank a call is each rank's own", "[runtime][ranks]") {
  Job job(2);
  job[0].of(4).seconds = 0.1 * kMs;
  job[1].of(8).seconds = 0.1 * kMs;
  const auto results = job.run<TuneResult>([](Process& process, int) {
    TuneOptions options;
    options.ranks = std::move(thread_communicators(1).front());
    return process.runtime().tuned(doubling()).tune({64}, options);
  });
  CHECK(results[0].winner().config == Values{4, 0});
  CHECK(results[1].winner().config == Values{8, 0});
}

TEST_CASE("in step: the same launches everywhere, and what fails on one is skipped by all",
          "[runtime][ranks]") {
  Job job(2);
  job.in_step();
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
  SECTION("its bench refuses it") { job[1].of(8).resources.max_threads = 4; }
  SECTION("it is wrong") {
    job[1].of(8).run = [](void** args) { (*static_cast<float**>(args[0]))[0] = -1; };
  }
  SECTION("it changes an input, also if only while it is timed") {
    job[1].of(8).run = [first = GENERATE(1, 3), n = 0](void** args) mutable {
      compute_doubling(args);
      if (++n >= first) (*static_cast<float**>(args[1]))[0] = -1;
    };
  }
  check_plan(job.tune(), 4);
  CHECK(job[0].device->launches == job[1].device->launches);
  CHECK(job[0].device->launches > 0);
}

TEST_CASE("in step: every draw is launched, whatever becomes of one on one rank",
          "[runtime][ranks]") {
  Job job(2);
  job.in_step();
  KernelDefinition kernel = doubling();
  kernel.draws = {1, 1, 1};
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.1 * kMs;
    job[r].of(4).seconds = 0.5 * kMs;
  }
  const int fails = GENERATE(0, 1, 4);  // launches before it: of the verification, or timed
  SECTION("it is wrong") {
    job[1].of(8).run = [fails, n = 0](void** args) mutable {
      compute_doubling(args);
      if (n++ == fails) (*static_cast<float**>(args[fails < 3 ? 0 : 1]))[0] = -1;
    };
  }
  SECTION("it cannot be launched") {
    job[1].device->on_launch = [fails, n = 0](const std::string& entry, void**) mutable {
      if (entry == "k<8, 0>" && n++ == fails) throw EnvironmentError("refused");
    };
  }
  const auto results = job.run<TuneResult>(
      [&](Process& process, int) { return process.runtime().tuned(kernel).tune({64}); });
  check_plan(results, 4);
  CHECK(job[0].device->launches == job[1].device->launches);
}

TEST_CASE("in step: the program's functions run on the thread that tunes", "[runtime][ranks]") {
  Job job(2);
  job.in_step();
  Findings findings;
  job.run<bool>([&](Process& process, int) {
    const std::thread::id mine = std::this_thread::get_id();
    KernelDefinition kernel = doubling();
    kernel.reference = [&, right = kernel.reference](auto problem, auto args) {
      findings.check(std::this_thread::get_id() == mine);
      right(problem, args);
    };
    kernel.workload = [&, data = kernel.workload](auto problem, Workload& w) {
      findings.check(std::this_thread::get_id() == mine);
      data(problem, w);
    };
    process.options.compile_threads = 4;
    process.runtime().tuned(kernel).tune({64});
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("in step: memory that one rank lacks now is no failure of the candidate",
          "[runtime][ranks]") {
  Job job(2);
  job.in_step();
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.1 * kMs;
    job[r].of(4).seconds = 0.5 * kMs;
  }
  job[1].device->on_load = [](const std::string& entry) {
    if (entry == "k<8, 0>") throw runtime::OutOfMemory("no memory for its code");
  };
  const auto results = job.tune();
  check_plan(results, 4);
  for (const TuneResult& r : results) CHECK(r.count(CandidateStatus::not_tried) == 1);
  job[1].device->on_load = nullptr;
  check_plan(job.tune(), 8);
}

TEST_CASE("in step: ranks with one store compile each candidate once", "[runtime][ranks]") {
  Job job(2, true);
  job.in_step();
  std::atomic<int> begun = 0, alone = 0;
  for (const int r : {0, 1}) {
    job[r].options.compile_threads = 2;
    // The default and two others are in work at the same time.
    job[r].compiler->on_compile = [&](const auto&) {
      ++begun;
      const Deadline end = deadline_in(20);
      while (begun < 3 && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      alone += begun < 3;
    };
  }
  const auto results = job.tune(64, doubling({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  for (const TuneResult& r : results) CHECK(r.count(CandidateStatus::measured) == 12);
  CHECK(begun == 12);
  CHECK(alone == 0);
}

TEST_CASE("in step: launches are timed as the options ask", "[runtime][ranks]") {
  const bool overlap = GENERATE(false, true);
  CAPTURE(overlap);
  KernelDefinition kernel = doubling({2}, 2, {0, 1});
  kernel.launch = [plain = kernel.launch](auto c, auto p, const DeviceLimits& limits) {
    Launch launch = plain(c, p, limits);
    launch.programmatic = c[1] != 0;
    return launch;
  };
  Job job(2);
  job.in_step();
  std::array<int, 2> overlapping{};
  for (const int r : {0, 1}) {
    job[r].options.tuning.overlap_launches = overlap;
    FakeDevice& device = *job[r].device;
    device.on_description =
        [&device, &count = overlapping[static_cast<std::size_t>(r)]](const Launch& launch) {
          count += device.timing && launch.programmatic;
        };
  }
  tune_as_set(job, kernel);
  for (const int count : overlapping) CHECK((count > 0) == overlap);
}

TEST_CASE("ranks that measure in different ways use the defaults", "[runtime][ranks]") {
  Job job(2);
  job[0].of(8).seconds = job[1].of(8).seconds = 0.1 * kMs;
  (GENERATE(false, true) ? job[1].options.tuning.cold_cache
                         : job[1].options.tuning.overlap_launches) ^= true;
  check_defaults(tune_as_set(job, doubling()), "other problems, or other options of timing");
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
  Findings findings;
  const auto all = job.run<std::vector<TuneResult>>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const DynamicTuned first = runtime.tuned(doubling()), second = runtime.tuned(other);
    const std::vector<TuneJob> jobs{{first, {64}}, {second, {130}}, {first, {65}}, {second, {129}}};
    auto results = runtime.tune(jobs, {});
    const int launches = process.device->launches;
    findings.check(first.config({64}) == Values{8, 0});
    findings.check(second.config({140}) == Values{16, 0});
    findings.check(process.device->launches == launches);
    return results;
  });
  CHECK(findings.wrong() == "");
  for (const std::size_t j : {0, 1, 2, 3}) {
    check_plan({all[0][j], all[1][j]}, j % 2 == 0 ? 8 : 16);
    CHECK(all[0][j].agreed->plan_digest == all[0][0].agreed->plan_digest);
  }
  CHECK(all[0][1].problem == Values{128});
  // 4 + 4 + 3 candidates. Each rank has 4 of one subject; of the third the best and the default are
  // timed on both.
  CHECK(all[0][0].agreed->measured + all[1][0].agreed->measured == 11 + 2 * 2);
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
    findings.check_throws<UserError>([&] { runtime.tune(strange, {}); }, "another runtime");
    return stored;
  });
  CHECK(findings.wrong() == "");
  CHECK(again == std::vector<std::size_t>{2, 2});
}

TEST_CASE("two handles of one kernel are one subject of an agreement", "[runtime][ranks]") {
  Job job(2);
  Findings findings;
  const auto all = job.run<std::vector<TuneResult>>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const DynamicTuned first = runtime.tuned(doubling()), second = runtime.tuned(doubling());
    const DynamicTuned wider = runtime.tuned(doubling({1, 2, 4, 8, 16}));
    auto results =
        runtime.tune(std::vector<TuneJob>{{first, {64}}, {second, {64}}, {wider, {64}}}, {});
    findings.check(first.config({64}) == second.config({64}));
    return results;
  });
  CHECK(findings.wrong() == "");
  for (const std::vector<TuneResult>& results : all) {
    CHECK(results[0].candidates.size() == 4);
    CHECK(results[2].candidates.size() == 5);  // another space is another subject
    CHECK(results[0].agreed->measured == 4 + 5);
  }
}

TEST_CASE("a handle with rules of its own is not given what they forbid", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  const auto at_most = [](std::int64_t most) {
    KernelDefinition kernel = doubling();
    kernel.space.where(
        "small", [most](auto config, auto, const DeviceLimits&) { return config[0] <= most; });
    return kernel;
  };
  const auto all = job.run<std::vector<TuneResult>>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    return runtime.tune(
        std::vector<TuneJob>{{runtime.tuned(at_most(8)), {64}}, {runtime.tuned(at_most(4)), {64}}},
        {});
  });
  for (const std::vector<TuneResult>& results : all) {
    CHECK(results[0].winner().config == Values{8, 0});
    CHECK(results[1].winner().config[0] <= 4);
    CHECK(results[1].agreed->outcome == RankReport::Outcome::plan);
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

TEST_CASE("a list of candidates is the default and then the most promising", "[runtime][ranks]") {
  const FakeDevice device(std::make_shared<Script>());
  KernelDefinition kernel = doubling(up_to(1000), 500);
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

  const auto with = [&](const Values& incumbent, std::size_t most) {
    return runtime::candidate_list(kernel, problem, device.info(), most, 1, incumbent).configs;
  };
  const auto kept = with({999, 0}, 40);
  CHECK(kept.size() == 40);
  CHECK(kept[0] == Values{500, 0});
  CHECK(kept[1] == Values{999, 0});
  CHECK(std::set<Values>(kept.begin(), kept.end()).size() == 40);
  CHECK(with({500, 0}, 40) == forty);   // it is the default
  CHECK(with({1001, 0}, 40) == forty);  // the space has no such value
  CHECK(with({999, 0}, 1) == std::vector<Values>{{500, 0}});

  kernel.configs = [](auto, const auto&) { return std::vector<Values>{{1, 0}, {2, 0}}; };
  const auto whole = [&](std::size_t most) {
    return runtime::candidate_list(kernel, problem, device.info(), most, 1).whole;
  };
  CHECK_FALSE(whole(2));  // the default, which is not listed, and one of those listed
  CHECK(whole(3));
}
