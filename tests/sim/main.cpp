// The long simulation:       rank_simulation [--seeds N] [--first SEED] [--most-ranks N] [--threads
// N] Tuning time by ranks:      rank_simulation --model COSTS.csv Exit: 0 every promise held, 1 one
// was broken, 2 wrong use. COSTS.csv: a line `kernel,threads,overlap` and lines `compile
// seconds,run seconds`, per kernel.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "groups.hpp"
#include "tuning_model.hpp"
#include "world.hpp"

namespace {

struct Measured {
  std::string kernel;
  std::vector<sim::ranks::Cost> costs;
  sim::TuningModel model;
  double wall = 0;  ///< seconds that one rank took
};

void print_model(const Measured& m, std::size_t times) {
  std::vector<sim::ranks::Cost> costs;
  for (std::size_t i = 0; i < times; ++i) costs.insert(costs.end(), m.costs.begin(), m.costs.end());
  const double one = sim::tuning_times(costs, 1, m.model).replicate;
  std::printf("%s: %zu candidates", m.kernel.c_str(), costs.size());
  if (times > 1) std::printf(" (those measured, %zu times)", times);
  std::printf(", %d compile threads per rank; one rank alone %.2f s",
              m.model.one_rank.compile_threads, one);
  if (times == 1) std::printf(", measured %.2f s", m.wall);
  std::printf("\n%8s %12s %12s %10s = %9s + %9s + %9s %10s %9s\n", "ranks", "replicate s",
              "leader s", "shard s", "share", "everyone", "exchanges", "speed-up", "of ideal");
  int most = 1;
  for (int ranks = 1; ranks <= 4096; ranks *= 2) {
    const sim::TuningTimes t = sim::tuning_times(costs, ranks, m.model);
    const double gain = one / t.shard;
    if (gain >= 0.9 * ranks) most = ranks;
    std::printf("%8d %12.3f %12.3f %10.3f   %9.3f   %9.3f   %9.4f %10.2f %8.0f%%\n", ranks,
                t.replicate, t.leader, t.shard, t.share, t.everyone, t.exchanges, gain,
                100 * gain / ranks);
  }
  std::printf("shard reaches 0.9 of ideal up to %d ranks\n\n", most);
}

int print_models(const char* path) {
  std::ifstream file(path);
  if (!file) return std::fprintf(stderr, "%s cannot be read\n", path), 2;
  std::string line;
  std::vector<Measured> all;
  while (std::getline(file, line)) {
    char name[64] = {};
    int threads = 1, overlap = 0;
    float compile = 0, run = 0;
    double setup = 0, wall = 0;
    if (line.empty() || line[0] == '#') continue;
    if (std::sscanf(line.c_str(), "%63[^,],%d,%d,%lf,%lf", name, &threads, &overlap, &setup,
                    &wall) == 5) {
      Measured& m = all.emplace_back();
      m.kernel = name;
      m.model.one_rank.compile_threads = threads;
      m.model.one_rank.overlap = overlap != 0;
      m.model.setup = setup;
      m.wall = wall;
    } else if (!all.empty() && std::sscanf(line.c_str(), "%f,%f", &compile, &run) == 2) {
      all.back().costs.push_back({compile, run});
    } else {
      return std::fprintf(stderr, "%s: `%s` is neither a kernel nor costs\n", path, line.c_str()),
             2;
    }
  }
  constexpr std::size_t kMany = 4000;
  for (const Measured& m : all) {
    if (m.costs.empty()) continue;
    print_model(m, 1);
    print_model(m, (kMany + m.costs.size() - 1) / m.costs.size());
  }
  std::printf(
      "A share falls with the ranks to its dearest compilation; what everyone does (data, the "
      "default "
      "for the\nestimate of costs where shares are large, and the finals) does not fall at all.\n");
  return 0;
}

/// Adds up what scenarios come to.
class Tally {
 public:
  void add(const sim::Scenario& scenario, const sim::Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    ranks_ += scenario.ranks.size();
    largest_ = std::max(largest_, scenario.ranks.size());
    full_ += scenario.ranks.size() == 4096;
    faulted_ += outcome.faulted;
    if (outcome.divergent)
      (scenario.ranks[0].input.settles ? out_of_reach_ : fenced_) += 1;
    else
      (outcome.plans > 0 ? plans_ : defaults_) += 1;
    for (const std::string& text : outcome.violations) std::printf("BROKEN: %s\n", text.c_str());
    broken_ += !outcome.violations.empty();
    if (++seeds_ % 1000 == 0) std::fflush(stdout);
  }

  void print(std::size_t seeds, double wall) const {
    std::printf(
        "%zu seeds, each fourth also in groups, %zu ranks in all, up to %zu (4096 in %zu jobs), "
        "%.1f s\n"
        "an exchange failed in %zu; all survivors with the plan %zu, all with the defaults %zu\n"
        "failed in the last exchange without a register, split but fenced: %zu; with a register "
        "that one rank cannot reach: %zu\n"
        "promises broken: %zu\n",
        seeds, ranks_, largest_, full_, wall, faulted_, plans_, defaults_, fenced_, out_of_reach_,
        broken_);
  }
  bool broken() const { return broken_ != 0; }

 private:
  std::mutex mutex_;
  std::size_t seeds_ = 0, ranks_ = 0, largest_ = 0, full_ = 0, faulted_ = 0, plans_ = 0,
              defaults_ = 0, fenced_ = 0, out_of_reach_ = 0, broken_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seeds = 10000, first = 1;
  unsigned threads = std::max(1U, std::thread::hardware_concurrency());
  sim::Limits limits;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) return std::fprintf(stderr, "%s needs a value\n", argv[i]), 2;
    if (option == "--model") return print_models(argv[i + 1]);
    const long long value = std::atoll(argv[i + 1]);
    if (value < 1) return std::fprintf(stderr, "%s needs a positive number\n", argv[i]), 2;
    if (option == "--seeds")
      seeds = static_cast<std::uint64_t>(value);
    else if (option == "--first")
      first = static_cast<std::uint64_t>(value);
    else if (option == "--most-ranks")
      limits.most_ranks = static_cast<int>(value);
    else if (option == "--threads")
      threads = static_cast<unsigned>(value);
    else
      return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
  }
  Tally tally;
  std::atomic<std::uint64_t> next{first};
  std::vector<std::thread> workers;
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back([&] {
      for (std::uint64_t seed; (seed = next++) < first + seeds;) {
        const sim::Scenario scenario = sim::draw(seed, limits);
        tally.add(scenario, sim::World(scenario).run());
        const int size = static_cast<int>(scenario.ranks.size());
        if (seed % 4 != 0 || size < 4) continue;
        const int groups = 2 + static_cast<int>(seed / 4 % static_cast<unsigned>(size / 2 - 1));
        for (const sim::Played& p : sim::in_groups(scenario, groups))
          tally.add(p.scenario, p.outcome);
      }
    });
  for (std::thread& w : workers) w.join();
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  tally.print(seeds, wall);
  return tally.broken() ? 1 : 0;
}
