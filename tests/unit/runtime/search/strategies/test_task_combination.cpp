// The weighted sum of earlier tasks that tells the times of a search.
#include <cmath>
#include <cstddef>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/search/strategies/task_combination.hpp"
#include "runtime/support/random.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

constexpr double kDeviation = 0.05;

/// Results of a search: opinions of some tasks, and times.
struct Results {
  std::vector<Opinions> opinions;
  std::vector<double> values;
  std::vector<bool> comparable;

  /// Random opinions between 0 and 1.
  Results(std::size_t tasks, std::size_t count, std::uint64_t seed) {
    Random random(seed);
    for (std::size_t i = 0; i < count; ++i) {
      Opinions& all = opinions.emplace_back();
      for (std::size_t t = 0; t < tasks; ++t) all.push_back(static_cast<float>(random.uniform()));
      values.push_back(0);
      comparable.push_back(true);
    }
  }
  void fit(TaskCombination& combination) const {
    std::vector<const Opinions*> told;
    for (const Opinions& all : opinions) told.push_back(&all);
    combination.fit(told, values, comparable, kDeviation);
  }
};

}  // namespace

TEST_CASE("without results the sum of tasks is their mean", "[runtime][search]") {
  TaskCombination combination(4);
  CHECK(combination({1, 2, 3, 6}) == Approx(3));
  Results(4, 0, 1).fit(combination);
  CHECK(combination({1, 2, 3, 6}) == Approx(3));
  CHECK(combination.left_out().empty());
}

TEST_CASE("the sum of tasks follows those that tell the times", "[runtime][search]") {
  Results results(3, 30, 1);
  for (std::size_t i = 0; i < results.values.size(); ++i)  // however fast the problem is as a whole
    results.values[i] = 7 + 0.7 * static_cast<double>(results.opinions[i][1]) +
                        0.3 * static_cast<double>(results.opinions[i][2]);
  TaskCombination combination(3);
  results.fit(combination);
  CHECK(combination({1, 0, 0}) == Approx(0).margin(0.02));
  CHECK(combination({0, 1, 0}) == Approx(0.7).margin(0.02));
  CHECK(combination({0, 0, 1}) == Approx(0.3).margin(0.02));
  // Nothing is kept from one fit to the next.
  Results(3, 0, 1).fit(combination);
  CHECK(combination({1, 0, 0}) == Approx(1. / 3));
}

TEST_CASE("few results hardly move the sum of tasks from their mean", "[runtime][search]") {
  Results results(2, 2, 3);
  results.opinions = {{0.1F, 0.1F}, {0.12F, 0.11F}};
  results.values = {0, 0.015};
  TaskCombination combination(2);
  results.fit(combination);
  CHECK(combination({1, 0}) == Approx(0.5).margin(0.1));
}

TEST_CASE("what is left out of the sum of tasks is judged by the others", "[runtime][search]") {
  Results results(2, 12, 5);
  for (std::size_t i = 0; i < results.values.size(); ++i)
    results.values[i] = static_cast<double>(results.opinions[i][0]);
  results.values[7] += 1;  // nothing told this
  TaskCombination all(2), others(2);
  results.fit(all);
  const double left_out = all.left_out()[7];
  results.comparable[7] = false;
  results.fit(others);
  // As if the fit had been made without it.
  CHECK(left_out == Approx(others.left_out()[7]).margin(1e-6));
  CHECK(std::fabs(left_out) > 0.9);
  CHECK(others({1, 0}) == Approx(1).margin(0.05));
  CHECK(std::fabs(all({1, 0}) - 1) > 0.01);
}

TEST_CASE("tasks that say the same, and results that are the same, are no trouble",
          "[runtime][search]") {
  Results results(3, 500, 9);
  for (std::size_t i = 0; i < results.values.size(); ++i) {
    Opinions& all = results.opinions[i];
    all[1] = all[2] = all[0];
    if (i % 2 == 0) all = {0.5F, 0.5F, 0.5F};
    results.values[i] = 2 * static_cast<double>(all[0]);
  }
  TaskCombination combination(3);
  results.fit(combination);
  CHECK(combination({1, 1, 1}) - combination({0, 0, 0}) == Approx(2).margin(0.05));
  for (const double off : combination.left_out()) REQUIRE(std::isfinite(off));
}
