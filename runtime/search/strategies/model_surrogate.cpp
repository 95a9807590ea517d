#include "runtime/search/strategies/model_surrogate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kiln::runtime {

namespace {

/// More values than this share levels: a few hundred measurements cannot tell them apart.
constexpr std::size_t kLevels = 96;
/// One pseudo-observation of variance 1: keeps the scale sane while there are few values.
constexpr double kScalePrior = 1;
/// Means of the priors. Parameters without an order are switches for the most part, and few of them
/// change the time by much.
constexpr double kLength = 0.7, kUnorderedLength = 4;
constexpr double kStep = 0.5;
constexpr double kLeastPivot = 1e-9;
constexpr float kLeastVariance = 1e-7F;
constexpr double kFitGrowth = 1.25;     ///< sites at the next fit
constexpr std::size_t kFitSites = 100;  ///< that a fit looks at
/// How far apart a power of two and any other value count in a design, in full ranges of a
/// parameter.
constexpr double kOddDistance = 0.5;

bool power_of_two(std::int64_t value) { return value <= 0 || (value & (value - 1)) == 0; }

double matern32(double distance) {
  const double r = std::sqrt(3.0) * distance;
  return (1 + r) * std::exp(-r);
}

}  // namespace

Covariance::Covariance(const SearchSpace& space, bool trend) {
  const auto& parameters = space.space().parameters();
  for (std::size_t d = 0; d < space.dimensions(); ++d) {
    Axis& axis = axes_.emplace_back();
    axis.ordered = space.ordered(d);
    const std::size_t arity = space.arity(d), levels = std::min(arity, kLevels);
    axis.of.resize(arity);
    for (std::size_t rank = 0; rank < arity; ++rank)
      axis.of[space.place(d, static_cast<std::uint16_t>(rank))] =
          static_cast<std::uint8_t>(rank * levels / arity);
    axis.scale.resize(levels);
    axis.odd.resize(levels);
    for (std::size_t rank = arity; rank-- > 0;) {  // a level stands for its first value
      const std::uint16_t place = space.place(d, static_cast<std::uint16_t>(rank));
      axis.scale[axis.of[place]] = space.scale(d)[place];
      axis.odd[axis.of[place]] = axis.ordered && !power_of_two(parameters[d].values[place]);
    }
    axis.table.resize(levels * levels);
    if (levels < 2) continue;
    const double length = std::log(axis.ordered ? kLength : kUnorderedLength);
    hypers_.push_back({Hyper::length, d, length, length, 0.8});
    if (!axis.ordered) continue;
    hypers_.push_back({Hyper::weight, d, 1, 1, 1.5});
    if (std::count(axis.odd.begin(), axis.odd.end(), axis.odd[0]) !=
        static_cast<std::ptrdiff_t>(levels))
      hypers_.push_back({Hyper::roughness, d, std::log(2.0), std::log(2.0), 1});
  }
  hypers_.push_back({Hyper::noise, 0, std::log(0.01), std::log(0.01), 1});
  if (trend) hypers_.push_back({Hyper::trend, 0, 0, 0, 1.5});
  for (Axis& axis : axes_) std::fill(axis.table.begin(), axis.table.end(), 1.0F);
  for (const Hyper& hyper : hypers_) apply(hyper);
}

SurrogateSite Covariance::site(const Point& point, float trend) const {
  SurrogateSite site{std::vector<std::uint8_t>(point.size()), trend};
  for (std::size_t d = 0; d < point.size(); ++d) site.levels[d] = axes_[d].of[point[d]];
  return site;
}

double Covariance::correlation(const SurrogateSite& a, const SurrogateSite& b) const {
  double product = 1;
  for (std::size_t d = 0; d < axes_.size(); ++d)
    product *= static_cast<double>(row(d, a.levels[d])[b.levels[d]]);
  return product;
}

