#include <cmath>
#include <limits>
#include <numeric>

#include "kiln_test.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/support/random.hpp"

using namespace kiln::runtime;

namespace {

/// Standard normal, the same everywhere.
double normal(Random& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform())) * std::cos(6.283185307 * random.uniform());
}

std::vector<double> noisy(Random& random, int n, double level, double deviation) {
  std::vector<double> values;
  for (int i = 0; i < n; ++i) values.push_back(level * (1 + deviation * normal(random)));
  return values;
}

}  // namespace

TEST_CASE("median and deviation", "[runtime][statistics]") {
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({7}) == 7);
  CHECK(std::isinf(median({})));
  CHECK(median({1, 1, 1, 1e9}) == 1);
  CHECK(relative_deviation({}) == 0);
  CHECK(relative_deviation({5}) == 0);
  CHECK(relative_deviation({1, 1, 1}) == 0);
  CHECK(relative_deviation({9, 10, 11}) == Approx(0.1));
  CHECK(relative_deviation({10, 10, 10, 1000}) == 0);
}

TEST_CASE("quantiles lie between the order statistics", "[runtime][statistics]") {
  CHECK(quantile({5, 1, 3}, 0) == 1);
  CHECK(quantile({5, 1, 3}, 1) == 5);
  CHECK(quantile({5, 1, 3}, 0.5) == 3);
  CHECK(quantile({5, 1, 3}, 0.25) == 2);
  CHECK(quantile({0, 10}, 0.95) == Approx(9.5));
  CHECK(quantile({4}, 0.3) == 4);
  CHECK(quantile({1, 2}, -3) == 1);
  CHECK(quantile({1, 2}, 7) == 2);
  CHECK(std::isinf(quantile({}, 0.5)));
}

TEST_CASE("Student's quantiles are those of the tables", "[runtime][statistics]") {
  CHECK(student_t(0.975, 1) == Approx(12.7062).epsilon(1e-5));
  CHECK(student_t(0.975, 2) == Approx(4.30265).epsilon(1e-5));
  CHECK(student_t(0.95, 3) == Approx(2.35336).epsilon(1e-5));
  CHECK(student_t(0.975, 4) == Approx(2.77645).epsilon(1e-5));
  CHECK(student_t(0.999, 4) == Approx(7.17318).epsilon(1e-5));
  CHECK(student_t(0.99, 10) == Approx(2.76377).epsilon(1e-5));
  CHECK(student_t(0.95, 30) == Approx(1.69726).epsilon(1e-5));
  CHECK(student_t(0.999, 2) == Approx(22.3271).epsilon(1e-5));
  CHECK(student_t(0.5, 5) == Approx(0).margin(1e-9));
}

TEST_CASE("bounds hold as often as they promise", "[runtime][statistics]") {
  // Coverage of the true location, for normal noise and for noise with wild values on one side.
  Random random(7);
  int student = 0, ranks = 0, wild = 0, sharper = 0;
  constexpr int kTrials = 2000;
  for (int t = 0; t < kTrials; ++t) {
    std::vector<double> few, many, spiked;
    for (int i = 0; i < 6; ++i) few.push_back(normal(random));
    for (int i = 0; i < 30; ++i) {
      many.push_back(normal(random));
      // A difference of two times, each with a spike now and then: symmetric.
      const double up = random.chance(0.1) ? 50 * random.uniform() : 0;
      const double down = random.chance(0.1) ? 50 * random.uniform() : 0;
      spiked.push_back(normal(random) + up - down);
    }
    const Interval s = student_interval(few, 0.975, 0);
    student += s.low <= 0 && s.high >= 0;
    const Interval r = hodges_lehmann(many, 1.96);
    ranks += r.low <= 0 && r.high >= 0;
    const Interval w = hodges_lehmann(spiked, 1.96);
    wild += w.low <= 0 && w.high >= 0;
    const Interval m = student_interval(spiked, 0.975, 0);
    sharper += w.high - w.low < m.high - m.low;
  }
  CHECK(std::abs(student / double(kTrials) - 0.95) < 0.015);
  CHECK(std::abs(ranks / double(kTrials) - 0.95) < 0.015);
  CHECK(wild / double(kTrials) > 0.93);
  CHECK(sharper / double(kTrials) > 0.95);
}

