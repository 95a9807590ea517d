// The default strategy: sequential model-based search. A few well-spread configs, then again and
// again the one with the greatest expected improvement under a Gaussian process of the logarithm
// of the time, times the chance that it works at all, which a second process learns from failures
// (model_surrogate.hpp). Expected improvement: D. R. Jones, M. Schonlau, W. J. Welch, Efficient
// Global Optimization of Expensive Black-Box Functions, J. Global Optimization 13, 1998.
//
// It pays off above all in the first fifty evaluations: strategies that climb or breed pay for
// every step with a measurement, a model only where it is uncertain. On 32 made spaces, three
// things are each worth .007 to .01 of the mean fraction of the optimum after 25 evaluations and
// .002 to .003 after 100: the slowest time is expected where nothing is known, parameters without
// an order are assumed to matter little, and the search walks from the best of the pool. The size
// of the design (5 to 12), the other priors and how slow times are scaled matter less than that.
//
// With evidence of other problems or devices there is no design: an expectation that comes from
// them (model_evidence.hpp) is the process's mean from the first proposal on.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "runtime/search/history.hpp"
#include "runtime/search/strategies/model_evidence.hpp"
#include "runtime/search/strategies/model_surrogate.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

constexpr std::size_t kDesign = 8;         ///< well-spread configs before the model
constexpr std::size_t kDesignDraws = 64;   ///< candidates for each
constexpr double kDesignOdd = 1.0;         ///< handicap of each value that is no power of two
constexpr std::size_t kFewest = 2;         ///< times that the model needs
constexpr std::size_t kPool = 1000;        ///< candidates, where the space is larger
constexpr std::size_t kSampledPool = 500;  ///< where samples are dear
constexpr std::size_t kMostSteps = 8;      ///< from the best candidate to its neighbours
constexpr std::size_t kFitTimes = 30;      ///< times, up to which each new one leads to a fit
constexpr std::size_t kFitFailures = 4;    ///< results, likewise
constexpr std::size_t kSettled = 25;       ///< times, from which on each fit has a new pool
constexpr std::size_t kMostRows = 320;     ///< times that the model keeps in mind
constexpr std::size_t kMostPending = 64;   ///< proposals without result that it heeds
constexpr double kLeastChance = 0.01;      ///< that a config works
// Without a budget the search ends when for kPatience proposals in a row it expects to gain less
// than kHardly, and has not gained kGain within the last kWindow results. It always ends when it
// has seen as many configs as most_without_budget() says: with a noisy clock, every lucky sample
// promises more.
constexpr double kHardly = 0.001;
constexpr double kGain = 0.01;
constexpr std::size_t kPatience = 10;
constexpr std::size_t kWindow = 80;
constexpr double kLeastSeconds = 1e-12;
constexpr double kExpectationWorth = 2;  ///< results that what earlier tasks let expect is worth
constexpr double kLeastWeight = 1e-3;    ///< of a hypothesis that is heeded
constexpr float kTrendLimit = 3;         ///< deviations; a wild guess is no more than that

/// log(E[max(0, best - y)]) for y normal with this mean and deviation.
double log_expected_improvement(double best, double mean, double deviation) {
  const double z = (best - mean) / deviation;
  const double log_deviation = std::log(deviation);
  if (z < -5)  // asymptotically; the difference below would cancel
    return log_deviation - 0.5 * z * z - std::log(z * z) - 0.919;
  const double density = 0.3989422804014327 * std::exp(-0.5 * z * z);
  return log_deviation + std::log(0.5 * z * std::erfc(-z * M_SQRT1_2) + density);
}

/// Seconds guessed by a cost model, as a number of deviations from the usual.
class Trend {
 public:
  explicit Trend(const SearchProblem& search) : search_(search) {}