std::span<const float> Covariance::row(std::size_t dimension, std::uint8_t level) const {
  const Axis& axis = axes_[dimension];
  const std::size_t levels = axis.scale.size();
  return {axis.table.data() + level * levels, levels};
}

void Covariance::apply(const Hyper& changed) {
  if (changed.kind == Hyper::noise) {
    noise_ = std::clamp(std::exp(changed.value), 1e-4, 1.0);
    return;
  }
  if (changed.kind == Hyper::trend) {
    trend_weight_ = std::exp(changed.value);
    return;
  }
  Axis& axis = axes_[changed.axis];
  double length = 1, weight = 1, roughness = 1;
  for (const Hyper& hyper : hypers_) {
    if (hyper.axis != changed.axis) continue;
    if (hyper.kind == Hyper::length) length = std::exp(hyper.value);
    if (hyper.kind == Hyper::weight) weight = 1 / (1 + std::exp(-hyper.value));
    if (hyper.kind == Hyper::roughness) roughness = std::exp(hyper.value);
  }
  const std::size_t levels = axis.scale.size();
  const double otherwise = std::exp(-1 / length), uneven = std::exp(-1 / roughness);
  for (std::size_t i = 0; i < levels; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double alike = i == j ? 1 : otherwise;
      if (axis.ordered) {
        alike = matern32(std::fabs(axis.scale[i] - axis.scale[j]) / length);
        if (axis.odd[i] != axis.odd[j]) alike *= uneven;
        alike = 1 - weight + weight * alike;
      }
      axis.table[i * levels + j] = axis.table[j * levels + i] = static_cast<float>(alike);
    }
  }
}

double Covariance::evidence(std::span<const SurrogateSite> sites, std::span<const double> values) {
  double prior = 0;
  for (const Hyper& h : hypers_) prior -= 0.5 * std::pow((h.value - h.mean) / h.deviation, 2);
  // Cholesky's factor, transposed, so that every inner loop runs along memory.
  const std::size_t n = sites.size();
  factor_.resize(n * n);
  solved_.assign(values.begin(), values.end());
  double log_determinant = 0, squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double* row = &factor_[i * n];
    for (std::size_t j = i; j < n; ++j) row[j] = (*this)(sites[i], sites[j]);
    row[i] += noise_;
    for (std::size_t p = 0; p < i; ++p) {
      const double* above = &factor_[p * n];
      const double by = above[i];
      for (std::size_t j = i; j < n; ++j) row[j] -= by * above[j];
    }
    const double pivot = std::sqrt(std::max(row[i], kLeastPivot));
    for (std::size_t j = i; j < n; ++j) row[j] /= pivot;
    row[i] = pivot;
    const double z = solved_[i] / pivot;
    for (std::size_t j = i + 1; j < n; ++j) solved_[j] -= z * row[j];
    log_determinant += std::log(pivot);
    squares += z * z;
  }
  // The scale is profiled out.
  const double freedom = static_cast<double>(n) + kScalePrior;
  return prior - log_determinant - 0.5 * freedom * std::log((squares + kScalePrior) / freedom);
}

void Covariance::fit(std::span<const SurrogateSite> sites, std::span<const double> values,
                     int sweeps, Random& random) {
  double best = evidence(sites, values);
  std::vector<std::size_t> order(hypers_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    random.shuffle(order);
    for (const std::size_t i : order) {
      Hyper& hyper = hypers_[i];
      const double before = hyper.value;
      double step = (hyper.kind == Hyper::weight ? 2 : 1) * (random.chance(0.5) ? kStep : -kStep);
      bool better = false;
      for (int turn = 0; turn < 2 && !better; ++turn, step = -step) {
        hyper.value = before + step;
        apply(hyper);
        const double now = evidence(sites, values);
        better = now > best;
        if (better) best = now;
      }
      if (better) continue;
      hyper.value = before;
      apply(hyper);
    }
  }
}

