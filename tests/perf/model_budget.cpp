// One budget for a whole model, by a simulated clock: what searches reach within it when it is
// divided by next_slice() and searches know what others of the kernel have measured, against equal
// parts, with and without that knowledge.
//
//   perf_model_budget [PROBLEMS] [SECONDS...]    by default 80 problems of 4 kernels; 8 and 24 s
//
// Printed: the mean and the worst fraction of the optimum over all problems, where the optimum is
// the best config of the problem's whole space; and the time of all launches, as a multiple of the
// least. A kernel is a formula: tile sizes whose best values move with the size of the problem, two
// switches, a limit on what works, 3 % of roughness. An evaluation costs a compilation, unless a
// problem of the kernel has had it before, and a measurement; each slice costs its data, and a part
// for finals.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "runtime/prepare/slices.hpp"
#include "runtime/search/strategy.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

constexpr std::size_t kKernels = 4, kTiles = 4, kNeighbours = 5;
constexpr double kCompile = 0.6 / 16;  ///< seconds, on 16 cores
constexpr double kMeasure = 0.012, kData = 0.03, kFinals = 0.15;
constexpr double kNever = std::numeric_limits<double>::infinity();

double mixed(std::uint64_t seed, std::span<const std::int64_t> config) {
  for (const std::int64_t v : config) {
    seed = (seed ^ static_cast<std::uint64_t>(v + 1000)) * 0x9e3779b97f4a7c15;
    seed ^= seed >> 29;
  }
  return static_cast<double>(seed >> 11) * 0x1.0p-53;
}

DynamicSpace space_of_kernel() {
  DynamicSpace space;
  for (const char* name : {"block_m", "block_n", "block_k", "warps"})
    space.parameter(name, {1, 2, 4, 8, 16, 32, 64, 128}, 1);
  space.parameter("vector", {0, 1}, 0, FieldKind::boolean);
  space.parameter("order", {0, 1, 2}, 0, FieldKind::enumeration);
  space.where("threads", [](auto c, auto, const auto&) { return c[0] * c[1] <= 2048; });
  return space;
}

struct Problem {
  std::size_t kernel;
  double size;  ///< log2
  double weight;

  double seconds(std::span<const std::int64_t> c) const {
    const auto number = static_cast<double>(kernel);
    double log_time = 0.35 * static_cast<double>(c[4] == 0) +
                      0.2 * static_cast<double>(c[5] != static_cast<std::int64_t>(kernel % 3));
    const std::array<double, kTiles> optimum{1 + 0.4 * size, 5 - 0.2 * size + 0.3 * number,
                                             2 + 0.5 * number, 1.5 + 0.15 * size};
    for (std::size_t i = 0; i < kTiles; ++i)
      log_time += (0.05 + 0.04 * static_cast<double>((i + kernel) % 3)) *
                  std::pow(std::log2(static_cast<double>(c[i])) - optimum[i], 2);
    if (c[0] * c[2] > 1024 + 512 * static_cast<std::int64_t>(kernel)) return kNever;
    const double rough = mixed(kernel, c) + mixed(static_cast<std::uint64_t>(size * 64) + 99, c);
    return 1e-6 * std::exp2(size) * std::exp(log_time + 0.03 * rough);
  }
};

/// A problem's searches so far.
struct Progress {
  std::vector<Evidence::Result> results;
  double best = kNever;
};