  bool given() const { return static_cast<bool>(search_.predicted); }
  double log_seconds(const Point& point) const {
    if (!given()) return 0;
    const double seconds = search_.predicted(search_.space.values(point));
    return seconds > 0 && std::isfinite(seconds) ? std::log(seconds)
                                                 : std::numeric_limits<double>::infinity();
  }
  /// From a sample of the space.
  void calibrate(const std::vector<Point>& points) {
    std::vector<double> known;
    for (const Point& point : points)
      if (const double guess = log_seconds(point); std::isfinite(guess)) known.push_back(guess);
    if (known.empty()) return;
    std::nth_element(known.begin(), known.begin() + known.size() / 2, known.end());
    centre_ = known[known.size() / 2];
    double squares = 0;
    for (const double guess : known) squares += (guess - centre_) * (guess - centre_);
    deviation_ = std::max(std::sqrt(squares / static_cast<double>(known.size())), 1e-9);
  }
  float operator()(const Point& point) const {
    if (!given()) return 0;
    const auto guess = static_cast<float>((log_seconds(point) - centre_) / deviation_);
    return std::clamp(guess, -kTrendLimit, kTrendLimit);
  }

 private:
  const SearchProblem& search_;
  double centre_ = 0, deviation_ = 1;
};

class Model final : public Strategy {
 public:
  explicit Model(const SearchProblem& search)
      : problem_(search),
        space_(problem_.space),
        history_(space_),
        random_(problem_.seed),
        trend_(problem_),
        times_(space_, trend_.given(), kFitTimes),
        failures_(space_, false, kFitFailures),
        earlier_(space_, problem_.evidence, random_),
        design_(!earlier_.empty()      ? 0
                : problem_.budget == 0 ? kDesign
                                       : std::clamp<std::size_t>(problem_.budget / 3, 1, kDesign)) {
    if (const std::size_t listed = space_.enumerate().size(); listed > 0)
      most_ = most_without_budget(listed);
    if (!trend_.given()) return;
    std::vector<Point> sample;
    for (std::size_t i = 0; i < kDesignDraws; ++i)
      if (auto point = space_.sample(random_)) sample.push_back(std::move(*point));
    trend_.calibrate(sample);
  }

  std::vector<Values> propose(std::size_t count) override {
    std::vector<Values> proposals;
    while (proposals.size() < count && !over_) {
      const std::optional<Point> next = choose();
      if (!next) {
        over_ = true;
        break;
      }
      history_.propose(*next);
      seen_.push_back(site(*next));
      pending_.push_back(*next);
      proposals.push_back(space_.values(*next));
    }
    return proposals;
  }

  void observe(std::span<const std::int64_t> config, double seconds) override {
    const std::optional<Point> point = space_.point(config);
    if (!point) return;
    const bool known = history_.contains(*point);
    history_.observe(config, seconds);
    const std::optional<double> result = history_.result(*point);
    if (!result) return;  // not allowed
    if (!known) seen_.push_back(site(*point));
    if (const auto at = std::find(pending_.begin(), pending_.end(), *point); at != pending_.end())
      pending_.erase(at);
    const auto same = std::find_if(results_.begin(), results_.end(),
                                   [&](const Result& r) { return r.point == *point; });
    const double value = std::log(std::max(*result, kLeastSeconds));
    if (same != results_.end()) {
      same->value = value;
    } else {
      results_.push_back(
          {*point, site(*point), value, earlier_.opinions(*point), earlier_.failed(*point)});
    }
    if (value < gained_at_ - kGain) {
      gained_at_ = value;
      last_gain_ = results_.size();
    }
  }

 private:
  struct Result {
    Point point;
    SurrogateSite site;
    double value;  ///< log(seconds), infinite where it failed
    Opinions opinions;
    bool failed_earlier;  ///< in a search that the opinions come from
    bool works() const { return std::isfinite(value); }
  };

  std::optional<Point> choose() {
    if (problem_.budget == 0 && converged()) return {};
    const auto works = static_cast<std::size_t>(
        std::count_if(results_.begin(), results_.end(), [](const Result& r) { return r.works(); }));
    if (history_.points().size() < design_) return spread();
    // If hardly any config works, points far apart are no better than others.
    if (works < kFewest && earlier_.empty()) return history_.unseen(random_);
    if (const std::optional<Point> best = most_promising()) return best;
    return history_.unseen(random_);
  }

  SurrogateSite site(const Point& point) const {
    return times_.covariance().site(point, trend_(point));
  }

  bool converged() const {
    return history_.points().size() >= most_ ||
           (idle_ >= kPatience && results_.size() >= last_gain_ + kWindow);
  }

