// Systems of linear equations with a covariance: small ones, solved once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace kiln::runtime {

/// The Cholesky factor L of a symmetric positive definite matrix.
class Cholesky {
 public:
  /// @param matrix `rows` * `rows` values, row by row; only the lower triangle is read
  Cholesky(std::vector<double> matrix, std::size_t rows) : lower_(std::move(matrix)), rows_(rows) {
    constexpr double kLeastPivot = 1e-9;
    for (std::size_t i = 0; i < rows_; ++i)
      for (std::size_t j = 0; j <= i; ++j) {
        double left = lower_[i * rows_ + j];
        for (std::size_t k = 0; k < j; ++k) left -= lower_[i * rows_ + k] * lower_[j * rows_ + k];
        lower_[i * rows_ + j] =
            i == j ? std::sqrt(std::max(left, kLeastPivot)) : left / lower_[j * rows_ + j];
      }
  }
  /// The inverse of L times x.
  std::vector<double> forward(std::vector<double> x) const {
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t k = 0; k < i; ++k) x[i] -= lower_[i * rows_ + k] * x[k];
      x[i] /= lower_[i * rows_ + i];
    }
    return x;
  }
  /// The inverse of the matrix times x.
  std::vector<double> solve(std::vector<double> x) const {
    x = forward(std::move(x));
    for (std::size_t i = rows_; i-- > 0;) {
      for (std::size_t k = i + 1; k < rows_; ++k) x[i] -= lower_[k * rows_ + i] * x[k];
      x[i] /= lower_[i * rows_ + i];
    }
    return x;
  }

 private:
  std::vector<double> lower_;
  std::size_t rows_;
};

}  // namespace kiln::runtime
