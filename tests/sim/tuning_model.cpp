#include "tuning_model.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "runtime/ranks/messages.hpp"

namespace sim {

using namespace kiln::runtime::ranks;

namespace {

/// An exchange in which each rank receives this many bytes.
double exchange(double bytes, int ranks, const TuningModel& model) {
  const int hops = static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
  return ranks == 1 ? 0 : hops * model.latency + bytes / model.bytes_per_second;
}

/// The load of one rank. No number of threads makes a single compilation shorter.
struct Load {
  double compile = 0, run = 0, dearest = 0;

  void add(const Cost& cost) {
    compile += cost.compile;
    run += cost.run;
    dearest = std::max<double>(dearest, cost.compile);
  }
  double seconds(const ShardOptions& options) const {
    const double compiled = std::max(compile / options.compile_threads, dearest);
    return options.overlap ? std::max(compiled, run) : compiled + run;
  }
};

}  // namespace

TuningTimes tuning_times(std::span<const Cost> costs, int ranks, const TuningModel& model) {
  ShardOptions options = model.one_rank;
  options.ranks = ranks;
  Load all;
  for (const Cost& c : costs) all.add(c);

  const double n = ranks, problems = static_cast<double>(model.problems);
  const double times = static_cast<double>(costs.size()) * sizeof(float);
  const double agree = exchange(n * sizeof(DigestMessage), ranks, model) +
                       exchange(n * problems * sizeof(VoteMessage), ranks, model) +
                       exchange(n * sizeof(CompareMessage), ranks, model) +
                       exchange(n * sizeof(ConfirmMessage), ranks, model);
  // A reduction or broadcast per problem: the latency of each, the bytes of all.
  const double reduce = (problems - 1) * exchange(0, ranks, model) + exchange(times, ranks, model);

  TuningTimes t;
  t.replicate = model.setup + all.seconds(options) + agree + reduce;
  t.leader = t.replicate;

  std::vector<Load> loads(static_cast<std::size_t>(ranks));
  const std::vector<int> owner = assign(costs, options);
  for (std::size_t i = 0; i < costs.size(); ++i)
    loads[static_cast<std::size_t>(owner[i])].add(costs[i]);
  for (const Load& load : loads) t.share = std::max(t.share, load.seconds(options));
  t.everyone = model.setup;
  if (ranks == 1) {  // nothing to split, and nobody to time the best again
    t.shard = t.share + t.everyone;
    return t;
  }
  // Which candidates these are is not known beforehand: mean costs stand for theirs.
  const auto count = static_cast<double>(costs.size());
  const Cost mean{static_cast<float>(all.compile / count), static_cast<float>(all.run / count)};
  const auto round = [&](double candidates) {
    Load load;
    for (double c = 0; c < std::min(candidates, count); ++c) load.add(mean);
    return load.seconds(options);
  };
  if (count >=
      static_cast<double>(model.share_to_estimate) * n * problems * options.compile_threads)
    t.everyone += round(problems);
  if (model.finalists > 0) t.everyone += round(static_cast<double>(model.finalists + 1) * problems);
  t.exchanges = agree + exchange(2 * times, ranks, model) + 2 * reduce;
  t.shard = t.share + t.everyone + t.exchanges;
  return t;
}

}  // namespace sim
