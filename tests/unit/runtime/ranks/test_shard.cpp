#include <algorithm>
#include <numeric>

#include "kiln_test.hpp"
#include "unit/runtime/ranks/some_costs.hpp"

using namespace kiln::runtime::ranks;
using kiln::test::some_costs;

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

namespace {

bool is_whole(const std::vector<int>& owners) {
  return std::ranges::all_of(owners, [&](int owner) { return owner == owners.front(); });
}

}  // namespace

TEST_CASE("a problem is one rank's as a whole where there are enough of them", "[ranks]") {
  for (const int ranks : {1, 2, 4}) {
    const std::vector<std::size_t> candidates(8, 24);
    const auto owners = assign(candidates, std::vector<Cost>(8 * 24), {ranks, 4, true});
    std::vector<int> problems(static_cast<std::size_t>(ranks));
    for (const auto& of : owners) {
      CHECK(of.size() == 24);
      CHECK(is_whole(of));
      ++problems.at(static_cast<std::size_t>(of.front()));
    }
    CHECK(problems == std::vector<int>(static_cast<std::size_t>(ranks), 8 / ranks));
  }
}

TEST_CASE("what would keep one rank busy for longer is shared out", "[ranks]") {
  const auto odd = assign(std::vector<std::size_t>(3, 24), std::vector<Cost>(3 * 24), {2, 4, true});
  CHECK(std::ranges::count_if(odd, is_whole) == 2);
  const auto few = assign(std::vector<std::size_t>(2, 24), std::vector<Cost>(2 * 24), {4, 4, true});
  CHECK(std::ranges::count_if(few, is_whole) == 0);
  std::vector<Cost> costs(4, {0, 1});
  costs[0].run = costs[1].run = 20;  // the first problem costs as much as twenty of the others
  const auto dear = assign(std::vector<std::size_t>{2, 1, 1}, costs, {2, 1, false});
  CHECK(dear[0] == std::vector<int>{0, 1});
  const std::vector<std::size_t> none;
  CHECK(assign(none, {}, {2, 1, false}).empty());
}

TEST_CASE("ranks with many unequal problems finish together", "[ranks]") {
  const auto costs = some_costs(400);
  for (const int ranks : {2, 3, 8, 16}) {
    const ShardOptions options{ranks, 4, true};
    std::vector<std::size_t> candidates;
    for (std::size_t left = 400, next = 1; left > 0;
         left -= candidates.back(), next = next % 30 + 1)
      candidates.push_back(std::min(left, next));
    const auto owners = assign(candidates, costs, options);
    std::vector<Cost> sums(static_cast<std::size_t>(ranks));
    std::size_t i = 0;
    for (const auto& of : owners)
      for (const int owner : of) {
        sums.at(static_cast<std::size_t>(owner)).compile += costs[i].compile;
        sums[static_cast<std::size_t>(owner)].run += costs[i++].run;
      }
    double most = 0, all = 0;
    for (const Cost& c : sums) {
      most = std::max(most, finish(c.compile, c.run, options));
      all += finish(c.compile, c.run, options);
    }
    CHECK(i == 400);
    CHECK(most < 1.15 * all / ranks);
  }
}

TEST_CASE("ranks build the same, the default first, then different ones", "[ranks]") {
  for (const int ranks : {1, 2, 3, 8})
    for (const int threads : {1, 4})
      for (const std::size_t items : {0U, 1U, 7U, 64U, 129U}) {
        std::vector<std::size_t> expected(items), firsts;
        std::iota(expected.begin(), expected.end(), std::size_t{0});
        for (int rank = 0; rank < ranks; ++rank) {
          std::vector<std::size_t> order = build_order(items, rank, {ranks, threads, true});
          const auto own = static_cast<std::size_t>(threads), part = own * std::size_t(ranks);
          if (items > 0) CHECK(order[0] == 0);
          // Each rank begins with other items than the others, as far as there are enough.
          if (items > part)
            firsts.insert(firsts.end(), order.begin() + 1,
                          order.begin() + 1 + static_cast<std::ptrdiff_t>(own));
          // None is far from its place in the list.
          for (std::size_t i = 1; i < items; ++i) CHECK((order[i] - 1) / part == (i - 1) / part);
          std::sort(order.begin(), order.end());
          CHECK(order == expected);
        }
        std::sort(firsts.begin(), firsts.end());
        CHECK(std::adjacent_find(firsts.begin(), firsts.end()) == firsts.end());
      }
}
