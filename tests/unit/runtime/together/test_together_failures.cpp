// Ranks that differ, fail, or never come: the others know of it, and choose the same.
#include <array>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "runtime/ranks/messages.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/together/measuring_together.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

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
  SECTION("a guard") {
    for (int r = 0; r < 3; ++r) job[r].options.tuning.together.lockstep = true;
    job[1].options.tuning.together.guard = [](const auto& launches) { launches(); };
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

TEST_CASE("a failure before the agreement is told in it, and the ranks go on", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  KernelDefinition failing = doubling();
  const auto tune = [&] {
    return job.run<TuneResult>([&](Process& process, int rank) {
      return process.runtime().tuned(rank == 1 ? failing : doubling()).tune({64});
    });
  };
  SECTION("the winner on record cannot be made") {
    check_plan(job.tune(), 8);
    job.restart();
    for (const auto& binary : job.directory(1).entries(".kiln"))
      if (read_text(binary).find("k<8, 0>") != std::string::npos) fs::remove(binary);
    job[1].compiler->on_compile = [](const auto&) { throw EnvironmentError("no compiler today"); };
    check_defaults(tune(), "no compiler today");
    job[1].compiler->on_compile = nullptr;
  }
  SECTION("its candidates cannot be listed") {
    failing.cost = [](auto, auto, const DeviceLimits&) -> double {
      throw std::runtime_error("no cost today");
    };
    check_defaults(tune(), "rank 1");
    CHECK_THAT(tune()[1].agreed->why, Catch::Contains("no cost today"));
    failing.cost = nullptr;
  }
  SECTION("the program has made a mistake") {
    failing.cost = [](auto, auto, const DeviceLimits&) -> double {
      throw UserError("not like this");
    };
    Findings findings;
    const auto results = job.run<TuneResult>([&](Process& process, int rank) {
      const auto handle = process.runtime().tuned(rank == 1 ? failing : doubling());
      if (rank == 0) return handle.tune({64});
      findings.check_throws<UserError>([&] { handle.tune({64}); }, "not like this");
      return TuneResult{};
    });
    CHECK(findings.wrong() == "");
    check_defaults({results[0]}, "rank 1");
    failing.cost = nullptr;
  }
  for (const int r : {0, 1}) CHECK(measured(job[r]) <= 100);
  check_plan(tune(), 8);
}

TEST_CASE("ranks do not wait for long for a rank that tunes something else", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  job[0].options.tuning.together.first_seconds = 2;
  const auto results = job.run<TuneResult>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    std::promise<void> taken, tuned;
    std::jthread other;
    if (rank == 0) {
      other = std::jthread([&] {
        const auto turn = detail::Access::engine(runtime)->workshop().turn().take();
        taken.set_value();
        tuned.get_future().wait();
      });
      taken.get_future().wait();
    }
    TuneResult result = runtime.tuned(doubling()).tune({64});
    tuned.set_value();
    return result;
  });
  check_defaults(results, "rank 0 gave up: ");
  CHECK_THAT(results[0].agreed->why,
             Catch::Contains("another tuning of its process went on for too long"));
  for (const TuneResult& r : results) CHECK_FALSE(r.agreed->broken);
  check_plan(job.tune(), 8);
}

TEST_CASE("a rank of another version is named", "[runtime][ranks]") {
  Job job(2);
  const auto results = job.run<TuneResult>([&](Process& process, int rank) -> TuneResult {
    if (rank == 0) return process.runtime().tuned(doubling()).tune({64});
    runtime::ranks::HeldMessage old;
    old.protocol -= 1;
    const auto mine = runtime::ranks::encode(old);
    std::vector<std::byte> all(2 * mine.size());
    (void)process.options.tuning.ranks->gather(mine, all, deadline_in(20));
    return {};
  });
  check_defaults({results[0]}, "another version of Kiln");
}

