// What the search "model" believes of times it has not seen: a Gaussian process over the logarithm
// of the time.
//
// Why this one: a search pays for a few hundred measurements at most, of a function that is smooth
// along most tile sizes, multiplicative (hence the logarithm) and interrupted by cliffs. A process
// whose length scales are fitted per parameter learns within ten or twenty points which parameters
// matter; trees and neighbour votes need several times as many. The correlation of two configs is
// a product over parameters,
//   ordered:   1 - w + w * matern32(distance / length) * exp(-[odd differs] / roughness)
//   otherwise: exp(-[differs] / length)
// where the floor 1 - w keeps what was learned of the other parameters when one of them moves far,
// and "odd" tells values that are a power of two from those that are not (they divide lines, banks
// and waves unevenly on every GPU). Formulas: C. E. Rasmussen and C. K. I. Williams, Gaussian
// Processes for Machine Learning, 2006, chapters 2, 4.2 and 5.4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/search/search_space.hpp"

namespace kiln::runtime {

/// A config as the surrogate sees it.
struct SurrogateSite {
  std::vector<std::uint8_t> levels;  ///< per parameter, see `Covariance::site`
  float trend = 0;                   ///< a cost model's guess, standardised; 0: there is none

  bool operator==(const SurrogateSite&) const = default;
};

/// How alike the times of two sites are, under hyperparameters that can be fitted.
class Covariance {
 public:
  /// With `trend`, times may also follow the sites' trend linearly, by as much as fits.
  Covariance(const SearchSpace& space, bool trend);

  SurrogateSite site(const Point& point, float trend) const;
  std::size_t dimensions() const noexcept { return axes_.size(); }

  double operator()(const SurrogateSite& a, const SurrogateSite& b) const {
    return correlation(a, b) + trend_weight_ * a.trend * b.trend;
  }
  /// Without the trend: 1 for the same site.
  double correlation(const SurrogateSite& a, const SurrogateSite& b) const;
  /// From a value of one parameter to each of its levels.
  std::span<const float> row(std::size_t dimension, std::uint8_t level) const;
  double trend_weight() const noexcept { return trend_weight_; }
  double noise() const noexcept { return noise_; }

  /// Maximises marginal likelihood times prior by coordinate search from where it stands.
  /// `values` are standardised. Cost: `sweeps` * parameters * sites^3.
  void fit(std::span<const SurrogateSite> sites, std::span<const double> values, int sweeps,
           Random& random);

  /// For space-filling designs: how different two sites are, with every parameter alike.
  double distance(const SurrogateSite& a, const SurrogateSite& b) const;
  /// The number of values that are not a power of two.
  int odd(const SurrogateSite& site) const;

 private:
  struct Axis {
    bool ordered = false;
    std::vector<double> scale;     ///< by level
    std::vector<char> odd;         ///< by level
    std::vector<std::uint8_t> of;  ///< level by place
    std::vector<float> table;      ///< correlation, levels x levels
  };
  /// A hyperparameter with its normal prior (of the logarithm; of the logit for weights).
  struct Hyper {
    enum Kind { length, weight, roughness, noise, trend } kind;
    std::size_t axis;
    double value, mean, deviation;
  };

  void apply(const Hyper& changed);
  double evidence(std::span<const SurrogateSite> sites, std::span<const double> values);

  std::vector<Axis> axes_;
  std::vector<Hyper> hypers_;
  double noise_ = 0, trend_weight_ = 0;
  std::vector<double> factor_, solved_;  // scratch
};

/// The process conditioned on sites one at a time, at a list of candidates. All costs are linear in
/// candidates and in the sites so far.
class Posterior {
 public:
  explicit Posterior(const Covariance& covariance) : covariance_(covariance) { clear(); }

  /// Forgets sites and candidates.
  void clear();
  /// Forgets the sites; to be called after the covariance was fitted anew.
  void restart();
  void add_candidate(const SurrogateSite& candidate);
  /// Conditions on these sites. Cheap if they begin like the last ones.
  void condition(std::span<const SurrogateSite> sites);
  /// Expected value at each candidate from `first` on, given those of the first `values.size()`
  /// sites; the sites after them are pending: only that they will be known is taken into account.
  void predict(std::span<const double> values, std::size_t first, std::vector<float>& mean);
  /// The squares of the values of the first sites, as far as they do not follow from each other.
  double squares(std::span<const double> values) const;
  /// The variance of a candidate's value, in the scale of the last prediction's `values`.
  double variance(std::size_t candidate) const {
    return scale_ * static_cast<double>(variance_[candidate]);
  }

 private:
  void add_row(const SurrogateSite& site);
  /// Extends all rows to the candidates that were added since, many at a time.
  void complete();
  void extend_row(std::size_t row);
  /// To `sum`, which is for the candidates from `first` on, the first rows times `by`.
  void add_rows(std::span<const double> by, std::size_t first, std::span<float> sum) const;
  void keep_rows(std::size_t rows);
  std::size_t candidates() const noexcept { return variance_.size(); }

  const Covariance& covariance_;
  std::vector<SurrogateSite> sites_;
  std::vector<std::vector<double>> factor_;        ///< row p: columns p and after, of L transposed
  std::vector<std::vector<std::uint8_t>> levels_;  ///< of candidates, by parameter
  std::vector<float> trends_;
  std::vector<std::vector<float>> rows_;  ///< L^-1 times the covariance of sites and candidates
  std::vector<float> variance_;           ///< relative to the process's scale
  double scale_ = 1;
};

/// A covariance that is fitted now and then, with its posterior.
class Surrogate {
 public:
  /// Fits at each new site while there are at most `fit_each`, then ever more rarely.
  Surrogate(const SearchSpace& space, bool trend, std::size_t fit_each)
      : covariance_(space, trend), fit_each_(fit_each) {}

  const Covariance& covariance() const noexcept { return covariance_; }
  Posterior& posterior() noexcept { return posterior_; }
  /// Fits if there are enough more sites than at the last fit, or fewer. True if it did.
  bool fit(std::span<const SurrogateSite> sites, std::span<const double> values, Random& random);
  void fit_next_time() noexcept { next_fit_ = 0; }

 private:
  Covariance covariance_;
  Posterior posterior_{covariance_};
  const std::size_t fit_each_;
  std::size_t next_fit_ = 0, last_fit_ = 0;
};

}  // namespace kiln::runtime
