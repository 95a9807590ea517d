#include "runtime/measure/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <boost/math/distributions/students_t.hpp>

#include "kiln/detail/format.hpp"
#include "runtime/support/infinity.hpp"

namespace kiln::runtime {

namespace {

/// What makes a median absolute deviation a standard deviation, for normal noise.
constexpr double kNormal = 1.4826;

double median_of(std::span<const double> values) {
  return median(std::vector<double>(values.begin(), values.end()));
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return kInfinity;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return kInfinity;
  std::sort(values.begin(), values.end());
  const double place = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

double relative_deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double center = median(values);
  std::vector<double> distances;
  for (double v : values) distances.push_back(std::abs(v - center));
  return median(std::move(distances)) / center;
}

double student_t(double probability, int degrees_of_freedom) {
  return boost::math::quantile(boost::math::students_t(degrees_of_freedom), probability);
}

Interval student_interval(std::span<const double> values, double confidence,
                          double least_deviation) {
  if (values.empty()) return {0, -kInfinity, kInfinity};
  const auto n = static_cast<double>(values.size());
  double mean = 0;
  for (double v : values) mean += v / n;
  if (values.size() < 2) return {mean, -kInfinity, kInfinity};
  double squares = 0;
  for (double v : values) squares += (v - mean) * (v - mean);
  const double deviation = std::max(std::sqrt(squares / (n - 1)), least_deviation);
  const double reach =
      student_t(confidence, static_cast<int>(values.size()) - 1) * deviation / std::sqrt(n);
  return {mean, mean - reach, mean + reach};
}

Interval hodges_lehmann(std::span<const double> values, double deviations) {
  if (values.empty()) return {0, -kInfinity, kInfinity};
  std::vector<double> means;
  means.reserve(values.size() * (values.size() + 1) / 2);
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = i; j < values.size(); ++j) means.push_back((values[i] + values[j]) / 2);
  const auto n = static_cast<double>(values.size());
  const double outside =
      n * (n + 1) / 4 - deviations * std::sqrt(n * (n + 1) * (2 * n + 1) / 24) - 0.5;
  Interval result{0, -kInfinity, kInfinity};
  if (outside >= 0) {
    const auto place = static_cast<std::ptrdiff_t>(outside);
    const auto last = static_cast<std::ptrdiff_t>(means.size()) - 1 - place;
    std::nth_element(means.begin(), means.begin() + place, means.end());
    result.low = means[static_cast<std::size_t>(place)];
    std::nth_element(means.begin(), means.begin() + last, means.end());
    result.high = means[static_cast<std::size_t>(last)];
  }
  result.estimate = median(std::move(means));
  return result;
}

Interval low_quantile(std::vector<double> values, double deviations) {
  if (values.empty()) return {0, -kInfinity, kInfinity};
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const double place = kLowFraction * (n - 1);
  const double reach = deviations * std::sqrt(n * kLowFraction * (1 - kLowFraction));
  const auto at = [&](double where) { return values[static_cast<std::size_t>(where)]; };
  Interval result{at(place), -kInfinity, kInfinity};
  if (place - reach >= 0) result.low = at(place - reach);
  if (std::ceil(place + reach) <= n - 1) result.high = at(std::ceil(place + reach));
  return result;
}

double undisturbed(std::vector<double> values) { return quantile(std::move(values), kLowFraction); }

std::optional<Drift> find_drift(std::span<const double> seconds, double least) {
  // Fewer values on a side say nothing about a level: two of them may be spikes.
  constexpr std::size_t kLeastSide = 5;
  const std::size_t n = seconds.size();
  const std::size_t side = std::max(kLeastSide, n / 10);
  if (n < 2 * side) return {};
  // Noise is what neighbours differ by; a trend or a jump hardly adds to that.
  std::vector<double> steps;
  for (std::size_t i = 1; i < n; ++i)
    steps.push_back(std::abs(std::log(seconds[i] / seconds[i - 1])));
  const double noise = median(std::move(steps)) / std::numbers::sqrt2;
  std::optional<Drift> found;
  double clearest = 4;  // standard deviations
  const std::size_t step = std::max<std::size_t>(1, n / 64);
  for (std::size_t split = side; split + side <= n; split += step) {
    Drift d{0, noise, median_of(seconds.first(split)), median_of(seconds.subspan(split))};
    d.change = d.after / d.before - 1;
    const double deviation =
        kNormal * noise *
        std::sqrt(1.0 / static_cast<double>(split) + 1.0 / static_cast<double>(n - split));
    const double clear = (std::abs(d.change) - least) / std::max(deviation, 1e-9);
    if (clear > clearest) {
      clearest = clear;
      found = d;
    }
  }
  return found;
}

std::string describe(const Drift& drift, const std::string& whose) {
  return detail::format(
      "the machine got {:.1f} % {} while timing ({}: {:.4g} ms before, {:.4g} ms after, noise "
      "{:.1f} %): clocks were throttled or raised, or other work ran at the same time",
      std::abs(drift.change) * 100, drift.change > 0 ? "slower" : "faster", whose,
      drift.before * 1e3, drift.after * 1e3, drift.noise * 100);
}

}  // namespace kiln::runtime
