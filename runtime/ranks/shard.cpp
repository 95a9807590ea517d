#include "runtime/ranks/shard.hpp"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

namespace kiln::runtime::ranks {

double finish(double compile, double run, const ShardOptions& options) noexcept {
  compile /= options.compile_threads;
  return options.overlap ? std::max(compile, run) : compile + run;
}

namespace {

struct Load {
  int rank = 0;
  std::size_t items = 0;  ///< so that what seems to cost nothing is split, too
  Cost sum{};
  double finish = 0;

  void add(const Cost& cost, std::size_t count, const ShardOptions& options) {
    sum.compile += cost.compile;
    sum.run += cost.run;
    items += count;
    finish = ranks::finish(sum.compile, sum.run, options);
  }
  bool operator<(const Load& o) const {  // the queue's top is the rank that is done first
    return std::tie(finish, items, rank) > std::tie(o.finish, o.items, o.rank);
  }
};
using Loads = std::priority_queue<Load>;

Loads no_loads(int ranks) {
  Loads loads;
  for (int rank = 0; rank < ranks; ++rank) loads.push({rank});
  return loads;
}

double finish_of(const Cost& cost, const ShardOptions& options) {
  return finish(cost.compile, cost.run, options);
}

/// The places, the most expensive first.
std::vector<std::size_t> by_cost(std::span<const Cost> costs, const ShardOptions& options) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return finish_of(costs[a], options) > finish_of(costs[b], options);
  });
  return order;
}

/// Gives each item to the rank that is done first by then.
std::vector<int> assign_each(std::span<const Cost> costs, const ShardOptions& options,
                             Loads& loads) {
  std::vector<int> owner(costs.size());
  for (const std::size_t i : by_cost(costs, options)) {
    Load load = loads.top();
    loads.pop();
    owner[i] = load.rank;
    load.add(costs[i], 1, options);
    loads.push(load);
  }
  return owner;
}

}  // namespace

std::vector<int> assign(std::span<const Cost> costs, const ShardOptions& options) {
  Loads loads = no_loads(options.ranks);
  return assign_each(costs, options, loads);
}

std::vector<std::vector<int>> assign(std::span<const std::size_t> candidates,
                                     std::span<const Cost> costs, const ShardOptions& options) {
  constexpr double kMostOverMean = 1.125;
  const std::vector<Cost> alike(costs.size(), {0, 1});
  const bool known =
      std::ranges::any_of(costs, [](const Cost& c) { return c.compile + c.run > 0; });
  if (!known) costs = alike;
  std::vector<std::span<const Cost>> of;
  std::vector<Cost> sums;
  double all = 0;
  for (const std::size_t count : candidates) {
    of.push_back(costs.first(count));
    costs = costs.subspan(count);
    Cost& sum = sums.emplace_back();
    for (const Cost& cost : of.back()) {
      sum.compile += cost.compile;
      sum.run += cost.run;
    }
    all += finish_of(sum, options);
  }
  Loads loads = no_loads(options.ranks);
  std::vector<std::vector<int>> owners(candidates.size());
  std::vector<std::size_t> shared;
  for (const std::size_t p : by_cost(sums, options)) {
    Load load = loads.top();
    load.add(sums[p], of[p].size(), options);
    if (load.finish > kMostOverMean * all / options.ranks) {
      shared.push_back(p);
      continue;
    }
    loads.pop();
    owners[p].assign(of[p].size(), load.rank);
    loads.push(load);
  }
  for (const std::size_t p : shared) owners[p] = assign_each(of[p], options, loads);
  return owners;
}

std::vector<std::size_t> build_order(std::size_t items, int rank, const ShardOptions& options) {
  const auto ranks = static_cast<std::size_t>(options.ranks);
  const std::size_t part = ranks * static_cast<std::size_t>(options.compile_threads);
  std::vector<std::size_t> order;
  if (items > 0) order.push_back(0);
  for (std::size_t begin = 1; begin < items; begin += part)
    // Next come the items of the rank after this one, and so on, so ranks do not meet at one item.
    for (std::size_t turn = 0; turn < ranks; ++turn)
      for (std::size_t i = begin + (static_cast<std::size_t>(rank) + turn) % ranks;
           i < std::min(items, begin + part); i += ranks)
        order.push_back(i);
  return order;
}

}  // namespace kiln::runtime::ranks
