// Ranks in trouble, ranks that differ, and exchanges that bring anything: all end alike, in time.
#include <cmath>

#include "job.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"

using namespace job;
using kiln::RankOptions;
using kiln::RankReduction;
using kiln::RankStrategy;
using Kind = Conclusion::Kind;

TEST_CASE("a shared record that is not what was voted for is measured anew", "[ranks]") {
  auto all = inputs(3, 2);
  all[1].problems[0].record = Record{{1, 2}, 0};
  Job job(all);
  job.spoil = [](const Exchange& e, auto& bytes, auto&) {
    if (e.kind == Exchange::Kind::broadcast) bytes[9] ^= std::byte{1};
  };
  job.run(fastest(1));
  CHECK(job.conclusion(0).plan.picks[0].candidate == 1);
  check_same_exchanges(job);
}

TEST_CASE("a gather that says otherwise of this rank than it said is damaged", "[ranks]") {
  Job job(inputs(2, 2));
  job.spoil = [](const Exchange& e, auto& bytes, auto&) {
    if (e.sequence == 1) bytes[0] = std::byte{1};  // rank 0 is said to have a record
  };
  job.run(ones);
  CHECK(job.conclusion(0).why.text == "the result of a gather was damaged");
  CHECK(job.conclusion(0).broken);
}

TEST_CASE("trouble in lockstep stops all before the next launch", "[ranks]") {
  RankOptions options;
  options.lockstep = true;
  for (const RankReduction op : {RankReduction::max, RankReduction::mean}) {
    options.reduction = op;
    Job job(inputs(3, 5, options));
    job.run([&job](int rank, Work::Kind kind, std::size_t, std::size_t c) {
      if (rank == 1 && kind == Work::Kind::lockstep && c == 1) job.troubles[1] = "device lost";
      return 1.0F;
    });
    check_same_exchanges(job);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(job.works[r].size() == 3U + (r != 1));  // build, candidates 0 and 1, what was chosen
      CHECK(job.conclusion(r).kind == Kind::defaults);
    }
  }
}

TEST_CASE("a rank that comes too late launches nothing for which the others have given up",
          "[ranks]") {
  RankOptions options;
  options.lockstep = true;
  Job job(inputs(3, 5, options));
  const auto all_are_ready = [](const Exchange& e) { return e.values.size() == 5 + 1; };
  job.gives_up = [&](std::size_t rank, const Exchange& e) { return rank == 1 && all_are_ready(e); };
  job.run(ones);
  for (const std::vector<Work>& works : job.works) {
    REQUIRE(works.size() == 1);
    CHECK(works[0].kind == Work::Kind::build);
  }
  CHECK(job.conclusion(1).broken);
}

TEST_CASE("a rank in trouble is named with its reason, and nobody hangs", "[ranks]") {
  for (const RankStrategy strategy :
       {RankStrategy::replicate, RankStrategy::shard, RankStrategy::leader}) {
    RankOptions options;
    options.strategy = strategy;
    auto all = inputs(3, 4, options);
    Job job(all);
    job.troubles[0] = "cuMemAlloc: out of memory (2)";
    job.run(ones);
    check_same_exchanges(job);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(job.conclusion(r).kind == Kind::defaults);
      CHECK(job.conclusion(r).why.describe() == "rank 0 failed: cuMemAlloc: out of memory (2)");
      CHECK_FALSE(job.conclusion(r).broken);
    }
  }
}

