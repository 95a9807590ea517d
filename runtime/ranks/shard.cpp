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

std::vector<int> assign(std::span<const Cost> costs, const ShardOptions& options) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return finish(costs[a].compile, costs[a].run, options) >
           finish(costs[b].compile, costs[b].run, options);
  });
  struct Load {
    double finish, compile, run;
    std::size_t items;  ///< so that what seems to cost nothing is split, too
    int rank;
    bool operator<(const Load& o) const {  // the queue's top is the rank that is done first
      return std::tie(finish, items, rank) > std::tie(o.finish, o.items, o.rank);
    }
  };
  std::priority_queue<Load> loads;
  for (int r = 0; r < options.ranks; ++r) loads.push({0, 0, 0, 0, r});
  std::vector<int> owner(costs.size());
  for (const std::size_t i : order) {
    Load load = loads.top();
    loads.pop();
    owner[i] = load.rank;
    load.compile += costs[i].compile;
    load.run += costs[i].run;
    ++load.items;
    load.finish = finish(load.compile, load.run, options);
    loads.push(load);
  }
  return owner;
}

std::vector<std::size_t> build_order(std::size_t items, int rank, const ShardOptions& options) {
  const auto ranks = static_cast<std::size_t>(options.ranks);
  const std::size_t part = ranks * static_cast<std::size_t>(options.compile_threads);
  std::vector<std::size_t> order;
  if (items > 0) order.push_back(0);
  for (std::size_t begin = 1; begin < items; begin += part)
    // Then those of the rank after this one, and so on: ranks do not meet at one of them.
    for (std::size_t turn = 0; turn < ranks; ++turn)
      for (std::size_t i = begin + (static_cast<std::size_t>(rank) + turn) % ranks;
           i < std::min(items, begin + part); i += ranks)
        order.push_back(i);
  return order;
}

}  // namespace kiln::runtime::ranks
