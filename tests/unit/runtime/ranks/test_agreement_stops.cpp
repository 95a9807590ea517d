// A rank that is stopped, or out of time: what was timed until then is not lost.
#include <algorithm>
#include <cmath>

#include "job.hpp"

using namespace job;
using kiln::RankOptions;
using kiln::RankStrategy;
using Kind = Conclusion::Kind;

namespace {

bool in_finals(const Job& job, int rank) {
  return job.works[static_cast<std::size_t>(rank)].size() == 2;
}

/// 9, 8, 7, ... where `tried`.
void run(Job& job, const std::function<bool(int rank)>& tried) {
  job.run([&](int rank, Work::Kind kind, std::size_t, std::size_t c) {
    if (kind == Work::Kind::build) return 1.0F;
    return tried(rank) ? 9.0F - static_cast<float>(c) : kUntried;
  });
}

}  // namespace

TEST_CASE("when the best cannot be timed again, the first round decides", "[ranks]") {
  RankOptions options;
  options.strategy = RankStrategy::shard;
  options.finalists = 2;
  SECTION("a rank was stopped between the rounds") {
    Job job(inputs(2, 6, options));
    run(job, [&](int rank) { return rank == 0 || !in_finals(job, rank); });
    check_same_exchanges(job);
    for (std::size_t r = 0; r < 2; ++r) {
      const Plan& plan = job.conclusion(r).plan;
      CHECK(job.conclusion(r).kind == Kind::plan);
      CHECK(plan.picks[0] == Pick{5, 4.0F});
      CHECK(plan.records[0].times == Times{9, 8, 7, 6, 5, 4});
    }
  }
  SECTION("in the first round") {
    Job job(inputs(2, 6, options));
    run(job, [](int rank) { return rank == 0; });
    check_same_exchanges(job);
    const Plan& plan = job.conclusion(1).plan;
    CHECK(job.conclusion(1).kind == Kind::plan);
    CHECK(is_time(plan.picks[0].seconds));
    for (std::size_t c = 0; c < 6; ++c) {  // rank 0 has timed its half
      CHECK(plan.records[0].times[c] >= 4.0F);
      CHECK(std::isfinite(plan.records[0].times[c]));
    }
    CHECK(std::count_if(plan.records[0].times.begin(), plan.records[0].times.end(), is_time) == 3);
  }
}

TEST_CASE("a candidate that fails in the finals is not chosen for its first round", "[ranks]") {
  RankOptions options;
  options.strategy = RankStrategy::shard;
  options.finalists = 2;
  Job job(inputs(2, 6, options));
  job.run([&](int rank, Work::Kind kind, std::size_t, std::size_t c) {
    if (kind == Work::Kind::build) return 1.0F;
    if (!in_finals(job, rank)) return 9.0F - static_cast<float>(c);
    return c == 5 ? kFailed : kUntried;  // and then time was over
  });
  CHECK(job.conclusion(0).plan.picks[0] == Pick{4, 5.0F});
  CHECK(std::isinf(job.conclusion(0).plan.records[0].times[5]));
}

TEST_CASE("a stop in lockstep ends all after the same launch, with what they have", "[ranks]") {
  RankOptions options;
  options.lockstep = true;
  for (const kiln::RankReduction op : {kiln::RankReduction::max, kiln::RankReduction::mean}) {
    options.reduction = op;
    Job job(inputs(3, 5, options, 2));
    job.stops = [](std::size_t rank, const Work& work) {
      return rank == 1 && work.kind == Work::Kind::lockstep && work.items[0].candidates[0] == 2;
    };
    job.run([](int rank, Work::Kind kind, std::size_t, std::size_t c) {
      if (kind == Work::Kind::build) return c == 4 && rank == 0 ? kFailed : 1.0F;
      return 9.0F - static_cast<float>(c);
    });
    check_same_exchanges(job);
    for (std::size_t r = 0; r < 3; ++r) {
      const Conclusion& conclusion = job.conclusion(r);
      CHECK(conclusion.kind == Kind::plan);
      CHECK(conclusion.plan.picks[0].candidate == 2);
      CHECK_FALSE(is_time(conclusion.plan.picks[1].seconds));  // not come to: the default
      CHECK(conclusion.plan.picks[1].candidate == 0);
      CHECK(conclusion.plan.records[0].times[3] == kUntried);
      CHECK(std::isinf(conclusion.plan.records[0].times[4]));  // could not be built
      CHECK(conclusion.measured == 3);
    }
  }
}