double Covariance::distance(const SurrogateSite& a, const SurrogateSite& b) const {
  double sum = 0;
  for (std::size_t d = 0; d < axes_.size(); ++d) {
    const Axis& axis = axes_[d];
    const std::uint8_t i = a.levels[d], j = b.levels[d];
    if (axis.ordered)
      sum += std::fabs(axis.scale[i] - axis.scale[j]) +
             (axis.odd[i] != axis.odd[j] ? kOddDistance : 0);
    else
      sum += i != j;
  }
  return sum;
}

int Covariance::odd(const SurrogateSite& site) const {
  int count = 0;
  for (std::size_t d = 0; d < axes_.size(); ++d) count += axes_[d].odd[site.levels[d]];
  return count;
}

void Posterior::clear() {
  restart();
  trends_.clear();
  variance_.clear();
  levels_.assign(covariance_.dimensions(), {});
}

void Posterior::restart() {
  sites_.clear();
  factor_.clear();
  rows_.clear();
  const auto slope = static_cast<float>(covariance_.trend_weight());
  for (std::size_t c = 0; c < candidates(); ++c) variance_[c] = 1 + slope * trends_[c] * trends_[c];
}

void Posterior::condition(std::span<const SurrogateSite> sites) {
  complete();
  std::size_t same = 0;
  while (same < std::min(sites.size(), sites_.size()) && sites[same] == sites_[same]) ++same;
  keep_rows(same);
  for (const SurrogateSite& site : sites.subspan(same)) add_row(site);
}

void Posterior::add_candidate(const SurrogateSite& candidate) {
  for (std::size_t d = 0; d < levels_.size(); ++d) levels_[d].push_back(candidate.levels[d]);
  trends_.push_back(candidate.trend);
  variance_.push_back(static_cast<float>(covariance_(candidate, candidate)));
}

void Posterior::add_row(const SurrogateSite& site) {
  const std::size_t n = sites_.size();
  std::vector<double> column(n);
  for (std::size_t i = 0; i < n; ++i) column[i] = covariance_(site, sites_[i]);
  double pivot = covariance_(site, site) + covariance_.noise();
  for (std::size_t p = 0; p < n; ++p) {
    column[p] /= factor_[p][0];
    const double* along = factor_[p].data();
    for (std::size_t j = p + 1; j < n; ++j) column[j] -= column[p] * along[j - p];
    pivot -= column[p] * column[p];
  }
  pivot = std::sqrt(std::max(pivot, kLeastPivot));
  for (std::size_t p = 0; p < n; ++p) factor_[p].push_back(column[p]);
  factor_.push_back({pivot});
  sites_.push_back(site);
  rows_.emplace_back();
  extend_row(n);
}

void Posterior::complete() {
  if (rows_.empty() || rows_[0].size() == candidates()) return;
  for (std::size_t p = 0; p < rows_.size(); ++p) extend_row(p);
}

void Posterior::extend_row(std::size_t p) {
  const std::size_t first = rows_[p].size();
  std::vector<float> row(candidates() - first, 1.0F);
  for (std::size_t d = 0; d < levels_.size(); ++d) {
    const float* alike = covariance_.row(d, sites_[p].levels[d]).data();
    const std::uint8_t* level = levels_[d].data() + first;
    for (std::size_t c = 0; c < row.size(); ++c) row[c] *= alike[level[c]];
  }
  const auto slope = static_cast<float>(covariance_.trend_weight()) * sites_[p].trend;
  if (slope != 0)
    for (std::size_t c = 0; c < row.size(); ++c) row[c] += slope * trends_[first + c];
  std::vector<double> less(p);
  for (std::size_t q = 0; q < p; ++q) less[q] = -factor_[q][p - q];
  add_rows(less, first, row);
  const auto inverse = static_cast<float>(1 / factor_[p][0]);
  for (std::size_t c = 0; c < row.size(); ++c) {
    row[c] *= inverse;
    variance_[first + c] -= row[c] * row[c];
  }
  rows_[p].insert(rows_[p].end(), row.begin(), row.end());
}

