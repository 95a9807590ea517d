// What ranks agree on, by which work and which exchanges.
#include <cmath>
#include <set>

#include "job.hpp"
#include "kiln_test.hpp"

using namespace job;
using kiln::OnPartialCache;
using kiln::RankOptions;
using kiln::RankReduction;
using kiln::RankStrategy;
using Kind = Conclusion::Kind;

namespace {

float only_builds(int, Work::Kind kind, std::size_t, std::size_t) {
  if (kind != Work::Kind::build) throw std::logic_error("nothing is to be timed");
  return 1;
}

std::size_t timed(const Job& job, std::size_t r) {
  std::size_t count = 0;
  for (const Work& w : job.works[r])
    if (!w.builds())
      for (const Work::Item& item : w.items) count += item.candidates.size();
  return count;
}

}  // namespace

TEST_CASE("the slowest rank's time counts, or the mean", "[ranks]") {
  // Candidate 1 is fast except on rank 2; candidate 2 is equally fast on all ranks.
  const auto measure = [](int rank, Work::Kind, std::size_t, std::size_t c) {
    return c == 0 ? 10.0F : c == 1 ? (rank == 2 ? 9.0F : 1.0F) : 6.0F;
  };
  for (const auto& [op, winner] : {std::pair(RankReduction::max, 2U), {RankReduction::mean, 1U}}) {
    RankOptions options;
    options.reduction = op;
    Job job(inputs(3, 3, options));
    job.run(measure);
    check_same_exchanges(job);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(job.conclusion(r).kind == Kind::plan);
      CHECK(job.conclusion(r).plan.picks[0].candidate == winner);
      CHECK(job.conclusion(r).digest == job.conclusion(0).digest);
      CHECK(job.conclusion(r).measured == 3);
    }
  }
}

TEST_CASE("a candidate that failed on one rank is nobody's choice", "[ranks]") {
  for (const RankReduction op : {RankReduction::max, RankReduction::mean}) {
    RankOptions options;
    options.reduction = op;
    Job job(inputs(3, 3, options));
    job.run([](int rank, Work::Kind, std::size_t, std::size_t c) {
      return c == 1 ? (rank == 1 ? kFailed : 1.0F) : 5.0F - static_cast<float>(c);
    });
    CHECK(job.conclusion(0).plan.picks[0].candidate == 2);
    CHECK(job.exchanges[0].size() == 5);  // digest, vote, one reduction, compare, confirm
  }
}

TEST_CASE("when nothing works anywhere, the plan says so", "[ranks]") {
  Job job(inputs(2, 3));
  job.run([](auto...) { return kFailed; });
  CHECK(job.conclusion(0).kind == Kind::plan);
  CHECK(std::isinf(job.conclusion(0).plan.picks[0].seconds));
  CHECK(job.conclusion(0).plan.picks[0].candidate == 0);
}

TEST_CASE("shards are disjoint, whole, and the best of them are timed by all", "[ranks]") {
  RankOptions options;
  options.strategy = RankStrategy::shard;
  options.finalists = 2;
  auto all = inputs(4, 20, options, 2);
  Job job(all);
  job.run([](int rank, Work::Kind, std::size_t, std::size_t c) {
    // Rank 3 sees candidate 7 as slow, so it wins only the first round.
    return c == 7 ? (rank == 3 ? 40.0F : 1.0F) : 20.0F - static_cast<float>(c) / 4;
  });
  check_same_exchanges(job);
  std::vector<int> seen(40);
  for (std::size_t r = 0; r < 4; ++r) {
    REQUIRE(job.works[r].size() == 3);  // the shard, the finals, what was chosen
    std::size_t mine = 0;
    for (const Work::Item& item : job.works[r][0].items)
      for (const std::size_t c : item.candidates) ++seen[item.problem * 20 + c], ++mine;
    CHECK(mine == 10);
    for (const Work::Item& item : job.works[r][1].items) CHECK(item.candidates.size() == 3);
    CHECK(job.conclusion(r).plan.picks[0].candidate == 19);
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int s) { return s == 1; }));
}

