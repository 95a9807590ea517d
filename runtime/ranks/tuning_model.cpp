#include "runtime/ranks/tuning_model.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "runtime/ranks/messages.hpp"

namespace kiln::runtime::ranks {

namespace {

/// An exchange in which each rank receives so many bytes.
double exchange(double bytes, int ranks, const TuningModel& model) {
  const int hops = static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
  return ranks == 1 ? 0 : hops * model.latency + bytes / model.bytes_per_second;
}

}  // namespace

TuningTimes tuning_times(std::span<const Cost> costs, int ranks, const TuningModel& model) {
  ShardOptions options = model.one_rank;
  options.ranks = ranks;
  double compile = 0, run = 0;
  for (const Cost& c : costs) compile += c.compile, run += c.run;
  const double everything = finish(compile, run, options);

  const double n = ranks, problems = static_cast<double>(model.problems);
  const double times = static_cast<double>(costs.size()) * sizeof(float);
  const double agree = exchange(n * sizeof(DigestMessage), ranks, model) +
                       exchange(n * problems * sizeof(VoteMessage), ranks, model) +
                       exchange(n * sizeof(CompareMessage), ranks, model) +
                       exchange(n * sizeof(ConfirmMessage), ranks, model);
  // A reduction or broadcast per problem: the latency of each, the bytes of all.
  const double reduce = (problems - 1) * exchange(0, ranks, model) + exchange(times, ranks, model);

  TuningTimes t;
  t.replicate = everything + agree + reduce;
  t.leader = t.replicate;

  std::vector<double> compiles(static_cast<std::size_t>(ranks)), runs(compiles.size());
  const std::vector<int> owner = assign(costs, options);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    compiles[static_cast<std::size_t>(owner[i])] += costs[i].compile;
    runs[static_cast<std::size_t>(owner[i])] += costs[i].run;
  }
  double longest = 0;
  for (std::size_t r = 0; r < runs.size(); ++r)
    longest = std::max(longest, finish(compiles[r], runs[r], options));
  // Who will be a finalist is not known: mean costs stand for theirs.
  const double again = ranks == 1 || model.finalists == 0
                           ? 0
                           : std::min(static_cast<double>(model.finalists + 1) * problems,
                                      static_cast<double>(costs.size()));
  const auto count = static_cast<double>(costs.size());
  const double finals = again * finish(compile / count, run / count, options);
  t.shard = longest + finals + agree + exchange(2 * times, ranks, model) + 2 * reduce;
  return t;
}

}  // namespace kiln::runtime::ranks