  /// Chooses among some random points the one farthest from all seen points. Every second point of
  /// the design comes from the points that the cost model expects to be fast.
  std::optional<Point> spread() {
    std::vector<Point> points;
    for (std::size_t i = 0; i < kDesignDraws; ++i) {
      std::optional<Point> point = history_.unseen(random_);
      if (!point) break;
      points.push_back(std::move(*point));
      if (seen_.size() > 4 * kDesignDraws) break;  // where nothing works, any will do
    }
    if (points.empty()) return {};
    if (trend_.given() && seen_.size() % 2 == 0) {
      std::stable_sort(points.begin(), points.end(),
                       [&](const Point& a, const Point& b) { return trend_(a) < trend_(b); });
      points.resize(std::max<std::size_t>(1, points.size() / 16));
    }
    const Covariance& covariance = times_.covariance();
    const Point* best = nullptr;
    double most = 0;
    for (const Point& point : points) {
      const SurrogateSite here = site(point);
      double nearest = seen_.empty() ? 0 : std::numeric_limits<double>::infinity();
      for (const SurrogateSite& other : seen_)
        nearest = std::min(nearest, covariance.distance(here, other));
      nearest -= kDesignOdd * covariance.odd(here);
      if (best && nearest <= most) continue;
      best = &point;
      most = nearest;
    }
    return *best;
  }

  std::optional<Point> most_promising() {
    choose_rows();
    std::vector<SurrogateSite> sites, all_sites;  // those that work, and all
    std::vector<double> values, fails;
    std::vector<const Opinions*> told;
    std::vector<bool> comparable;
    for (const std::size_t r : rows_) {
      const Result& result = results_[r];
      all_sites.push_back(result.site);
      fails.push_back(result.works() ? 0 : 1);
      if (!result.works()) continue;
      sites.push_back(result.site);
      values.push_back(result.value);
      told.push_back(&result.opinions);
      comparable.push_back(!result.failed_earlier);
    }
    const EarlierTasks::Told results{told, values, comparable};
    if (!earlier_.empty()) earlier_.combine(results);
    const Standard usual = standardise(values, told, likely_);

    const bool fitted = times_.fit(sites, usual.values, random_);
    if (pool_.empty() || (fitted && !whole_ && values.size() > kSettled)) draw_pool();
    const std::size_t last = std::min(pending_.size(), kMostPending);
    for (auto point = pending_.end() - static_cast<std::ptrdiff_t>(last); point != pending_.end();
         ++point)
      sites.push_back(site(*point));
    times_.posterior().condition(sites);
    weigh_hypotheses(results);
    const bool failures = values.size() < rows_.size();
    if (failures) {
      failures_.fit(all_sites, fails, random_);
      failures_.posterior().condition(all_sites);
    }
    std::vector<Standard> standards;
    if (earlier_.empty()) standards.push_back(usual);
    for (std::size_t h = 0; h < earlier_.hypotheses().size(); ++h)
      standards.push_back(standardise(values, told, h));
    if (!failures) fails.clear();

    // A pool that is a sample hardly ever holds the most promising config: from the best of it, a
    // walk to ever better neighbours leads there.
    std::optional<Candidate> best;
    for (std::size_t step = 0, judged = 0; judged < pool_.size(); ++step) {
      best = better(best, judged, standards, fails);
      judged = pool_.size();
      if (best && step < kMostSteps) join_neighbours(pool_[best->at]);
    }
    if (!best) return {};
    idle_ = std::exp(best->merit) < kHardly ? idle_ + 1 : 0;
    return pool_[best->at];
  }

  struct Candidate {
    std::size_t at;  ///< in the pool
    double merit;
  };

