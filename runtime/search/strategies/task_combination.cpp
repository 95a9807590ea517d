#include "runtime/search/strategies/task_combination.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/search/strategies/cholesky.hpp"

namespace kiln::runtime {

namespace {

/// Deviation of a weight from that of the mean, before anything is measured.
constexpr double kWeightDeviation = 0.5;
constexpr double kFreeConstant = 1e-6;
/// A result that the fit follows nearly by itself has no residual of its own.
constexpr double kLeastFreedom = 0.05;

double product(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

void TaskCombination::fit(std::span<const Opinions* const> told, std::span<const double> values,
                          const std::vector<bool>& comparable, double deviation) {
  const std::size_t tasks = weights_.size(), terms = tasks + 1;  // and the constant
  std::ranges::fill(weights_, 1 / static_cast<double>(tasks));
  std::vector<std::vector<double>> rows;
  std::vector<double> off;  // from the mean
  for (std::size_t i = 0; i < told.size(); ++i) {
    rows.emplace_back(told[i]->begin(), told[i]->end()).push_back(1);
    off.push_back(values[i] - (*this)(*told[i]));
  }
  std::vector<double> matrix(terms * terms), right(terms);
  for (std::size_t t = 0; t < tasks; ++t)
    matrix[t * terms + t] = std::pow(deviation / kWeightDeviation, 2);
  matrix[tasks * terms + tasks] = kFreeConstant;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!comparable[i]) continue;
    for (std::size_t r = 0; r < terms; ++r) {
      right[r] += rows[i][r] * off[i];
      for (std::size_t c = 0; c < terms; ++c) matrix[r * terms + c] += rows[i][r] * rows[i][c];
    }
  }
  const Cholesky factor(std::move(matrix), terms);
  const std::vector<double> by = factor.solve(std::move(right));
  for (std::size_t t = 0; t < tasks; ++t) weights_[t] += by[t];
  left_out_.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<double> row = factor.forward(rows[i]);
    const double freedom = comparable[i] ? std::max(1 - product(row, row), kLeastFreedom) : 1;
    left_out_.push_back((off[i] - product(by, rows[i])) / freedom);
  }
}

double TaskCombination::operator()(const Opinions& opinions) const {
  double sum = 0;
  for (std::size_t t = 0; t < weights_.size(); ++t)
    sum += weights_[t] * static_cast<double>(opinions[t]);
  return sum;
}

}  // namespace kiln::runtime