class Model {
 public:
  explicit Model(std::size_t count) : dynamic_(space_of_kernel()), space_(dynamic_, {}, limits_) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto place = static_cast<double>(i / kKernels);
      problems_.push_back({i % kKernels, std::fmod(place * 0.618 * 10, 10),
                           std::exp2(std::fmod(place * 0.414 * 7, 7))});
    }
    for (const Problem& problem : problems_) {
      double& best = optimum_.emplace_back(kNever);
      for (const Point& point : space_.enumerate())
        best = std::min(best, problem.seconds(space_.values(point)));
    }
  }

  struct Reached {
    double mean = 0, worst = 1, cost = 0;
    std::size_t evaluated = 0;
  };

  Reached run(double budget, bool by_gain, bool weighted, bool transfer) {
    progress_.assign(problems_.size(), {});
    compiled_.assign(kKernels, {});
    std::vector<TuningCourse> courses;
    for (const Problem& p : problems_)
      courses.push_back({p.kernel, weighted ? p.weight : 0, {}, false});
    double left = budget;
    for (std::size_t i = 0; i < problems_.size() && !by_gain; ++i)
      search(i, budget / static_cast<double>(problems_.size()), transfer);
    while (by_gain) {
      const auto next = next_slice(courses, left, budget);
      if (!next) break;
      const double took = next->look ? look(next->problem, next->seconds, transfer)
                                     : search(next->problem, next->seconds, transfer);
      const double best = progress_[next->problem].best;
      courses[next->problem].slices.push_back({took, best < kNever ? best : 0});
      left -= took;
    }
    return reached();
  }

 private:
  /// Returns the seconds that it took: a build that has begun is not cut off.
  double search(std::size_t place, double seconds, bool transfer) {
    const Problem& problem = problems_[place];
    Progress& progress = progress_[place];
    const std::vector<Evidence> evidence = transfer ? evidence_for(place) : std::vector<Evidence>();
    const auto strategy = make_strategy("model", {space_, place + 1, 0, {}, evidence});
    for (const auto& [config, time] : progress.results) strategy->observe(config, time);
    double spent = kData;
    const auto evaluate = [&](const Values& config) {
      spent += kMeasure + (compiled_[problem.kernel].insert(config).second ? kCompile : 0);
      const double time = problem.seconds(config);
      strategy->observe(config, time);
      progress.results.push_back({config, time});
      progress.best = std::min(progress.best, time);
    };
    if (progress.results.empty()) evaluate(Values{1, 1, 1, 1, 0, 0});  // the default
    while (spent < seconds * (1 - kFinals)) {
      const auto proposals = strategy->propose(1);
      if (proposals.empty()) break;
      evaluate(proposals[0]);
    }
    return spent + seconds * kFinals;
  }

  /// The default, and what has won for the nearest problems of the kernel.
  double look(std::size_t place, double seconds, bool transfer) {
    const Problem& problem = problems_[place];
    Progress& progress = progress_[place];
    std::set<Values> suggested{Values{1, 1, 1, 1, 0, 0}};
    if (transfer)
      for (const Evidence& e : evidence_for(place))
        if (suggested.size() < 4)
          suggested.insert(
              std::ranges::min_element(e.results, {}, &Evidence::Result::seconds)->config);
    double spent = kData;
    for (const Values& config : suggested) {
      spent += kMeasure + (compiled_[problem.kernel].insert(config).second ? kCompile : 0);
      const double time = problem.seconds(config);
      progress.results.push_back({config, time});
      progress.best = std::min(progress.best, time);
    }
    return spent + seconds * kFinals;
  }

  std::vector<Evidence> evidence_for(std::size_t place) const {
    std::vector<Evidence> all;
    for (std::size_t i = 0; i < problems_.size(); ++i)
      if (i != place && problems_[i].kernel == problems_[place].kernel &&
          !progress_[i].results.empty())
        all.push_back(
            {progress_[i].results, {}, std::fabs(problems_[i].size - problems_[place].size)});
    std::stable_sort(all.begin(), all.end(),
                     [](const Evidence& a, const Evidence& b) { return a.distance < b.distance; });
    all.resize(std::min(all.size(), kNeighbours));
    return all;
  }

  Reached reached() const {
    Reached reached;
    double cost = 0, least = 0;
    for (std::size_t i = 0; i < problems_.size(); ++i) {
      // What was not reached runs its default.
      const double best =
          std::min(progress_[i].best, problems_[i].seconds(Values{1, 1, 1, 1, 0, 0}));
      const double fraction = optimum_[i] / best;
      reached.mean += fraction / static_cast<double>(problems_.size());
      reached.worst = std::min(reached.worst, fraction);
      cost += problems_[i].weight * best;
      least += problems_[i].weight * optimum_[i];
      reached.evaluated += progress_[i].results.size();
    }
    reached.cost = cost / least;
    return reached;
  }

  const DeviceLimits limits_;
  const DynamicSpace dynamic_;
  const SearchSpace space_;
  std::vector<Problem> problems_;
  std::vector<double> optimum_;
  std::vector<Progress> progress_;
  std::vector<std::set<Values>> compiled_;  ///< by kernel
};

}  // namespace

int main(int count, char** arguments) {
  const long wanted = count > 1 ? std::atol(arguments[1]) : 80;
  if (wanted < 1) {
    std::fputs("perf_model_budget [PROBLEMS] [SECONDS...]\n", stderr);
    return 1;
  }
  std::vector<double> budgets;
  for (int i = 2; i < count; ++i) budgets.push_back(std::atof(arguments[i]));
  if (budgets.empty()) budgets = {8, 24};
  Model model(static_cast<std::size_t>(wanted));
  for (const double budget : budgets) {
    std::printf("%ld problems of %zu kernels in %g s (simulated)\n", wanted, kKernels, budget);
    std::printf("  %-34s %6s %6s %12s %12s\n", "", "mean", "worst", "time of all", "evaluations");
    const auto row = [&](const char* name, bool by_gain, bool weighted, bool transfer) {
      const auto r = model.run(budget, by_gain, weighted, transfer);
      std::printf("  %-34s %6.3f %6.3f %12.3f %12zu\n", name, r.mean, r.worst, r.cost, r.evaluated);
      std::fflush(stdout);
    };
    row("equal parts, each by itself", false, false, false);
    row("equal parts, knowing the others", false, false, true);
    row("by gain, each by itself", true, false, false);
    row("by gain, knowing the others", true, false, true);
    row("by weighted gain, knowing the others", true, true, true);
  }
}
