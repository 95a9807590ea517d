// What the search "model" takes from searches of other problems and devices: an expectation of each
// config's time that its Gaussian process corrects.
//
// Each earlier search ("task") has an opinion of every config: the logarithm of its time over the
// task's best; as measured, else as a Gaussian process says whose length scales are fitted to all
// tasks at once. A hypothesis is that one of the tasks is right, that a weighted sum of them is, or
// that none of them tells anything. Each has a weight, by how likely it makes the times that were
// measured since, so tasks that tell nothing are soon ignored. Only differences between configs
// count: how fast the problem is as a whole is for the new search to find out. Weighing by what
// came true: M. Feurer, B. Letham, E. Bakshy, Scalable Meta-Learning for Bayesian Optimization
// using Ranking-Weighted Gaussian Process Ensembles, AutoML 2018; modelling what is left: D.
// Golovin et al., Google Vizier, KDD 2017, section 3.3.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/search/history.hpp"
#include "runtime/search/strategies/model_surrogate.hpp"
#include "runtime/search/strategies/task_combination.hpp"
#include "runtime/search/strategy.hpp"

namespace kiln::runtime {

/// Not thread-safe. Refers to the space.
class EarlierTasks {
 public:
  EarlierTasks(const SearchSpace& space, std::span<const Evidence> evidence, Random& random);

  bool empty() const noexcept { return tasks_.empty(); }
  Opinions opinions(const Point& point) const;
  /// Allowed points that did best on average or in one of the tasks.
  const std::vector<Point>& favourites() const noexcept { return favourites_; }

  struct Hypothesis {
    double doubt;  ///< deviation of its opinions from the truth, before anything is measured
    double weight = 1;
  };
  /// Their weights add up to 1.
  std::span<const Hypothesis> hypotheses() const noexcept { return hypotheses_; }
  /// What a hypothesis makes of a config's opinions: the expected log(seconds), up to a constant.
  double expected(const Opinions& opinions, std::size_t hypothesis) const;

  /// The results so far: of each its opinions and log(seconds), and whether it failed in no task.
  struct Told {
    std::span<const Opinions* const> opinions;
    std::span<const double> values;
    const std::vector<bool>& comparable;
  };
  /// Learns which weighted sum of the tasks is meant by one of the hypotheses.
  void combine(const Told& told);
  /// What a hypothesis was off by at each result, had the result been no part of what it learned;
  /// around 0, and 0 where results are not comparable. @pre combine() had the same results
  std::vector<double> off_by(std::size_t hypothesis, const Told& told) const;
  /// Weighs the hypotheses. `squares`: of each, the squares of what it was off by at `count`
  /// comparable results, as far as the process that corrects it does not explain them.
  void weigh(std::span<const double> squares, std::size_t count);

  /// Whether it failed in any of the tasks: how fast it would have been, these cannot tell.
  bool failed(const Point& point) const;
  /// That the config can be used, in (0, 1].
  double chance(const Point& point) const;

 private:
  struct Task {
    std::unordered_map<Point, float, PointHash> measured;  ///< unknown parameters at place 0
    std::vector<bool> unknown;
    std::vector<SurrogateSite> sites;
    std::vector<double> values;  ///< of `sites`, standardised
    std::vector<double> alpha;   ///< the covariance's inverse times `values`
    double centre = 0, unit = 1;
    double farther = 1;  ///< factor of its doubt, by its distance
  };

  bool take(const Evidence& evidence, Random& random);
  Point projected(const Task& task, Point point) const;
  void fit(Random& random);
  void solve(Task& task) const;
  /// Doubts tasks by as much as they disagree about the best configs.
  void compare();
  void find_favourites();

  const SearchSpace& space_;
  Covariance covariance_;
  std::vector<Task> tasks_;
  std::vector<Point> favourites_;
  std::vector<Hypothesis> hypotheses_;  ///< each task, their weighted sum, nothing
  std::optional<TaskCombination> combination_;
};

}  // namespace kiln::runtime