TEST_CASE("little or nothing bounds nothing", "[runtime][statistics]") {
  CHECK(std::isinf(student_interval({}, 0.99, 0).high));
  const std::vector<double> one{5}, two{5, 5};
  CHECK(student_interval(one, 0.99, 0).estimate == 5);
  CHECK(std::isinf(student_interval(one, 0.99, 0).low));
  // Two equal values are no proof of a machine without noise.
  CHECK(student_interval(two, 0.99, 0.1).high > 5.1);
  CHECK(std::isinf(hodges_lehmann({}, 2).low));
  CHECK(std::isinf(hodges_lehmann(two, 3).low));
  CHECK(hodges_lehmann(two, 3).estimate == 5);
  CHECK(std::isinf(low_quantile({}, 2).low));
  CHECK(std::isinf(low_quantile({1, 2, 3}, 3).low));
  CHECK(undisturbed({6, 2, 4, 1, 5, 3}) == 2);
  CHECK(std::isinf(undisturbed({})));
}

TEST_CASE("the pairwise means' median is untouched by a quarter of wild values",
          "[runtime][statistics]") {
  std::vector<double> values(16, 1.0);
  for (int i = 0; i < 4; ++i) values.push_back(1e6);
  CHECK(hodges_lehmann(values, 2).estimate == 1);
  CHECK(hodges_lehmann(std::vector<double>{1, 2, 4}, 0).estimate == 2.25);  // 1 1.5 2 2.5 3 4
}

TEST_CASE("a low quantile says what an undisturbed machine would", "[runtime][statistics]") {
  Random random(3);
  std::vector<double> values;
  for (int i = 0; i < 400; ++i)
    values.push_back((1 + 0.002 * random.uniform()) *
                     (random.chance(0.6) ? 1 + 3 * random.uniform() : 1));
  const Interval low = low_quantile(values, 3);
  CHECK(low.low >= 1);
  CHECK(low.high < 1.05);
  CHECK(low.estimate == Approx(1.001).epsilon(2e-3));
  CHECK(median(values) > 1.1);
}

TEST_CASE("drift is a jump or a trend, not noise", "[runtime][statistics]") {
  Random random(11);
  int alarms = 0;
  for (int t = 0; t < 200; ++t) {
    std::vector<double> values = noisy(random, 20 + t, 1e-3, 0.02);
    for (double& v : values)
      if (random.chance(0.05)) v *= 2;
    alarms += find_drift(values).has_value();
  }
  CHECK(alarms == 0);

  std::vector<double> jump = noisy(random, 12, 1e-3, 0.005);
  for (double v : noisy(random, 9, 1.1e-3, 0.005)) jump.push_back(v);
  const auto found = find_drift(jump);
  REQUIRE(found);
  CHECK(found->change == Approx(0.1).margin(0.01));
  CHECK(found->before == Approx(1e-3).epsilon(0.01));
  CHECK(found->after == Approx(1.1e-3).epsilon(0.01));
  const std::string text = describe(*found, "the default config");
  CAPTURE(text);
  CHECK(text.find("% slower") != std::string::npos);
  CHECK(text.find("the default config") != std::string::npos);

  std::vector<double> trend = noisy(random, 40, 1e-3, 0.005);
  for (std::size_t i = 0; i < trend.size(); ++i) trend[i] *= 1 + 0.003 * static_cast<double>(i);
  CHECK(find_drift(trend));
  std::reverse(trend.begin(), trend.end());
  REQUIRE(find_drift(trend));
  CHECK(find_drift(trend)->change < 0);
  CHECK(describe(*find_drift(trend), "x").find("% faster") != std::string::npos);

  CHECK_FALSE(find_drift(std::vector<double>(100, 1e-3)));
  CHECK_FALSE(find_drift({}));
  CHECK_FALSE(find_drift(std::vector<double>{1, 1, 1, 1, 5, 5, 5}));  // too few
}