TEST_CASE("no plan names what some rank cannot build", "[ranks]") {
  for (const bool cached : {false, true})
    for (const RankStrategy strategy :
         {RankStrategy::replicate, RankStrategy::shard, RankStrategy::leader}) {
      RankOptions options;
      options.strategy = strategy;
      options.finalists = 0;
      auto all = inputs(3, 4, options, 2);
      for (auto& in : all) {
        in.store = 1;
        if (cached) in.problems[0].record = in.problems[1].record = Record{{4, 3, 2, 1}, 3};
      }
      const auto run = [&](auto prepare, auto measure) {
        Job job(all);
        prepare(job);
        job.run(measure);
        check_same_exchanges(job);
        for (std::size_t r = 0; r < 3; ++r) {
          CHECK(job.conclusion(r).kind == Kind::defaults);
          CHECK_FALSE(job.conclusion(r).broken);
          CHECK(job.saves[r].empty());
        }
        return job.conclusion(2).why.describe();
      };
      const auto fails = [](int rank, Work::Kind kind, std::size_t p, std::size_t c) {
        if (kind == Work::Kind::build) return rank == 1 && p == 1 && c == 3 ? kFailed : 1.0F;
        return 9.0F - static_cast<float>(c);
      };
      const auto works = [&](int, Work::Kind kind, std::size_t p, std::size_t c) {
        return fails(0, kind, p, c);
      };
      CHECK(run([](Job&) {}, fails) ==
            "rank 1 failed: cannot build the chosen config of problem 1");
      CHECK(run([](Job& job) { job.unanswered = {2}; }, works) ==
            "rank 2 failed: cannot build the chosen config of problem 0");
    }
}

TEST_CASE("a rank that cannot build what was chosen may say better why", "[ranks]") {
  auto all = inputs(2, 2);
  for (auto& in : all) in.problems[0].record = Record{{2, 1}, 1};
  Job job(all);
  job.troubles[1] = "nvrtc: file not found";
  job.run(ones);
  CHECK(job.conclusion(0).why.describe() == "rank 1 failed: nvrtc: file not found");
}

TEST_CASE("a rank that asks for something else is named", "[ranks]") {
  const auto named = [](auto change) {
    auto all = inputs(3, 4);
    change(all[1]);
    Job job(all);
    job.run(ones);
    CHECK(job.exchanges[0].size() == 1);
    CHECK(job.conclusion(0).kind == Kind::defaults);
    CHECK(job.conclusion(0).why.ranks == std::vector<int>{1});
    return job.conclusion(2).why.text;
  };
  CHECK(named([](auto& in) { in.identity.build = 0; }) ==
        "another build of Kiln or of the compiler");
  CHECK(named([](auto& in) { in.identity.target = 0; }) == "another target");
  CHECK(named([](auto& in) { in.identity.kernel = 0; }) == "another kernel");
  CHECK(named([](auto& in) { in.identity.problems = 0; }) ==
        "other problems, or other options of timing");
  CHECK(named([](auto& in) { in.identity.candidates = 0; }) == "another candidate list");
  // Even if its digest lies about it: the sizes of exchanges depend on the counts.
  CHECK(named([](auto& in) { in.problems[0].candidates = 5; }) == "another candidate list");
  CHECK(named([](auto& in) { in.options.margin = 0.1F; }) == "other settings for tuning together");
  CHECK(named([](auto& in) { in.settles = true; }) == "other settings for tuning together");
}

TEST_CASE("ranks that draw other conclusions are found out", "[ranks]") {
  Job job(inputs(3, 2));
  job.run(fastest(0));
  const auto good = job.conclusion(0).digest;
  Job other(inputs(3, 2));
  other.spoil = [](const Exchange& e, auto& bytes, auto&) {
    if (e.sequence == 3) bytes[128 + 8] ^= std::byte{1};  // rank 1's plan
  };
  other.run(ones);
  CHECK(other.conclusion(0).kind == Kind::defaults);
  CHECK(other.conclusion(0).why.ranks == std::vector<int>{1});
  CHECK(good != kiln::Digest{});
}

