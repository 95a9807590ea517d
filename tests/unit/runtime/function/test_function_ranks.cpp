// Functions tuned by ranks together: each a thread with a runtime of its own.
#include <barrier>
#include <thread>

#include "findings.hpp"
#include "function_ranks.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/noted_guard.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Meeting = FunctionMeeting;
using Rank = FunctionRank;
using Job = FunctionJob;

constexpr auto kPlan = RankReport::Outcome::plan;
constexpr auto kDefaults = RankReport::Outcome::defaults;

}  // namespace

TEST_CASE("a rank that tunes a function alone goes on with what all have agreed on",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(2, directory.path());
  for (Rank& rank : job.ranks) rank.caller->seconds[{8, Method::tree}] = 1e-4;
  std::barrier agreed(2);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r, &rank = job.ranks[r]] {
      const auto function = rank.caller->tuned(rank.sum);
      function({}, rank.x, 5);
      agreed.arrive_and_wait();
      CallOptions alone;
      alone.retune = true;
      if (r == 0) {
        job.ranks[1].caller->options.tuning.ranks->abort(
            {RankFailure::Kind::aborted, {1}, "it does something else"});
        function.with(alone)({}, rank.x, 5);
        rank.result = function.tune({}, rank.x, 5);
      }
      rank.thrown = function.knobs({5}) == SumKnobs{8, Method::tree} ? "" : "others";
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(job.ranks[0].result.agreed->outcome == kDefaults);
  for (const Rank& rank : job.ranks) CHECK(rank.thrown == "");
}

TEST_CASE("ranks with different times choose the same knobs", "[runtime][function][ranks]") {
  const int size = GENERATE(2, 4);
  const RankStrategy strategy =
      GENERATE(RankStrategy::replicate, RankStrategy::shard, RankStrategy::leader);
  CAPTURE(size, to_string(strategy));
  Directory directory;
  Job job(size, directory.path());
  for (int r = 0; r < size; ++r) {
    Caller& caller = *job.ranks[static_cast<std::size_t>(r)].caller;
    caller.options.tuning.together.strategy = strategy;
    // Each rank by itself would take another; the slowest rank counts.
    for (const int blocks : {1, 2, 4, 8}) caller.seconds[{blocks, Method::tree}] = 9e-4;
    caller.seconds[{1 << (r % 4), Method::tree}] = 5e-4;
    caller.seconds[{8, Method::ring}] = 6e-4 + 1e-5 * r;
  }
  job.tune(5);
  REQUIRE(job.agreed(kPlan));
  CHECK_FALSE(job.ranks[0].result.agreed->plan_digest.empty());
  CHECK(job.others_than(job.ranks[0].result.winner().config) == 0);
  if (strategy == RankStrategy::replicate) CHECK(job.others_than({8, 0}) == 0);
  if (strategy == RankStrategy::leader)
    for (std::size_t r = 1; r < job.ranks.size(); ++r) CHECK(job.ranks[r].caller->total() == 0);
  // Again, all from what was saved.
  std::vector<int> before;
  for (const Rank& rank : job.ranks) before.push_back(rank.caller->total());
  const Values winner = job.ranks[0].result.winner().config;
  job.tune(5);
  CHECK(job.others_than(winner) == 0);
  for (std::size_t r = 0; r < before.size(); ++r) CHECK(job.ranks[r].caller->total() == before[r]);
}

