// The few statistics that timing rests on: robust, for small samples, without assumptions about
// the shape of a machine's noise where that can be had.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kiln::runtime {

/// Infinite when there are none.
double median(std::vector<double> values);
/// Linear between the order statistics; `fraction` in [0, 1]. Infinite when there are none.
double quantile(std::vector<double> values, double fraction);
/// Median absolute deviation over the median; 0 for fewer than two values.
double relative_deviation(const std::vector<double>& values);

/// t with P(T <= t) = `probability` for Student's distribution; `probability` in [0.5, 1).
double student_t(double probability, int degrees_of_freedom);

struct Interval {
  double estimate = 0;
  double low = 0, high = 0;  ///< infinite where the values say nothing
};

/// Mean of `values` with Student's bounds. The true mean lies beyond each bound with probability 1
/// - `confidence`. A deviation below `least_deviation` is raised to it.
Interval student_interval(std::span<const double> values, double confidence,
                          double least_deviation);

/// The Hodges-Lehmann location: the median of all pairwise means. Nearly as sharp as the mean for
/// normal noise, and untouched by a quarter of wild values. Bounds after Wilcoxon's signed ranks,
/// `deviations` standard deviations of theirs wide; no value at all: infinite bounds.
Interval hodges_lehmann(std::span<const double> values, double deviations);

/// A low quantile of `values` with bounds after the order statistics. What disturbs a machine only
/// ever slows it down: as long as a good part of the values is undisturbed, this is what they say,
/// where a median would be half disturbance.
Interval low_quantile(std::vector<double> values, double deviations);
/// About that quantile, by which candidates are compared. Infinite when there are none.
double undisturbed(std::vector<double> values);
constexpr double kLowFraction = 0.2;

/// A change of level in a series of times.
struct Drift {
  double change = 0;             ///< relative: 0.05 is 5 % slower afterwards
  double noise = 0;              ///< relative: what neighbours differ by
  double before = 0, after = 0;  ///< medians, seconds
};
/// The clearest split of `seconds` (in the order taken) into two levels, when they lie further
/// apart than `least` and than the noise explains. Finds a trend, too: its halves differ.
std::optional<Drift> find_drift(std::span<const double> seconds, double least = 0.03);
/// For a result's warnings: `whose` names what was timed.
std::string describe(const Drift& drift, const std::string& whose);

}  // namespace kiln::runtime