TEST_CASE("inside of a measurement a rank asks no other ranks", "[runtime][ranks]") {
  Job job(2);
  Watched& watched = job.watch(0);
  const Runtime runtime = job[0].runtime();
  const auto handle = runtime.tuned(doubling());
  {
    const runtime::MeasuringTogether measuring;
    CHECK_FALSE(handle.prepare({64}));
    CHECK_THROWS_AS(handle.tune({64}), UserError);
    CHECK_THROWS_AS(runtime.tune(std::vector<TuneJob>{{handle, {64}}}, {}), UserError);
    CHECK_THROWS_AS(runtime.tune(std::vector<TuneJob>{{handle, {64}, -1}}, {}), UserError);
  }
  CHECK(watched.calls == 0);
  CHECK(handle.config({64}) == Values{2, 0});
}

TEST_CASE("in step: a reference may launch a kernel of its own", "[runtime][ranks]") {
  Job job(2);
  job.in_step();
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  check_plan(job.run<TuneResult>([](Process& process, int) {
    const Runtime runtime = process.runtime();
    KernelDefinition helper = doubling(), kernel = doubling();
    helper.name = "helper";
    const auto helping = runtime.tuned(helper);
    kernel.reference = [&](auto, std::span<void* const> args) {
      helping({}, {64}, static_cast<float*>(args[0]), static_cast<const float*>(args[1]),
              *static_cast<int*>(args[2]));
    };
    return runtime.tuned(kernel).tune({64});
  }),
             8);
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
  check_defaults(job.tune(),
                 "rank 2 failed: cannot build the chosen config of doubling: does not compile");
}

TEST_CASE("ranks that use the defaults say why of each candidate, but of what failed here",
          "[runtime][ranks]") {
  const std::string why = "ranks use the defaults: ";
  const auto candidate = [](const TuneResult& result, int a) -> const Candidate& {
    for (const Candidate& c : result.candidates)
      if (c.config == Values{a, 0}) return c;
    throw std::runtime_error("no such candidate");
  };
  SECTION("they differ, before anything was tried") {
    Job job(3);
    job[1].device->info().target.arch = "another";
    for (const TuneResult& r : job.tune()) {
      CHECK(r.candidates.size() == 4);
      for (const Candidate& c : r.candidates) {
        CHECK(c.status == CandidateStatus::not_tried);
        CHECK_THAT(c.reason, Catch::StartsWith(why) && Catch::Contains("rank 1"));
      }
      CHECK_FALSE(r.complete);
      CHECK(r.end == SearchEnd::stopped);
    }
  }
  SECTION("one never comes") {
    Job job(2);
    job[0].options.tuning.together.first_seconds = 0.2;
    const auto results = job.run<TuneResult>([](Process& process, int rank) {
      return rank == 1 ? TuneResult{} : process.runtime().tuned(doubling()).tune({64});
    });
    REQUIRE(results[0].candidates.size() == 1);
    CHECK(results[0].winner().status == CandidateStatus::not_tried);
    CHECK_THAT(results[0].winner().reason, Catch::StartsWith(why) && Catch::Contains("rank 1"));
  }
  SECTION("what one measured, another cannot build") {
    Job job(2);
    for (const int r : {0, 1}) {
      job[r].options.tuning.together.strategy = RankStrategy::leader;
      job[r].of(8).seconds = 0.1 * kMs;
    }
    job[0].of(1).compile_log = "not on the leader";
    job[0].of(4).launch_error = "refused";
    job[1].of(8).compile_log = "not on the other";
    const auto results = job.tune();
    check_defaults(results, "rank 1");
    CHECK(candidate(results[0], 1).status == CandidateStatus::compile_failed);
    CHECK(candidate(results[0], 1).reason == "not on the leader");
    CHECK(candidate(results[0], 4).status == CandidateStatus::launch_failed);
    CHECK(candidate(results[0], 4).reason == "refused");
    CHECK(candidate(results[1], 8).status == CandidateStatus::compile_failed);
    CHECK_THAT(candidate(results[1], 8).reason, Catch::Contains("not on the other"));
    for (const auto& c : {candidate(results[0], 2), candidate(results[0], 8),
                          candidate(results[1], 1), candidate(results[1], 2)}) {
      CHECK(c.status == CandidateStatus::not_tried);
      CHECK_THAT(c.reason, Catch::StartsWith(why));
    }
  }
}