TEST_CASE("the machine's own patience ends every wait", "[ranks]") {
  Agreement machine(inputs(2, 2)[0]);
  CHECK_FALSE(machine.wakes());
  const auto actions = machine.handle(Begin{}, 100);
  CHECK(std::get<Exchange>(actions[0]).deadline == 160);
  CHECK(machine.handle(Tick{}, 160.5).empty());
  const auto end = machine.handle(Tick{}, *machine.wakes());
  REQUIRE(end.size() == 2);
  CHECK(std::holds_alternative<Abort>(end[0]));
  CHECK(machine.conclusion()->broken);
  CHECK(machine.conclusion()->why.kind == kiln::RankFailure::Kind::timeout);
  // The end is the end.
  const std::vector<std::byte> late(256);
  CHECK(machine.handle(Completed{0, late, {}}, 162).empty());
  CHECK(machine.handle(Begin{}, 163).empty());
  CHECK(machine.handle(Tick{}, 1000).empty());
}

TEST_CASE("events that do not fit change nothing", "[ranks]") {
  Agreement machine(inputs(2, 2)[0]);
  CHECK(machine.handle(Tick{}, 1e9).empty());
  CHECK(machine.handle(Worked{}, 0).empty());
  CHECK(machine.handle(Settled{true}, 0).empty());
  CHECK(machine.handle(Failed{0, {}}, 0).empty());
  machine.handle(Begin{}, 0);
  CHECK(machine.handle(Begin{}, 0).empty());
  CHECK(machine.handle(Completed{7, {}, {}}, 0).empty());
  CHECK(machine.handle(Failed{7, {}}, 0).empty());
  CHECK_FALSE(machine.conclusion());
}

TEST_CASE("results of a wrong size break the end, not the process", "[ranks]") {
  Agreement machine(inputs(2, 2)[0]);
  machine.handle(Begin{}, 0);
  machine.handle(Completed{0, {}, {}}, 0);
  CHECK(machine.conclusion()->broken);
}

TEST_CASE("garbage from another rank is named, never obeyed", "[ranks]") {
  std::uint64_t state = 1;
  const auto random = [&state] {
    return state = state * 6364136223846793005 + 1442695040888963407;
  };
  for (int round = 0; round < 2000; ++round) {
    auto all = inputs(3, 4, {}, 2);
    if (round % 2) all[0].problems[1].record = Record{{1, 2, 3, 4}, 0};
    Job job(all);
    const std::uint64_t at = random() % 6;
    job.spoil = [&](const Exchange& e, auto& bytes, auto& values) {
      if (e.sequence != at) return;
      for (int i = 0; i < 5 && !bytes.empty(); ++i)
        bytes[(random() >> 20) % bytes.size()] ^= static_cast<std::byte>(random() >> 40);
      for (float& v : values) v = random() & 1 ? std::nanf("") : -1.0F;
    };
    job.run([](int, Work::Kind, std::size_t, std::size_t c) { return 1 + static_cast<float>(c); });
    for (Agreement& machine : job.machines) machine.handle(Tick{}, 1e9);  // ranks that wait in vain
    for (std::size_t r = 0; r < 3; ++r) {
      REQUIRE(job.machines[r].conclusion());
      CHECK(job.conclusion(r).kind == job.conclusion(0).kind);
      CHECK(job.conclusion(r).digest == job.conclusion(0).digest);
    }
  }
}

TEST_CASE("input that makes no sense is refused by name", "[ranks]") {
  const auto refused = [](auto change) {
    auto in = inputs(2, 2)[0];
    change(in);
    CHECK_THROWS_AS(Agreement(in), kiln::UserError);
  };
  refused([](auto& in) { in.rank = 2; });
  refused([](auto& in) { in.options.leader = 2; });
  refused([](auto& in) { in.options.step_seconds = 0; });
  refused([](auto& in) { in.options.tune_seconds = std::nan(""); });
  refused([](auto& in) { in.options.margin = -1; });
  refused([](auto& in) { in.problems[0].candidates = 0; });
  refused([](auto& in) { in.problems[0].costs.resize(3); });
  refused([](auto& in) { in.compile_threads = 0; });
  refused([](auto& in) {
    in.options.lockstep = true;
    in.options.strategy = RankStrategy::shard;
  });
}
