// Which weighted sum of earlier tasks' opinions tells the times that were measured so far.
//
// Ridge regression towards their mean: the weights are normally distributed around equal ones, the
// constant is free, and what the sum is off by has a known deviation. Formulas: C. M. Bishop,
// Pattern Recognition and Machine Learning, 2006, section 3.3; residuals of results that are left
// out: D. A. Belsley, E. Kuh, R. E. Welsch, Regression Diagnostics, 1980, section 2.1.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kiln::runtime {

/// By task: the expected log(seconds) of one config, up to a constant.
using Opinions = std::vector<float>;

/// Not thread-safe.
class TaskCombination {
 public:
  /// With equal weights. @pre `tasks` > 0
  explicit TaskCombination(std::size_t tasks) : weights_(tasks, 1 / static_cast<double>(tasks)) {}

  /// @param told,values opinions and log(seconds) of each result
  /// @param comparable by result: whether it takes part
  /// @param deviation of what the sum is off by
  void fit(std::span<const Opinions* const> told, std::span<const double> values,
           const std::vector<bool>& comparable, double deviation);

  double operator()(const Opinions& opinions) const;
  /// By result of the last fit: what the sum would be off by, had the result not been part of it.
  std::span<const double> left_out() const noexcept { return left_out_; }

 private:
  std::vector<double> weights_;
  std::vector<double> left_out_;
};

}  // namespace kiln::runtime