TEST_CASE("of several kernels one cannot be used on a rank: what was agreed on the others holds",
          "[runtime][ranks]") {
  KernelDefinition other = doubling();
  other.name = "other";
  other.source.text += "// another";
  Job job(2);
  // Rank 1 has no binary of the first kernel.
  for (const int r : {0, 1}) {
    Process before(job[r].options.store.directory);
    before.options.mode = Mode::untuned;
    const Runtime runtime = before.runtime();
    if (r == 0) runtime.tuned(doubling()).prepare({64});
    runtime.tuned(other).prepare({64});
    job[r].options.mode = Mode::lookup_only;
  }
  Watched* const ends[] = {&job.watch(0), &job.watch(1)};
  Findings findings;
  const auto configs = job.run<std::vector<Values>>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned first = runtime.tuned(doubling()), second = runtime.tuned(other);
    const std::vector<TuneJob> jobs{{first, {64}}, {second, {64}}};
    if (rank == 0)
      runtime.tune(jobs, {});
    else
      findings.check_throws<MissingError>([&] { runtime.tune(jobs, {}); });
    Watched& end = *ends[rank];
    const int calls = end.calls;
    std::vector<Values> in_use{second.config({64})};
    if (rank == 0)
      in_use.push_back(first.config({64}));
    else
      findings.check_throws<MissingError>([&] { first.config({64}); });
    findings.check(end.calls == calls);
    return in_use;
  });
  CHECK(findings.wrong() == "");
  CHECK(configs[0] == std::vector<Values>{{2, 0}, {2, 0}});
  CHECK(configs[1] == std::vector<Values>{{2, 0}});
}

TEST_CASE("every candidate fails: all know, nobody hangs", "[runtime][ranks]") {
  Job job(2);
  for (const int a : {1, 2, 4, 8})
    for (const int r : {0, 1}) job[r].of(a).launch_error = "refused";
  Findings findings;
  job.run<bool>([&](Process& process, int) {
    const DynamicTuned handle = process.runtime().tuned(doubling());
    findings.check_throws<TuningFailedError>([&] { handle.tune({64}); },
                                             "4 x (e.g. a=2,b=0) launch_failed: refused");
    return true;
  });
  CHECK(findings.wrong() == "");
  for (const int r : {0, 1}) CHECK(job.directory(r).entries(".json").empty());
}

TEST_CASE("options that make no sense are told to all at once, and break nothing",
          "[runtime][ranks]") {
  const std::string what = GENERATE("`leader`", "`guard`");
  for (const bool everyone : {false, true}) {
    Job job(2);
    for (const int r : {0, 1}) {
      RankOptions& options = job[r].options.tuning.together;
      job[r].of(8).seconds = 0.2 * kMs;
      if (!everyone && r == 0) continue;
      if (what == "`leader`") options.leader = 7;
      if (what == "`guard`") options.guard = [](const auto& launches) { launches(); };
    }
    Findings findings;
    const auto results = job.run<TuneResult>([&](Process& process, int rank) -> TuneResult {
      const auto handle = process.runtime().tuned(doubling());
      if (!everyone && rank == 0) return handle.tune({64});
      findings.check_throws<UserError>([&] { handle.tune({64}); }, what);
      return {};
    });
    CHECK(findings.wrong() == "");
    if (!everyone) {
      check_defaults({results[0]}, "rank 1 gave up: ");
      CHECK_FALSE(results[0].agreed->broken);
    }
    for (const int r : {0, 1}) {
      job[r].options.tuning.together.leader = 0;
      job[r].options.tuning.together.guard = {};
    }
    check_plan(job.tune(), 8);
  }
}

TEST_CASE("what was agreed holds, also where it cannot be loaded at once", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    const std::vector<TuneJob> jobs{{handle, {64}}};
    if (rank == 0) {
      runtime.tune(jobs, {});
      return handle.config({64});
    }
    // Works while it is measured and prepared, not when it is loaded for good, then again.
    int loads = 0;
    process.device->on_load = [&](const std::string& entry) {
      if (entry == "k<8, 0>" && ++loads == 3) throw EnvironmentError("no memory just now");
    };
    findings.check_throws<EnvironmentError>([&] { runtime.tune(jobs, {}); }, "just now");
    return handle.config({64});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>{{8, 0}, {8, 0}});
}