TEST_CASE("a function that communicates is called equally often on all ranks, whatever it takes",
          "[runtime][function][ranks]") {
  const int size = GENERATE(2, 4);
  Directory directory;
  Job job(size, directory.path());
  Meeting meeting(size);
  for (int r = 0; r < size; ++r) {
    Rank& rank = job.ranks[static_cast<std::size_t>(r)];
    Caller& caller = *rank.caller;
    caller.seconds[{4, Method::ring}] = 1e-4;
    caller.device->info().limits.l2_bytes = 4096;
    // On rank 1 no two calls take the same, on the others all.
    caller.work = [&, r, calls = 0](const SumKnobs&, std::vector<float>&) mutable {
      meeting.join();
      if (r == 1) caller.device->now += 1e-3 * (++calls % 7);
    };
    rank.sum.communicates = true;
  }
  job.ranks[1].caller->seconds[{4, Method::ring}] = 1e-5;
  job.tune(5);
  CHECK_FALSE(meeting.late);
  REQUIRE(job.agreed(kPlan));
  for (const Rank& rank : job.ranks) CHECK(rank.caller->calls == job.ranks[0].caller->calls);
  CHECK(job.others_than(job.ranks[0].result.winner().config) == 0);
  CHECK(job.ranks[0].caller->total() > 8);
  CHECK(job.ranks[0].caller->device->fills == 0);  // or ranks would time each other's flushes
  const auto nccl =
      std::find_if(job.ranks[0].result.versions.begin(), job.ranks[0].result.versions.end(),
                   [](const KeyField& v) { return v.name == "nccl"; });
  REQUIRE(nccl != job.ranks[0].result.versions.end());
  CHECK(nccl->value == nccl_version().value_or("none"));
}

TEST_CASE("knobs that fail on one rank alone are skipped by all, in step",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(3, directory.path());
  Meeting meeting(3);
  const bool wrong = GENERATE(false, true);
  for (int r = 0; r < 3; ++r) {
    Rank& rank = job.ranks[static_cast<std::size_t>(r)];
    rank.caller->seconds[{8, Method::tree}] = 1e-5;  // would win
    rank.caller->seconds[{1, Method::ring}] = 1e-4;
    rank.sum.communicates = true;
    rank.caller->work = [&, r](const SumKnobs& k, std::vector<float>& x) {
      meeting.join();
      if (r != 2 || !(k == SumKnobs{8, Method::tree})) return;
      if (!wrong) throw std::runtime_error("rank 2 has no tree");
      x[0] = -1;
    };
    rank.sum.snapshot = [](Stream, std::vector<float>& x, int) {
      return [&x, copy = x](Stream) { x = copy; };
    };
    rank.sum.verify = [](std::vector<float>& x, int n) { return x[0] == static_cast<float>(n); };
  }
  job.tune(5);
  CHECK_FALSE(meeting.late);
  REQUIRE(job.agreed(kPlan));
  CHECK(job.others_than({1, 0}) == 0);
  for (const Rank& rank : job.ranks) CHECK(rank.caller->calls == job.ranks[0].caller->calls);
  const TuneResult& seen = job.ranks[2].result;
  for (const Candidate& c : seen.candidates)
    if (c.config == Values{8, 1}) {
      CHECK(c.status == (wrong ? CandidateStatus::wrong_result : CandidateStatus::launch_failed));
      if (!wrong) CHECK(c.reason == "rank 2 has no tree");
    }
}

TEST_CASE("a guard has a function's calls, not what comes before and after them",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(2, directory.path());
  Findings findings;
  const bool fails = GENERATE(false, true);
  NotedGuard noted[2];
  int restored = 0;
  for (int r = 0; r < 2; ++r) {
    Rank& rank = job.ranks[static_cast<std::size_t>(r)];
    rank.sum.communicates = true;
    rank.caller->options.tuning.together.guard = noted[r].guard();
    rank.caller->work = [&, r](const SumKnobs&, std::vector<float>&) {
      findings.check(noted[r].inside);
    };
    rank.sum.snapshot = [&, r](Stream, std::vector<float>& x, int) {
      findings.check(!noted[r].inside);
      return [&, r, copy = x](Stream) {
        findings.check(!noted[r].inside);
        x = copy;
        if (r == 1 && ++restored == 1 && fails) throw std::runtime_error("cannot restore it");
      };
    };
    rank.sum.verify = [&, r](std::vector<float>&, int) {
      findings.check(!noted[r].inside);
      return true;
    };
  }
  job.tune(5);
  CHECK(job.agreed(kPlan));
  CHECK(findings.wrong() == "");
  CHECK(restored > 1);
  const auto count = [&](int rank, CandidateStatus status) {
    return job.ranks[static_cast<std::size_t>(rank)].result.count(status);
  };
  CHECK(count(1, CandidateStatus::launch_failed) == (fails ? 1 : 0));
  // The guard lets what is thrown pass on that rank alone, so the other one goes on.
  CHECK((noted[0].calls == noted[1].calls) == !fails);
  for (const NotedGuard& guard : noted) CHECK(guard.calls > 0);
}