TEST_CASE("a problem that one rank has as a whole is timed by no other", "[ranks]") {
  RankOptions options;
  options.strategy = RankStrategy::shard;
  for (const std::size_t problems : {4U, 5U}) {  // the fifth is shared out
    Job job(inputs(4, 20, options, problems));
    job.run([](int rank, Work::Kind, std::size_t p, std::size_t c) {
      return 1 + static_cast<float>(c == p ? 0 : c + 1) + 0.1F * static_cast<float>(rank);
    });
    check_same_exchanges(job);
    std::vector<int> seen(problems);
    for (std::size_t r = 0; r < 4; ++r) {
      for (const Work& work : job.works[r]) {
        if (work.kind == Work::Kind::time)
          for (const Work::Item& item : work.items) ++seen.at(item.problem);
        if (work.kind != Work::Kind::finals) continue;
        REQUIRE(work.items.size() == 1);
        CHECK(work.items[0].problem == 4);
      }
      const auto finals = std::ranges::count(job.works[r], Work::Kind::finals, &Work::kind);
      CHECK(finals == (problems == 5 ? 1 : 0));
      const Conclusion conclusion = job.conclusion(r);
      REQUIRE(conclusion.kind == Conclusion::Kind::plan);
      for (std::size_t p = 0; p < problems; ++p) CHECK(conclusion.plan.picks[p].candidate == p);
    }
    for (std::size_t p = 0; p < problems; ++p) CHECK(seen[p] == (p < 4 ? 1 : 4));
  }
}

TEST_CASE("shards follow what candidates cost, by the largest word of any rank", "[ranks]") {
  RankOptions options;
  options.strategy = RankStrategy::shard;
  options.finalists = 0;
  auto all = inputs(2, 4, options);
  all[1].problems[0].costs = {{1, 1}, {9, 9}, {1, 1}, {1, 1}};  // rank 0 knows nothing
  Job job(all);
  job.run(ones);
  CHECK(std::max(timed(job, 0), timed(job, 1)) == 3);
}

TEST_CASE("ranks with unlike machines split the candidates alike", "[ranks]") {
  RankOptions options;
  options.strategy = RankStrategy::shard;
  options.finalists = 0;
  auto all = inputs(3, 64, options);
  for (std::size_t r = 0; r < 3; ++r) {
    all[r].compile_threads = 1 + 3 * static_cast<int>(r);
    all[r].overlap = r == 1;
    for (std::size_t c = 0; c < 64; ++c)
      all[r].problems[0].costs.push_back(
          {static_cast<float>(1 + 7 * c % 5), 0.1F * static_cast<float>(1 + c % 9)});
  }
  Job job(all);
  job.run(ones);
  std::vector<int> seen(64);
  for (const auto& works : job.works)
    for (const Work& work : works)
      if (work.kind == Work::Kind::time)
        for (const std::size_t c : work.items[0].candidates) ++seen[c];
  CHECK(seen == std::vector<int>(64, 1));
  for (const float time : job.conclusion(0).plan.records[0].times) CHECK(time == 1);
}

TEST_CASE("one rank alone splits nothing, and times nothing twice", "[ranks]") {
  RankOptions options;
  options.strategy = RankStrategy::shard;
  Job job(inputs(1, 4, options));
  job.run(ones);
  CHECK(timed(job, 0) == 4);
  CHECK(job.exchanges[0].size() == 5);
  CHECK(job.conclusion(0).kind == Kind::plan);
}

TEST_CASE("a leader times, all receive", "[ranks]") {
  RankOptions options;
  options.strategy = RankStrategy::leader;
  options.leader = 1;
  Job job(inputs(3, 4, options));
  job.run(fastest(2));
  CHECK(timed(job, 0) == 0);
  CHECK(timed(job, 1) == 4);
  CHECK(job.conclusion(2).plan.picks[0] == Pick{2, 1});
}

