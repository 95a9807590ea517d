#include "kiln_test.hpp"
#include "tuning_model.hpp"
#include "unit/runtime/ranks/some_costs.hpp"

using namespace sim;
using kiln::test::some_costs;

TEST_CASE("sharded tuning falls with the ranks until the finals and exchanges remain", "[sim]") {
  const auto costs = some_costs(1000);
  TuningModel model;
  model.one_rank.compile_threads = 4;
  model.finalists = 0;
  const double one = tuning_times(costs, 1, model).shard;
  CHECK(one == Approx(tuning_times(costs, 1, model).replicate));
  CHECK(one / tuning_times(costs, 8, model).shard > 0.9 * 8);
  CHECK(one / tuning_times(costs, 64, model).shard > 0.8 * 64);
  // Nobody is faster than the dearest candidate.
  CHECK(tuning_times(costs, 4096, model).shard > 0.15);
  model.finalists = 4;
  CHECK(tuning_times(costs, 64, model).shard > one / 64);
  CHECK(tuning_times(costs, 4096, model).replicate >= one);
}

TEST_CASE("what measuring takes beside candidates does not fall with the ranks", "[sim]") {
  const auto costs = some_costs(1000);
  TuningModel model;
  model.one_rank.compile_threads = 4;
  const double plain = tuning_times(costs, 64, model).shard;
  model.setup = 2;
  const TuningTimes t = tuning_times(costs, 64, model);
  CHECK(t.shard == Approx(plain + 2));
  CHECK(t.shard == Approx(t.share + t.everyone + t.exchanges));
  CHECK(tuning_times(costs, 1, model).shard == Approx(tuning_times(costs, 1, model).replicate));
  // The default is measured first only where shares are large.
  model.share_to_estimate = 100;
  CHECK(tuning_times(costs, 64, model).everyone == Approx(t.everyone));
  CHECK(tuning_times(costs, 2, model).everyone > t.everyone);
  // Threads do not make one compilation shorter.
  const std::vector<Cost> one{{4, 1}};
  CHECK(tuning_times(one, 1, model).replicate == Approx(2 + 4 + 1));
}