TEST_CASE("knobs that no rank could verify are not used", "[runtime][function][ranks]") {
  Directory directory;
  Job job(2, directory.path());
  for (Rank& rank : job.ranks) rank.sum.verify = [](std::vector<float>&, int) { return false; };
  std::vector<std::thread> threads;
  for (Rank& rank : job.ranks)
    threads.emplace_back([&rank] {
      const auto function = rank.caller->tuned(rank.sum);
      const auto said = [](const auto& call) -> std::string {
        try {
          call();
        } catch (const TuningFailedError& error) {
          return error.what();
        }
        return "nothing";
      };
      const std::string first = said([&] { function({}, rank.x, 5); });
      const int calls = rank.caller->total();
      const std::string second = said([&] { function({}, rank.x, 5); });
      const bool again = rank.caller->total() != calls;
      rank.thrown = first.find("8 candidates can be used") == std::string::npos ? first
                    : second != first                                           ? second
                    : again                                                     ? "again"
                                                                                : "";
    });
  for (std::thread& thread : threads) thread.join();
  for (const Rank& rank : job.ranks) CHECK(rank.thrown == "");
}

TEST_CASE("ranks with different spaces use their defaults, and say why",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(3, directory.path());
  job.ranks[1].sum.space =
      Space<SumKnobs, SumProblem>{{2, Method::ring}}.values(&SumKnobs::blocks, {1, 2, 4});
  job.tune(5);
  CHECK(job.agreed(kDefaults));
  CHECK(job.others_than({2, 0}) == 0);
  for (const Rank& rank : job.ranks) {
    CHECK(rank.caller->total() == 0);
    CHECK(rank.result.agreed->why.find("rank 1") != std::string::npos);
  }
  CHECK(directory.entries(".json").empty());
}

TEST_CASE("ranks with different versions of a function use their defaults",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(2, directory.path());
  job.ranks[1].sum.version = "2";
  job.tune(5);
  CHECK(job.agreed(kDefaults));
  CHECK(job.others_than({2, 0}) == 0);
}

TEST_CASE("what some ranks have is given to the others", "[runtime][function][ranks]") {
  Directory directory;
  {
    Caller alone(directory.path() / "store1");
    alone.seconds[{4, Method::tree}] = 1e-4;
    std::vector<float> x(1, 0.0f);
    alone.tuned(alone.sum())({}, x, 5);
  }
  Job job(3, directory.path());
  job.tune(5);
  CHECK(job.agreed(kPlan));
  CHECK(job.others_than({4, 1}) == 0);
  for (const Rank& rank : job.ranks) CHECK(rank.caller->total() == 0);
}

TEST_CASE("always_retune on all ranks measures again, in step", "[runtime][function][ranks]") {
  Directory directory;
  for (int time = 0; time < 2; ++time) {
    Job job(2, directory.path());
    Meeting meeting(2);
    for (Rank& rank : job.ranks) {
      rank.sum.communicates = true;
      rank.caller->function_options.always_retune = true;
      rank.caller->work = [&](const SumKnobs&, std::vector<float>&) { meeting.join(); };
    }
    job.tune(5);
    CHECK(job.agreed(kPlan));
    CHECK_FALSE(meeting.late);
    CHECK(job.ranks[0].caller->total() > 8);
  }
}

