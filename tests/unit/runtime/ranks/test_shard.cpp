#include <algorithm>
#include <random>

#include "kiln_test.hpp"
#include "runtime/ranks/shard.hpp"
#include "runtime/ranks/tuning_model.hpp"

using namespace kiln::runtime::ranks;

namespace {

std::vector<double> finishes(std::span<const Cost> costs, const ShardOptions& options) {
  const std::vector<int> owner = assign(costs, options);
  std::vector<Cost> sums(static_cast<std::size_t>(options.ranks));
  for (std::size_t i = 0; i < costs.size(); ++i) {
    sums.at(static_cast<std::size_t>(owner[i])).compile += costs[i].compile;
    sums[static_cast<std::size_t>(owner[i])].run += costs[i].run;
  }
  std::vector<double> all;
  for (const Cost& c : sums) all.push_back(finish(c.compile, c.run, options));
  return all;
}

std::vector<Cost> some_costs(std::size_t count) {
  std::mt19937 random(7);
  std::vector<Cost> costs(count);
  for (Cost& c : costs) {
    c.compile = 0.02F + static_cast<float>(random() % 1000) / 2000;
    c.run = 0.01F + static_cast<float>(random() % 1000) / 5000;
  }
  return costs;
}

}  // namespace

TEST_CASE("ranks finish together", "[ranks]") {
  const auto costs = some_costs(400);
  for (const bool overlap : {false, true})
    for (const int ranks : {1, 2, 3, 8, 16}) {
      const auto all = finishes(costs, {ranks, 4, overlap});
      const auto [least, most] = std::minmax_element(all.begin(), all.end());
      CHECK(*most - *least < 0.1 * *most + 1e-9);
    }
}

TEST_CASE("a candidate that is dear on its own gets a rank of its own", "[ranks]") {
  const std::vector<Cost> costs{{0, 1}, {0, 10}, {0, 1}, {0, 1}};
  const auto owner = assign(costs, {2, 1, false});
  CHECK(std::count(owner.begin(), owner.end(), owner[1]) == 1);
}

TEST_CASE("what costs nothing is split, too", "[ranks]") {
  const auto owner = assign(std::vector<Cost>(8), {4, 1, false});
  for (int r = 0; r < 4; ++r) CHECK(std::count(owner.begin(), owner.end(), r) == 2);
}

TEST_CASE("more ranks than candidates, and none at all", "[ranks]") {
  CHECK(assign(std::vector<Cost>(2, {1, 1}), {4096, 1, false}) == std::vector<int>{0, 1});
  CHECK(assign({}, {3, 1, false}).empty());
}

TEST_CASE("sharded tuning falls with the ranks until the finals and exchanges remain", "[ranks]") {
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

TEST_CASE("what measuring takes beside candidates does not fall with the ranks", "[ranks]") {
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