TEST_CASE("a record that all have is the answer", "[ranks]") {
  auto all = inputs(3, 2);
  for (auto& in : all) in.problems[0].record = Record{{2, 1}, 1}, in.store = 5;
  Job job(all);
  job.run(only_builds);
  CHECK(job.exchanges[0].size() == 4);
  CHECK(job.conclusion(2).plan.picks[0] == Pick{1, 1});
  CHECK(job.conclusion(2).notes.empty());
  CHECK(job.saves[0].empty());
}

TEST_CASE("a record that some have is shared, most holders first, and saved where missing",
          "[ranks]") {
  auto all = inputs(5, 2);
  all[0].problems[0].record = Record{{5, 4}, 1};
  all[3].problems[0].record = all[4].problems[0].record = Record{{1, 2}, 0};
  for (std::size_t r = 0; r < 5; ++r) all[r].store = r < 3 ? 7 : 8;  // two file systems
  Job job(all);
  job.run(only_builds);
  check_same_exchanges(job);
  CHECK(job.exchanges[0][2].kind == Exchange::Kind::broadcast);
  CHECK(job.exchanges[0][2].root == 3);
  for (std::size_t r = 0; r < 5; ++r) {
    CHECK(job.conclusion(r).plan.picks[0] == Pick{0, 1});
    CHECK(job.conclusion(r).notes ==
          std::vector<std::string>{
              "problem 0: no such record on ranks 0, 1, 2, so all take rank 3's"});
    CHECK(job.saves[r] == (r == 0 ? std::vector<std::size_t>{0} : std::vector<std::size_t>{}));
  }
}

TEST_CASE("or everyone tunes, if so asked", "[ranks]") {
  RankOptions options;
  options.on_partial_cache = OnPartialCache::retune;
  auto all = inputs(3, 2, options);
  all[2].problems[0].record = Record{{1, 2}, 0};
  Job job(all);
  job.run(fastest(1));
  CHECK(job.conclusion(2).plan.picks[0].candidate == 1);
  CHECK(job.conclusion(1).notes ==
        std::vector<std::string>{"problem 0: no record on ranks 0, 1, so all tune"});
}

TEST_CASE("unlike devices time the same candidates, and each kind keeps its own record",
          "[ranks]") {
  auto all = inputs(4, 3);
  all[2].identity.device = all[3].identity.device = 7;
  // Ranks on the other device must not use this record.
  all[0].problems[0].record = Record{{3, 2, 1}, 2};
  for (AgreementInput& in : all) in.store = 9;
  Job job(all);
  job.run(fastest(1));
  check_same_exchanges(job);
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(job.conclusion(r).kind == Kind::plan);
    CHECK(job.conclusion(r).plan.picks[0].candidate == 1);
    CHECK(job.conclusion(r).digest == job.conclusion(0).digest);
    CHECK(job.saves[r].empty() == (r == 1 || r == 3));
  }
}

TEST_CASE("one rank per store saves what was tuned", "[ranks]") {
  auto all = inputs(4, 2, {}, 2);
  all[0].store = 0, all[1].store = 3, all[2].store = 3, all[3].store = 4;
  Job job(all);
  job.run([](int, Work::Kind, std::size_t p, std::size_t) { return p == 1 ? kFailed : 1.0F; });
  CHECK(job.saves[0].empty());
  CHECK(job.saves[1] == std::vector<std::size_t>{0});  // of problem 1 there is nothing to keep
  CHECK(job.saves[2].empty());
  CHECK(job.saves[3] == std::vector<std::size_t>{0});
}

TEST_CASE("in lockstep all ranks launch the same, and only what all can", "[ranks]") {
  RankOptions options;
  options.lockstep = true;
  for (const RankReduction op : {RankReduction::max, RankReduction::mean}) {
    options.reduction = op;
    Job job(inputs(3, 5, options, 2));
    job.run([](int rank, Work::Kind kind, std::size_t, std::size_t c) {
      if (kind == Work::Kind::build) return c == 2 && rank == 1 ? kFailed : 1.0F;
      return c == 3 && rank == 0 ? kFailed : 9.0F - static_cast<float>(c);  // 3 fails when launched
    });
    check_same_exchanges(job);
    for (std::size_t r = 0; r < 3; ++r) {
      std::vector<std::size_t> launched;
      for (const Work& w : job.works[r])
        if (w.kind == Work::Kind::lockstep && !w.sample)
          launched.push_back(w.items[0].candidates[0]);
      CHECK(launched == std::vector<std::size_t>{0, 1, 3, 4, 0, 1, 3, 4});
      CHECK(job.conclusion(r).plan.picks[0].candidate == 4);
      CHECK(std::isinf(job.conclusion(r).plan.records[1].times[3]));
    }
  }
}