TEST_CASE("what was agreed with one group is no choice for another", "[runtime][function][ranks]") {
  Directory directory;
  auto pair_ends = thread_communicators(2), all_ends = thread_communicators(3);
  Meeting pair_meets(2), all_meet(3);
  std::vector<std::thread> threads;
  std::vector<int> in_all(3, 0), by_one(3, 0);
  std::vector<std::string> thrown(3);
  for (std::size_t r = 0; r < 3; ++r)
    threads.emplace_back(
        [&, r, all = std::shared_ptr<Communicator>(std::move(all_ends[r])),
         two = r < 2 ? std::shared_ptr<Communicator>(std::move(pair_ends[r])) : nullptr] {
          try {
            Caller caller(directory.path() / std::to_string(r));
            caller.options.store.disk = false;
            Meeting* meets = &pair_meets;
            caller.seconds[{r == 0 ? 1 : 8, Method::ring}] = 5e-4;
            caller.seconds[{4, Method::tree}] = 6e-4;
            caller.work = [&](const SumKnobs&, std::vector<float>&) { meets->join(); };
            Sum sum = caller.sum();
            sum.communicates = true;
            const auto f = caller.tuned(sum);
            std::vector<float> mine(1, 0.0f);
            if (two) f.with({.ranks = two})({}, mine, 5);
            meets = &all_meet;
            const int before = caller.total();
            f.with({.ranks = all})({}, mine, 5);  // rank 2 hears of this problem for the first time
            in_all[r] = caller.total() - before;
            const auto with_all = f.with({.ranks = all});
            with_all({}, mine, 5);
            by_one[r] = caller.total() - before - in_all[r];
          } catch (const std::exception& error) {
            thrown[r] = error.what();
          }
        });
  for (std::thread& thread : threads) thread.join();
  CHECK(thrown == std::vector<std::string>(3));
  CHECK_FALSE(pair_meets.late);
  CHECK_FALSE(all_meet.late);
  CHECK(in_all == std::vector<int>(3, in_all[0]));
  CHECK(by_one == std::vector<int>(3, 1));
}

TEST_CASE("each rank's log tells what was tried, what was agreed and why",
          "[runtime][function][ranks]") {
  Directory directory;
  const fs::path logs = directory.path() / "logs";
  Job job(2, directory.path());
  for (Rank& rank : job.ranks) {
    rank.caller->function_options.log_folder = logs;
    rank.caller->seconds[{4, Method::tree}] = 1e-4;
    rank.sum.versions = {{"library", "7.1"}};
  }
  job.ranks[1].caller->work = [](const SumKnobs& k, std::vector<float>&) {
    if (k.blocks == 8) throw std::runtime_error("eight are too many");
  };
  job.tune(5);
  for (int r = 0; r < 2; ++r) {
    const std::string text = read_text(logs / ("sum.rank-" + std::to_string(r) + ".log"));
    CAPTURE(text);
    for (const std::string& part :
         {"rank " + std::to_string(r) + " of 2", std::string("there is no record"),
          std::string("sum calls with blocks=1,method=tree"),
          std::string("candidate blocks=4,method=tree: measured, 0.1 ms"),
          std::string("winner blocks=4,method=tree"), std::string("library 7.1"),
          "plan " + job.ranks[0].result.agreed->plan_digest})
      CHECK(text.find(part) != std::string::npos);
    CHECK((text.find("eight are too many") != std::string::npos) == (r == 1));
  }
}

TEST_CASE("a rank whose callable fails with all knobs: all ranks are told that none can be used",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(2, directory.path());
  job.ranks[1].caller->work = [](const SumKnobs&, std::vector<float>&) {
    throw std::runtime_error("nothing works here");
  };
  job.tune(5);
  CHECK_THAT(job.ranks[0].thrown, Catch::Contains("it failed on another rank"));
  CHECK_THAT(job.ranks[1].thrown, Catch::Contains("nothing works here"));
  CHECK(directory.entries(".json").empty());
}

