#include "runtime/measure/race.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/measure/sampler.hpp"
#include "runtime/support/infinity.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime {

namespace {

/// The least standard deviation of the logarithm of a ratio of times that so few samples are
/// trusted to have.
constexpr double kLeastRaceDeviation = 2e-3;
/// What a bound needs.
constexpr std::size_t kFew = 3;

bool timed_well(const Contestant& c) { return c.failure.empty() && !c.samples.empty(); }

/// The fastest of those still in the race; null when there is none.
const Contestant* leader_of(const std::vector<Contestant>& contestants) {
  const Contestant* leader = nullptr;
  double best = kInfinity;
  for (const Contestant& c : contestants) {
    if (!c.active || !timed_well(c)) continue;
    if (const double middle = median(c.samples); middle < best) {
      best = middle;
      leader = &c;
    }
  }
  return leader;
}

/// How much slower `c` is than `leader`, round by round: what slows the machine down meets both.
std::vector<double> ratios(const Contestant& c, const Contestant& leader) {
  const std::size_t rounds = std::min(c.samples.size(), leader.samples.size());
  std::vector<double> result;
  for (std::size_t i = 0; i < rounds; ++i) result.push_back(c.samples[i] / leader.samples[i]);
  return result;
}

bool certainly_slower(const std::vector<double>& ratios, double confidence) {
  if (ratios.size() < kFew) return false;
  std::vector<double> logs;
  for (double r : ratios) logs.push_back(std::log(r));
  return student_interval(logs, confidence, kLeastRaceDeviation).low > 0;
}

class Race {
 public:
  Race(TrialBench& bench, std::vector<Contestant>& contestants, const RaceOptions& options,
       const std::function<bool(std::size_t)>& keeps)
      : options_(options), contestants_(contestants), keeps_(keeps), sampler_(bench, options) {}

  void start(Contestant& c) {
    if (!c.active) return;
    if (keeps_(c.candidate)) return sampler_.start(c, {});
    sampler_.start(c, [&](double seconds) { return hopeless(c, seconds); });
  }

  void sample(Contestant& c) {
    if (c.active) sampler_.sample(c);
  }

  /// Takes contestants out that are far behind, certainly behind, or out of time. None leaves
  /// before a few samples.
  void drop(double factor) {
    const Contestant* leader = leader_of(contestants_);
    if (!leader) return;
    for (Contestant& c : contestants_) {
      if (!c.active || &c == leader) continue;
      if (c.samples.size() < kFew) continue;  // a slow spell of the machine may outlast two
      const std::vector<double> slower = ratios(c, *leader);
      // The median is not used: as long as some rounds say otherwise, the others were disturbed.
      if (quantile(slower, 0.25) > factor ||
          (!keeps_(c.candidate) && certainly_slower(slower, options_.confidence)))
        c.active = false;
    }
    for (Contestant& c : contestants_)
      if (c.spent > options_.contestant_seconds && c.samples.size() >= kFew) c.active = false;
  }

 private:
  /// Compares the contestant with a single launch of the leader, because it was timed that way: a
  /// sample of several launches hides the overhead of each, which may exceed the kernel's time. The
  /// leader is timed now, in case the machine is slow just now. Then the contestant is timed again,
  /// in case the machine was slow before, unless it is too slow for that to be the reason.
  bool hopeless(Contestant& c, double seconds) {
    const Contestant* leader = leader_of(contestants_);
    const double factor = options_.give_up_factor;
    if (!leader || seconds <= factor * median(leader->samples)) return false;
    const double now = sampler_.probe(contestant_at(leader));
    if (seconds <= factor * now) return false;
    constexpr double kBeyondDisturbance = 4;
    return seconds > kBeyondDisturbance * factor * now || sampler_.probe(c) > factor * now;
  }
  Contestant& contestant_at(const Contestant* c) {
    return contestants_[static_cast<std::size_t>(c - contestants_.data())];
  }

  const RaceOptions& options_;
  std::vector<Contestant>& contestants_;
  const std::function<bool(std::size_t)>& keeps_;
  Sampler sampler_;
};

}  // namespace

RaceReport race(TrialBench& bench, std::vector<Contestant>& contestants, const RaceOptions& options,
                const std::function<bool(std::size_t)>& keeps,
                const std::function<void(std::size_t, std::size_t)>& progress) {
  RaceReport report;
  if (contestants.empty()) return report;
  Race run(bench, contestants, options, keeps);
  std::size_t done = 0;
  const std::size_t total = contestants.size() * static_cast<std::size_t>(options.rounds);
  const auto said = [&] {
    ++done;
    if (progress) progress(std::min(done, total), total);
  };
  const auto late = [&] { return options.deadline.passed(); };
  for (Contestant& c : contestants) {
    if (late() && std::any_of(contestants.begin(), contestants.end(), timed_well)) {
      c.active = false;
      continue;
    }
    run.start(c);
    said();
  }
  // The order changes each time, so that no contestant is always the earlier one of a pair.
  std::vector<Contestant*> order;
  for (Contestant& c : contestants) order.push_back(&c);
  Random random(1);
  for (int round = 1; round < options.rounds + options.final_rounds && !late(); ++round) {
    const bool last_rounds = round >= options.rounds;
    if (round == options.rounds) run.drop(options.final_factor);
    random.shuffle(order);
    for (Contestant* c : order) {
      if (late()) break;
      run.sample(*c);
      if (!last_rounds) said();
    }
    run.drop(last_rounds ? options.final_factor : options.give_up_factor);
  }

  // A contestant that was timed to the end has seen all that the machine did.
  const Contestant* anchor = nullptr;
  for (const Contestant& c : contestants)
    if (timed_well(c) && (!anchor || c.samples.size() > anchor->samples.size() ||
                          (c.samples.size() == anchor->samples.size() && keeps(c.candidate) &&
                           !keeps(anchor->candidate))))
      anchor = &c;
  if (anchor)
    if (const auto drift = find_drift(anchor->samples))
      report.warnings.push_back(
          describe(*drift, keeps(anchor->candidate) ? "the default config" : "the fastest config"));
  return report;
}

}  // namespace kiln::runtime
