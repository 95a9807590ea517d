#include "runtime/measure/finals.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <numeric>

#include "kiln/detail/format.hpp"
#include "runtime/measure/sampler.hpp"
#include "runtime/support/infinity.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime {

namespace {

using Clock = std::chrono::steady_clock;
/// Ranks bound nothing below this many values; Student's bounds stand in.
constexpr std::size_t kFewestRanks = 12;
/// Pairwise means grow with the square of the values: more than this are thinned out.
constexpr std::size_t kMostValues = 200;
/// The least standard deviation of the logarithm of a ratio of times that few samples are trusted
/// to have.
constexpr double kLeastFinalDeviation = 1e-3;
/// A GPU that works without a pause comes to its power limit after some 25 ms and lowers its
/// clocks, an H200 by 15 % in GEMMs. Configs tie then that differ by 10 % at full clocks, where a
/// program runs that does something else in between. A round that takes longer than those before
/// by this factor is slow.
constexpr double kSlow = 1.025;
/// Pauses that are tried if that lasts, as parts of a sample's time, and the rounds for each.
constexpr double kPauses[] = {0, 0.25, 0.5, 1};
constexpr int kRoundsOfPause = 4, kLasts = 2;

double normal_cdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

/// Medians of groups of neighbours; noise that lasts for several rounds counts once, then.
std::vector<double> thinned(const std::vector<double>& values) {
  const std::size_t group = (values.size() + kMostValues - 1) / kMostValues;
  if (group <= 1) return values;
  std::vector<double> result;
  for (std::size_t i = 0; i + group <= values.size(); i += group)
    result.push_back(median({values.begin() + static_cast<std::ptrdiff_t>(i),
                             values.begin() + static_cast<std::ptrdiff_t>(i + group)}));
  return result;
}

/// Log of how much slower `a` is than `b`, over the rounds that both were in: by the ratios within
/// each round, or by the undisturbed samples of either, whichever says it more sharply.
Interval compare(const Contestant& a, const Contestant& b, double deviations) {
  const std::size_t rounds = std::min(a.samples.size(), b.samples.size());
  std::vector<double> ratios, a_logs, b_logs;
  for (std::size_t i = 0; i < rounds; ++i) {
    a_logs.push_back(std::log(a.samples[i]));
    b_logs.push_back(std::log(b.samples[i]));
    ratios.push_back(a_logs.back() - b_logs.back());
  }
  if (ratios.size() < kFewestRanks)
    return student_interval(ratios, normal_cdf(deviations), kLeastFinalDeviation);
  const Interval paired = hodges_lehmann(thinned(ratios), deviations);
  const Interval low_a = low_quantile(std::move(a_logs), deviations);
  const Interval low_b = low_quantile(std::move(b_logs), deviations);
  const double estimate = low_a.estimate - low_b.estimate;
  const Interval low{
      estimate, estimate - std::hypot(low_a.estimate - low_a.low, low_b.high - low_b.estimate),
      estimate + std::hypot(low_a.high - low_a.estimate, low_b.estimate - low_b.low)};
  return low.high - low.low < paired.high - paired.low ? low : paired;
}

/// The first in the order of preference that the rule lets win. `behind(i)` is how far finalist i
/// is behind the fastest; those that `out(i)` names cannot win.
template <class Behind, class Out>
std::size_t first_choice(std::size_t count, std::size_t fastest, const FinalsOptions& options,
                         Behind behind, Out out) {
  const double band = std::log1p(options.tie_band);
  for (std::size_t i = 0; i < count; ++i) {
    if (i == fastest) break;
    if (out(i)) continue;
    const Interval b = behind(i);
    if ((i < options.must_beat ? b.low : b.estimate) <= band) return i;
  }
  return fastest;
}

class Final {
 public:
  Final(TrialBench& bench, std::vector<Contestant>& finalists, const FinalsOptions& options)
      : options_(options),
        measure_(measure_options(options)),
        sampler_(bench, measure_),
        finalists_(finalists) {}