  /// Times without what a hypothesis expects of them, in units above their median; if there is no
  /// hypothesis, above the slowest.
  struct Standard {
    std::vector<double> values;
    double best = 0;  ///< the fastest time, likewise
    double unit = 1;
    std::size_t hypothesis = 0;
  };
  Standard standardise(std::span<const double> values, std::span<const Opinions* const> told,
                       std::size_t hypothesis) const {
    Standard all{{values.begin(), values.end()}, 0, 1, hypothesis};
    double squares = 0, count = static_cast<double>(values.size());
    if (!earlier_.empty()) {
      const double doubt = earlier_.hypotheses()[hypothesis].doubt;
      squares = kExpectationWorth * doubt * doubt;
      count += kExpectationWorth;
      for (std::size_t i = 0; i < values.size(); ++i)
        all.values[i] -= earlier_.expected(*told[i], hypothesis);
    }
    double centre = 0;
    if (!values.empty()) {
      std::vector<double> sorted = all.values;
      std::sort(sorted.begin(), sorted.end());
      // Far from all results a process expects its mean. Most of a space is slow: a search that
      // knows nothing else of it expects the slowest time there, and does not go to see.
      centre = earlier_.empty() ? sorted.back() : sorted[(sorted.size() - 1) / 2];
      all.best = *std::min_element(values.begin(), values.end());
    }
    for (const double v : all.values) squares += (v - centre) * (v - centre);
    all.unit = std::sqrt(squares / count) + 1e-9;
    for (double& v : all.values) v = (v - centre) / all.unit;
    all.best = (all.best - centre) / all.unit;
    return all;
  }

  /// @pre the posterior is conditioned on the results
  void weigh_hypotheses(const EarlierTasks::Told& results) {
    if (earlier_.empty()) return;
    std::vector<double> squares;
    for (std::size_t h = 0; h < earlier_.hypotheses().size(); ++h)
      squares.push_back(times_.posterior().squares(earlier_.off_by(h, results)));
    earlier_.weigh(squares, static_cast<std::size_t>(std::ranges::count(results.comparable, true)));
    const auto most =
        std::ranges::max_element(earlier_.hypotheses(), {}, &EarlierTasks::Hypothesis::weight);
    likely_ = static_cast<std::size_t>(most - earlier_.hypotheses().begin());
  }

  /// `best`, or a more promising one of the pool from `first` on. `fails`: 1 for each result that
  /// failed; empty if none has.
  std::optional<Candidate> better(std::optional<Candidate> best, std::size_t first,
                                  std::span<const Standard> standards,
                                  std::span<const double> fails) {
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    std::vector<double> merits(pool_.size() - first, standards[0].values.empty() ? 0 : kNone);
    for (const Standard& standard : standards) add_merits(standard, first, merits);
    if (!fails.empty()) failures_.posterior().predict(fails, first, failing_);
    for (std::size_t c = first; c < pool_.size(); ++c) {
      if (taken_[c]) continue;
      double merit = merits[c - first] + log_chance_[c];
      if (!fails.empty())
        merit +=
            std::log(std::clamp(1 - static_cast<double>(failing_[c - first]), kLeastChance, 1.0));
      if (merit <= (best ? best->merit : kNone)) continue;
      if (history_.contains(pool_[c]))
        taken_[c] = 1;
      else
        best = {c, merit};
    }
    return best;
  }

  /// To the logarithm of the expected improvement of log(seconds), for each of the pool from
  /// `first` on, what one hypothesis adds. Where there is nothing to improve on, the fastest is the
  /// best.
  void add_merits(const Standard& standard, std::size_t first, std::span<double> merits) {
    const double weight = earlier_.empty() ? 1 : earlier_.hypotheses()[standard.hypothesis].weight;
    if (weight < kLeastWeight) return;
    Posterior& posterior = times_.posterior();
    posterior.predict(standard.values, first, mean_);
    const double share = std::log(weight * standard.unit);
    for (std::size_t i = 0; i < merits.size(); ++i) {
      const std::size_t c = first + i;
      double mean = static_cast<double>(mean_[i]);
      if (!earlier_.empty())
        mean += earlier_.expected(opinions_[c], standard.hypothesis) / standard.unit;
      if (standard.values.empty()) {
        merits[i] -= weight * standard.unit * mean;
        continue;
      }
      const double here =
          share + log_expected_improvement(standard.best, mean, std::sqrt(posterior.variance(c)));
      const double more = std::max(merits[i], here), less = std::min(merits[i], here);
      merits[i] = more + std::log1p(std::exp(less - more));
    }
  }