TEST_CASE("in lockstep the best take turns again, and the later times decide", "[ranks]") {
  RankOptions options;
  options.lockstep = true;
  options.finalists = 2;
  for (const RankReduction op : {RankReduction::max, RankReduction::mean}) {
    options.reduction = op;
    Job job(inputs(3, 5, options));
    std::vector<int> trials(3 * 5);
    job.run([&](int rank, Work::Kind kind, std::size_t, std::size_t c) {
      if (kind != Work::Kind::lockstep) return 1.0F;
      const int trial = trials[static_cast<std::size_t>(rank) * 5 + c]++;
      const float first[] = {5e-4F, 4e-4F, 3e-4F, 1e-4F, 2e-4F};
      if (trial == 0) return first[c];
      if (c == 4 && trial == 2) return 9e-4F;  // one sample that was disturbed
      return c == 0 ? 5e-4F : c == 3 ? 3.5e-4F : 2.1e-4F;
    });
    check_same_exchanges(job);
    for (std::size_t r = 0; r < 3; ++r) {
      std::vector<std::size_t> samples;
      for (const Work& w : job.works[r]) {
        if (!w.sample) continue;
        CHECK(w.sample->index == samples.size() / 3);
        CHECK(w.sample->in_a_row == 20);  // 2 ms of the best
        samples.push_back(w.items[0].candidates[0]);
      }
      REQUIRE(samples.size() == 3 * 7);
      for (std::size_t i = 0; i < samples.size(); ++i)
        CHECK(samples[i] == (std::size_t[]){0, 3, 4}[i % 3]);
      const Record& record = job.conclusion(r).plan.records[0];
      CHECK(job.conclusion(r).plan.picks[0].candidate == 4);
      CHECK(record.winner == 4);
      CHECK(record.times[4] == Approx(2.1e-4F));
      CHECK(record.times[3] == Approx(3.5e-4F));
      CHECK(record.times[2] == Approx(3e-4F));  // was not in the finals
    }
  }
}

TEST_CASE("in lockstep the best of each kind is in the finals", "[ranks]") {
  RankOptions options;
  options.lockstep = true;
  options.finalists = 2;
  auto all = inputs(2, 7, options);
  for (auto& in : all) in.problems[0].kinds = {2, 1, 1, 1, 2, 2, 3};
  Job job(all);
  std::vector<int> trials(2 * 7);
  job.run([&](int rank, Work::Kind kind, std::size_t, std::size_t c) {
    if (kind != Work::Kind::lockstep) return 1.0F;
    const int trial = trials[static_cast<std::size_t>(rank) * 7 + c]++;
    const float first[] = {9e-4F, 1e-4F, 2e-4F, 3e-4F, 5e-4F, 4e-4F, kFailed};
    return trial > 0 && c == 5 ? 1e-5F : first[c];  // what one sample took for slow
  });
  check_same_exchanges(job);
  for (std::size_t r = 0; r < 2; ++r) {
    std::set<std::size_t> finalists;
    for (const Work& w : job.works[r])
      if (w.sample) finalists.insert(w.items[0].candidates[0]);
    CHECK(finalists == std::set<std::size_t>{0, 1, 2, 5});  // the default, the best two, a kind's
    CHECK(job.conclusion(r).plan.picks[0].candidate == 5);
  }
}