  FinalsResult run(const std::function<bool()>& stop) {
    const auto start = Clock::now();
    const std::vector<Contestant> before = finalists_;
    for (std::size_t i = 0; i < finalists_.size(); ++i) {
      Contestant& c = finalists_[i];
      c.active = c.failure.empty();
      if (c.active && !(stop && stop()) && !options_.deadline.passed()) sampler_.start(c, {});
      c.samples.clear();
      spent_ += c.spent - before[i].spent;
    }
    Random random(1);
    std::size_t next_look = static_cast<std::size_t>(std::max(options_.least_rounds, 2));
    bool decided = false;
    double longest_round = 0;
    while (!decided && any_active() && !(stop && stop()) &&
           options_.deadline.left() > longest_round) {
      const auto begin = Clock::now();
      round(random);
      if (seconds_since(start) < options_.seconds / 2 && take_back_slow_round()) continue;
      ++result_.rounds;
      longest_round = std::max(longest_round, seconds_since(begin));
      const double seconds =
          std::max(spent_, std::chrono::duration<double>(Clock::now() - start).count());
      const bool late = seconds >= options_.seconds &&
                        result_.rounds >= static_cast<std::size_t>(options_.least_rounds);
      if ((result_.rounds < next_look || seconds < options_.least_seconds) && !late) continue;
      decided = look() || late;
      next_look = result_.rounds + result_.rounds / 4 + 1;
    }
    if (result_.rounds == 0) {
      for (std::size_t i = 0; i < finalists_.size(); ++i) finalists_[i].samples = before[i].samples;
      result_.behind.resize(finalists_.size(), {0, -kInfinity, kInfinity});
      result_.winner = choose(finalists_, options_);
      return std::move(result_);
    }
    compare_all();
    result_.winner = winner();
    warn();
    return std::move(result_);
  }

 private:
  static RaceOptions measure_options(const FinalsOptions& options) {
    RaceOptions m;
    m.sample_seconds = options.sample_seconds;
    m.cold_cache = options.cold_cache;
    m.overlap_launches = options.overlap_launches;
    m.graph_replay = options.graph_replay;
    m.deadline = options.deadline;
    return m;
  }

  bool any_active() const {
    return std::any_of(finalists_.begin(), finalists_.end(),
                       [](const Contestant& c) { return c.active; });
  }