TEST_CASE("what ranks have prepared is launched, and not loaded once more", "[runtime][ranks]") {
  Job job(2);
  std::array<std::atomic<int>, 2> loads{};
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.2 * kMs;
    job[r].device->on_load = [&count = loads[static_cast<std::size_t>(r)]](const auto& entry) {
      count += entry == "k<8, 0>";
    };
  }
  const auto launch = [&] {
    for (const Values& config : job.run<Values>([](Process& process, int) {
           return process.runtime().tuned(doubling()).config({64});
         }))
      CHECK(config == Values{8, 0});
  };
  launch();
  for (const auto& count : loads) CHECK(count == 2);  // measured, prepared
  job.restart();
  for (const int r : {0, 1})
    job[r].device->on_load = [&count = loads[static_cast<std::size_t>(r)]](const auto& entry) {
      count += entry == "k<8, 0>";
    };
  launch();
  for (const auto& count : loads) CHECK(count == 3);  // from the records
}

TEST_CASE("a communicator that throws is a rank that failed", "[runtime][ranks]") {
  for (int calls = 0; calls < 5; ++calls) {  // which ranks have it, digest, vote, compare, confirm
    Job job(2);
    for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
    job.watch(1).before = [&](int nth) {
      if (nth == calls) throw std::bad_alloc();
    };
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
    Findings findings;
    const auto results = job.run<TuneResult>([&](Process& process, int rank) -> TuneResult {
      const auto handle = process.runtime().tuned(doubling());
      if (rank == 0) return handle.tune({64});
      findings.check_throws<EnvironmentError>([&] { handle.tune({64}); }, "the compiler crashed");
      return {};  // not even the default can be had here
    });
    CHECK(findings.wrong() == "");
    check_defaults({results[0]}, "the compiler crashed");
  }
  SECTION("its kernel's functions throw before anything is asked") {
    const bool standard = GENERATE(true, false);
    KernelDefinition broken = doubling();
    broken.launch = [standard](std::span<const std::int64_t>,
                               std::span<const std::int64_t>) -> Launch {
      if (standard) throw std::runtime_error("no launch today");
      throw 7;
    };
    Findings findings;
    const auto results = job.run<TuneResult>([&](Process& process, int rank) -> TuneResult {
      const Runtime runtime = process.runtime();
      const std::vector<TuneJob> jobs{{runtime.tuned(rank == 0 ? doubling() : broken), {64}, 1}};
      if (rank == 0) return runtime.tune(jobs, {}).front();
      try {
        runtime.tune(jobs, {});
        findings.check(false);
      } catch (const std::runtime_error&) {
        findings.check(standard);
      } catch (int) {
        findings.check(!standard);
      }
      return {};
    });
    CHECK(findings.wrong() == "");
    check_defaults({results[0]}, standard ? "no launch today" : "not derived from std::exception");
  }
  SECTION("its device is lost") {
    job[1].of(4).launch_error = "device lost";
    check_defaults({job.tune()[0]}, "rank 1");
  }
}

TEST_CASE("a rank that never comes is not waited for", "[runtime][ranks]") {
  Job job(2);
  RankOptions options = job.settings();
  options.first_seconds = 0.2;
  job.set(options);
  Findings findings;
  const auto results = job.run<TuneResult>([&](Process& process, int rank) -> TuneResult {
    if (rank == 1) return {};
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    TuneResult result = handle.tune({64});
    // It goes on alone, with defaults.
    std::vector<float> x(64, 1), y(64);
    handle({}, Values{64}, y.data(), static_cast<const float*>(x.data()), 64);
    findings.check(y[63] == 2);
    findings.check(handle.config({65}) == Values{2, 0});
    return result;
  });
  CHECK(findings.wrong() == "");
  check_defaults({results[0]}, "rank 1");
  CHECK(results[0].agreed->broken);
}