TEST_CASE("a finalist in lockstep that fails later is not chosen", "[ranks]") {
  RankOptions options;
  options.lockstep = true;
  Job job(inputs(2, 3, options));
  std::vector<int> trials(2 * 3);
  job.run([&](int rank, Work::Kind kind, std::size_t, std::size_t c) {
    if (kind != Work::Kind::lockstep) return 1.0F;
    const int trial = trials[static_cast<std::size_t>(rank) * 3 + c]++;
    return c == 2 && rank == 1 && trial == 3 ? kFailed : 3e-3F - 1e-3F * static_cast<float>(c);
  });
  check_same_exchanges(job);
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(job.conclusion(r).plan.picks[0].candidate == 1);
    CHECK(job.conclusion(r).plan.records[0].times[2] == kFailed);
    CHECK(trials[r * 3 + 2] == 4);
    CHECK(trials[r * 3 + 1] == 1 + 7);
  }
}

TEST_CASE("finals in lockstep that end before all had their turn decide nothing", "[ranks]") {
  RankOptions options;
  options.lockstep = true;
  Job job(inputs(2, 3, options));
  job.stops = [](std::size_t rank, const Work& w) {
    return rank == 1 && w.sample && w.items[0].candidates[0] == 0;  // the first of them
  };
  std::vector<int> trials(2 * 3);
  job.run([&](int rank, Work::Kind kind, std::size_t, std::size_t c) {
    if (kind != Work::Kind::lockstep) return 1.0F;
    const int trial = trials[static_cast<std::size_t>(rank) * 3 + c]++;
    return trial > 0 ? 9e-3F : 3e-3F - 1e-3F * static_cast<float>(c);
  });
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(job.conclusion(r).plan.picks[0].candidate == 2);
    CHECK(job.conclusion(r).plan.records[0].times[0] == Approx(3e-3F));
  }
}

TEST_CASE("every rank builds what was chosen before it agrees, and nothing else", "[ranks]") {
  for (const RankStrategy strategy :
       {RankStrategy::replicate, RankStrategy::shard, RankStrategy::leader}) {
    RankOptions options;
    options.strategy = strategy;
    Job job(inputs(3, 4, options, 3));
    job.run([](int, Work::Kind kind, std::size_t p, std::size_t c) {
      if (kind == Work::Kind::build) return 1.0F;
      return p == 1 ? kFailed : 9.0F - static_cast<float>(c);  // of problem 1 nothing can be used
    });
    check_same_exchanges(job);
    for (std::size_t r = 0; r < 3; ++r) {
      const Work& last = job.works[r].back();
      CHECK(last.kind == Work::Kind::prepare);
      CHECK(last.until == job.now + options.step_seconds);
      REQUIRE(last.items.size() == 2);
      CHECK(last.items[0].problem == 0);
      CHECK(last.items[1].problem == 2);
      CHECK(last.items[1].candidates == std::vector<std::size_t>{3});
      CHECK(job.conclusion(r).kind == Kind::plan);
      // A rank that has nothing to build waits for those that have.
      const Exchange& compare = job.exchanges[r][job.exchanges[r].size() - 2];
      CHECK(compare.deadline == job.now + 2 * options.step_seconds);
    }
  }
}

TEST_CASE("what the register says goes", "[ranks]") {
  for (const auto answer : {std::optional(true), std::optional(false), std::optional<bool>()}) {
    auto all = inputs(2, 2);
    for (auto& in : all) in.settles = true;
    Job job(all);
    job.answer = answer;
    job.run(ones);
    CHECK(job.conclusion(0).kind == (answer.value_or(false) ? Kind::plan : Kind::defaults));
    CHECK(job.conclusion(0).broken == !answer.value_or(false));
    CHECK(job.questions[0] == job.questions[1]);
  }
}

TEST_CASE("two agreements never ask the register the same", "[ranks]") {
  std::set<kiln::Digest> questions;
  for (std::uint64_t nonce = 0; nonce < 20; ++nonce) {
    auto all = inputs(2, 2);
    for (auto& in : all) in.settles = true;
    all[1].nonce = nonce;
    Job job(all);
    job.run(ones);
    questions.insert(job.questions[0]);
  }
  CHECK(questions.size() == 20);
}