  /// No finalist always runs after the same other one.
  void round(Random& random) {
    std::vector<std::size_t> order(finalists_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    random.shuffle(order);
    for (const std::size_t i : order) {
      Contestant& c = finalists_[i];
      if (!c.active) continue;
      const double before = c.spent;
      sampler_.sample(c);
      spent_ += c.spent - before;
      if (pause_ > 0 && pauses_help()) options_.rest(kPauses[pause_] * (c.spent - before));
    }
  }

  bool pauses_help() const { return pause_ < std::size(kPauses); }

  /// How much longer the last round took than those before, at least, for three quarters of the
  /// finalists. A disturbance meets only one of them.
  double slowdown() const {
    std::vector<double> ratios;
    for (const Contestant& c : finalists_)
      if (c.active && c.samples.size() > 2)
        ratios.push_back(c.samples.back() / median({c.samples.begin(), c.samples.end() - 1}));
    return ratios.empty() ? 1 : quantile(std::move(ratios), 0.25);
  }

  /// True when the last round is to be forgotten, because a longer pause may end what slows the
  /// device down.
  bool take_back_slow_round() {
    if (!options_.rest || !pauses_help()) return false;
    if (slowdown() <= kSlow) {
      slow_rounds_ = 0;
      return false;
    }
    if (++slow_rounds_ % kRoundsOfPause == kLasts) ++pause_;
    if (!pauses_help()) return false;
    for (Contestant& c : finalists_)
      if (c.active) c.samples.pop_back();
    return true;
  }

  /// Bounds of all against the fastest; those certainly behind leave.
  void compare_all() {
    result_.behind.assign(finalists_.size(), {0, -kInfinity, kInfinity});
    const Contestant* reference = nullptr;
    double best = kInfinity;
    for (std::size_t i = 0; i < finalists_.size(); ++i) {
      const Contestant& c = finalists_[i];
      if (!c.active || c.samples.empty()) continue;
      if (!reference) reference = &c;
      if (const double e = compare(c, *reference, options_.deviations).estimate; e < best) {
        best = e;
        fastest_ = i;
      }
    }
    if (!reference) return;
    for (std::size_t i = 0; i < finalists_.size(); ++i)
      if (finalists_[i].failure.empty() && !finalists_[i].samples.empty() && i != fastest_)
        result_.behind[i] = compare(finalists_[i], finalists_[fastest_], options_.deviations);
    result_.behind[fastest_] = {};
  }

  /// True when more rounds would not change the winner.
  bool look() {
    compare_all();
    const double band = std::log1p(options_.tie_band);
    for (std::size_t i = 0; i < finalists_.size(); ++i)
      if (finalists_[i].active && i != fastest_ && result_.behind[i].low > band)
        finalists_[i].active = false;
    // The final is certain when the first finalist in the order of preference ties with the
    // fastest, and no finalist may still turn out to be faster than that.
    bool first = true;
    for (std::size_t i = 0; i < finalists_.size(); ++i) {
      if (!finalists_[i].active || i == fastest_) {
        first = first && !finalists_[i].active;
        continue;
      }
      if (result_.behind[i].low < -band || (first && result_.behind[i].high > band)) return false;
      first = false;
    }
    return true;
  }

  std::size_t winner() const {
    if (!any_active()) {
      for (std::size_t i = 0; i < finalists_.size(); ++i)
        if (finalists_[i].failure.empty()) return i;
      return 0;
    }
    return first_choice(
        finalists_.size(), fastest_, options_, [&](std::size_t i) { return result_.behind[i]; },
        [&](std::size_t i) { return !finalists_[i].active; });
  }

  void warn() {
    const Contestant* anchor = nullptr;
    double noise = 0;
    for (std::size_t i = 0; i < finalists_.size(); ++i) {
      const Contestant& c = finalists_[i];
      if (!c.failure.empty() || c.samples.empty()) continue;
      if (!anchor || c.samples.size() > anchor->samples.size()) anchor = &c;
      if (c.active && i != fastest_)
        noise = std::max(noise, (result_.behind[i].high - result_.behind[i].low) / 2);
    }
    if (!anchor) return;
    if (const auto drift = find_drift(anchor->samples))
      result_.warnings.push_back(describe(*drift, "one of the finalists"));
    if (noise > 2 * options_.tie_band)
      result_.warnings.push_back(detail::format(
          "after {} rounds of the final the noise (+-{:.1f} %) exceeds the tie band ({:.1f} %): "
          "the pick may differ from run to run; tune for longer, or on a quieter machine",
          result_.rounds, noise * 100, options_.tie_band * 100));
  }

  const FinalsOptions& options_;
  const RaceOptions measure_;
  Sampler sampler_;
  std::vector<Contestant>& finalists_;
  std::size_t fastest_ = 0;
  double spent_ = 0;       ///< device seconds
  std::size_t pause_ = 0;  ///< which of kPauses; behind the last: none was of use
  int slow_rounds_ = 0;    ///< in a row
  FinalsResult result_;
};

}  // namespace

FinalsResult finals(TrialBench& bench, std::vector<Contestant>& finalists,
                    const FinalsOptions& options, const std::function<bool()>& stop) {
  return Final(bench, finalists, options).run(stop);
}

std::size_t choose(const std::vector<Contestant>& finalists, const FinalsOptions& options) {
  const auto usable = [&](std::size_t i) {
    return finalists[i].failure.empty() && !finalists[i].samples.empty();
  };
  std::size_t fastest = finalists.size();
  for (std::size_t i = 0; i < finalists.size(); ++i)
    if (usable(i) && (fastest == finalists.size() ||
                      median(finalists[i].samples) < median(finalists[fastest].samples)))
      fastest = i;
  if (fastest == finalists.size()) return 0;
  const auto reach = [&](const Contestant& c) {
    std::vector<double> logs;
    for (double s : c.samples) logs.push_back(std::log(s));
    const Interval i = student_interval(logs, normal_cdf(options.deviations), kLeastFinalDeviation);
    return i.high - i.estimate;
  };
  return first_choice(
      finalists.size(), fastest, options,
      [&](std::size_t i) {
        const double estimate =
            std::log(median(finalists[i].samples) / median(finalists[fastest].samples));
        const double wide = std::hypot(reach(finalists[i]), reach(finalists[fastest]));
        return Interval{estimate, estimate - wide, estimate + wide};
      },
      [&](std::size_t i) { return !usable(i); });
}

}  // namespace kiln::runtime