void Posterior::add_rows(std::span<const double> by, std::size_t first,
                         std::span<float> sum) const {
  // Four at a time: most of the time goes into reading and writing `sum`.
  std::size_t p = 0;
  for (; p + 4 <= by.size(); p += 4) {
    const auto by0 = static_cast<float>(by[p]), by1 = static_cast<float>(by[p + 1]),
               by2 = static_cast<float>(by[p + 2]), by3 = static_cast<float>(by[p + 3]);
    const float *row0 = rows_[p].data() + first, *row1 = rows_[p + 1].data() + first,
                *row2 = rows_[p + 2].data() + first, *row3 = rows_[p + 3].data() + first;
    for (std::size_t c = 0; c < sum.size(); ++c)
      sum[c] += (by0 * row0[c] + by1 * row1[c]) + (by2 * row2[c] + by3 * row3[c]);
  }
  for (; p < by.size(); ++p)
    for (std::size_t c = 0; c < sum.size(); ++c)
      sum[c] += static_cast<float>(by[p]) * rows_[p][first + c];
}

void Posterior::keep_rows(std::size_t rows) {
  for (std::size_t p = rows; p < rows_.size(); ++p)
    for (std::size_t c = 0; c < candidates(); ++c) variance_[c] += rows_[p][c] * rows_[p][c];
  rows_.resize(std::min(rows, rows_.size()));
  sites_.resize(rows_.size());
  factor_.resize(rows_.size());
  for (std::size_t p = 0; p < factor_.size(); ++p) factor_[p].resize(rows_.size() - p);
}

double Posterior::squares(std::span<const double> values) const {
  std::vector<double> z(values.begin(), values.end());
  double sum = 0;
  for (std::size_t p = 0; p < z.size(); ++p) {
    const double* along = factor_[p].data();
    z[p] /= along[0];
    for (std::size_t j = p + 1; j < z.size(); ++j) z[j] -= z[p] * along[j - p];
    sum += z[p] * z[p];
  }
  return sum;
}

void Posterior::predict(std::span<const double> values, std::size_t first,
                        std::vector<float>& mean) {
  complete();
  const std::size_t n = values.size();
  std::vector<double> z(values.begin(), values.end());
  double squares = 0;
  mean.assign(candidates() - first, 0.0F);
  for (std::size_t p = 0; p < n; ++p) {
    const double* along = factor_[p].data();
    z[p] /= along[0];
    for (std::size_t j = p + 1; j < n; ++j) z[j] -= z[p] * along[j - p];
    squares += z[p] * z[p];
  }
  add_rows(z, first, mean);
  scale_ = (squares + kScalePrior) / (static_cast<double>(n) + kScalePrior);
  for (std::size_t c = first; c < candidates(); ++c)
    variance_[c] = std::max(variance_[c], kLeastVariance);
}

bool Surrogate::fit(std::span<const SurrogateSite> sites, std::span<const double> values,
                    Random& random) {
  const std::size_t n = values.size();
  if (n >= last_fit_ && n < next_fit_) return false;
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (n > kFitSites) {  // the lowest half, and any others
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
    for (std::size_t i = kFitSites / 2; i < kFitSites; ++i)
      std::swap(order[i], order[i + random.below(n - i)]);
    order.resize(kFitSites);
  }
  std::vector<SurrogateSite> some_sites;
  std::vector<double> some_values;
  for (const std::size_t i : order) {
    some_sites.push_back(sites[i]);
    some_values.push_back(values[i]);
  }
  covariance_.fit(some_sites, some_values, last_fit_ == 0 ? 3 : 1, random);
  last_fit_ = n;
  next_fit_ =
      n < fit_each_ ? n + 1 : static_cast<std::size_t>(static_cast<double>(n) * kFitGrowth) + 1;
  posterior_.restart();
  return true;
}

}  // namespace kiln::runtime