  /// Chooses the results that the model uses: all, or, once there are too many, the best and some.
  void choose_rows() {
    for (; looked_at_ < results_.size(); ++looked_at_) rows_.push_back(looked_at_);
    if (rows_.size() <= kMostRows) return;
    std::stable_sort(rows_.begin(), rows_.end(), [&](std::size_t a, std::size_t b) {
      return results_[a].value < results_[b].value;
    });
    for (std::size_t i = kMostRows / 3; i < rows_.size(); ++i)
      std::swap(rows_[i], rows_[i + random_.below(rows_.size() - i)]);
    rows_.resize(2 * (kMostRows / 3));
    times_.fit_next_time();
  }

  /// The pool is all points of a small space, or some of a large one, different ones each time.
  void draw_pool() {
    pool_.clear();
    in_pool_.clear();
    taken_.clear();
    opinions_.clear();
    log_chance_.clear();
    expanded_.clear();
    times_.posterior().clear();
    failures_.posterior().clear();
    const std::span<const Point> all = space_.enumerate();
    whole_ = !all.empty() && all.size() <= kPool;
    if (whole_) {
      for (const Point& point : all) join_pool(point);
    } else if (!all.empty()) {
      for (std::size_t i = 0; i < kPool; ++i) join_pool(all[random_.below(all.size())]);
    } else {
      // Some of the samples are new each time, so that points that were missed come later.
      if (sampled_.size() == kSampledPool)
        sampled_.erase(sampled_.begin(), sampled_.begin() + kSampledPool / 4);
      while (sampled_.size() < kSampledPool) {
        std::optional<Point> point = space_.sample(random_);
        if (!point) break;
        sampled_.push_back(std::move(*point));
      }
      for (const Point& point : sampled_) join_pool(point);
    }
    for (const Point& point : earlier_.favourites()) join_pool(point);
  }

  void join_pool(const Point& point) {
    if (history_.contains(point) || !in_pool_.insert(point).second) return;
    const SurrogateSite candidate = site(point);
    times_.posterior().add_candidate(candidate);
    failures_.posterior().add_candidate(candidate);
    pool_.push_back(point);
    if (!earlier_.empty()) opinions_.push_back(earlier_.opinions(point));
    log_chance_.push_back(earlier_.empty() ? 0 : std::log(earlier_.chance(point)));
    taken_.push_back(0);
  }

  void join_neighbours(const Point& point) {
    if (whole_ || !expanded_.insert(point).second) return;
    for (const Point& other : space_.neighbours(point, Neighbourhood::hamming)) join_pool(other);
  }

  using PointSet = std::unordered_set<Point, PointHash>;

  const SearchProblem problem_;
  const SearchSpace& space_;
  History history_;
  Random random_;
  Trend trend_;
  Surrogate times_, failures_;
  EarlierTasks earlier_;
  const std::size_t design_;
  std::size_t most_ = kMostWithoutBudget;  ///< configs seen, when it ends without a budget

  std::vector<SurrogateSite> seen_;  ///< proposed or observed
  std::vector<Point> pending_;       ///< proposed, not observed
  std::vector<Result> results_;

  std::vector<std::size_t> rows_;  ///< results that the model goes by
  std::size_t looked_at_ = 0;      ///< results

  std::vector<Point> pool_;
  std::vector<char> taken_;  ///< of the pool, since it was drawn
  PointSet in_pool_, expanded_;
  std::vector<Point> sampled_;
  std::vector<float> mean_, failing_;  ///< of the pool, from some place on
  std::vector<Opinions> opinions_;     ///< of the pool
  std::vector<double> log_chance_;     ///< likewise, that it works, from what earlier tasks tell
  std::size_t likely_ = 0;             ///< hypothesis

  bool whole_ = false;         ///< the pool holds all points
  std::size_t idle_ = 0;       ///< proposals in a row that promised hardly anything
  std::size_t last_gain_ = 0;  ///< results, when the best was last improved by much
  double gained_at_ = std::numeric_limits<double>::infinity();  ///< the best then, log(seconds)
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_model(const SearchProblem& search, StrategyOptions&) {
  return std::make_unique<Model>(search);
}

}  // namespace kiln::runtime