TEST_CASE("a rank whose tuning of a function was refused does not ask the others again",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(2, directory.path());
  job.ranks[1].caller->options.tuning.candidate_seconds = -1;
  Findings findings;
  const auto begin = std::chrono::steady_clock::now();
  std::thread other([&] {
    Rank& rank = job.ranks[0];
    const auto function = rank.caller->tuned(rank.sum);
    const TuneResult result = function.tune({}, rank.x, 5);
    findings.check(result.agreed->outcome == kDefaults && !result.agreed->broken);
  });
  Rank& rank = job.ranks[1];
  auto function = rank.caller->tuned(rank.sum);
  findings.check_throws<UserError>([&] { function.tune({}, rank.x, 5); }, "a limit is");
  other.join();
  // No rank answers any more.
  findings.check_throws<UserError>([&] { function({}, rank.x, 5); }, "a limit is");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
  CHECK(findings.wrong() == "");
}

TEST_CASE("ranks that share a store write one record", "[runtime][function][ranks]") {
  Directory directory;
  Job job(4, directory.path(), true);
  job.tune(5);
  CHECK(job.agreed(kPlan));
  CHECK(directory.entries(".json").size() == 1);
  CHECK(directory.entries(".kiln").empty());
}

TEST_CASE("in step: ranks end together when time is over, with what was timed",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(2, directory.path());
  Meeting meeting(2);
  for (Rank& rank : job.ranks) {
    rank.caller->options.tuning.max_seconds = 0.5;
    rank.caller->seconds[{2, Method::ring}] = 1e-4;
    rank.sum.communicates = true;
    rank.caller->work = [&](const SumKnobs&, std::vector<float>&) {
      meeting.join();
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    };
  }
  // For one alone it is over sooner.
  job.ranks[1].caller->options.tuning.max_seconds = 0.2;
  job.tune(5);
  CHECK_FALSE(meeting.late);
  REQUIRE(job.agreed(kPlan));
  CHECK(job.others_than({2, 0}) == 0);
  for (const Rank& rank : job.ranks) {
    CHECK(rank.caller->calls == job.ranks[0].caller->calls);
    const auto timed = rank.result.count(CandidateStatus::measured);
    CHECK(timed >= 1);
    CHECK(timed <= 3);
    CHECK(rank.result.count(CandidateStatus::not_tried) == 8 - timed);
    CHECK_FALSE(rank.result.complete);
    CHECK(rank.result.end == SearchEnd::seconds);
  }
  CHECK(directory.entries(".json").size() == 2);
}

TEST_CASE("in step: one rank is stopped, and all end with what was timed",
          "[runtime][function][ranks]") {
  Directory directory;
  Job job(3, directory.path());
  Meeting meeting(3);
  std::stop_source stop;
  job.ranks[1].caller->options.tuning.stop = stop.get_token();
  for (Rank& rank : job.ranks) {
    rank.sum.communicates = true;
    rank.caller->work = [&](const SumKnobs&, std::vector<float>&) {
      meeting.join();
      if (&rank == &job.ranks[1] && rank.caller->calls.size() == 3) stop.request_stop();
    };
  }
  job.tune(5);
  CHECK_FALSE(meeting.late);
  REQUIRE(job.agreed(kPlan));
  for (const Rank& rank : job.ranks) {
    CHECK(rank.caller->calls == job.ranks[0].caller->calls);
    CHECK(rank.caller->calls.size() == 3);
    CHECK(rank.result.count(CandidateStatus::measured) == 3);
    CHECK(rank.result.count(CandidateStatus::not_tried) == 5);
    CHECK_FALSE(rank.result.complete);
  }
  CHECK(directory.entries(".json").size() == 3);
}
