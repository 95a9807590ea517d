// The long simulation:       rank_simulation [--seeds N] [--first SEED] [--most-ranks N]
// Tuning time by ranks:      rank_simulation --model COSTS.csv
// Exit: 0 every promise held, 1 one was broken, 2 wrong use.
// COSTS.csv: a line `kernel,threads,overlap` and lines `compile seconds,run seconds`, per kernel.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/ranks/tuning_model.hpp"
#include "world.hpp"

namespace {

void print_model(const std::string& kernel, const std::vector<sim::ranks::Cost>& costs,
                 sim::ranks::TuningModel model) {
  std::printf("%s: %zu candidates, %d compile threads per rank\n", kernel.c_str(), costs.size(),
              model.one_rank.compile_threads);
  std::printf("%8s %12s %12s %12s %10s %10s\n", "ranks", "replicate s", "leader s", "shard s",
              "speed-up", "of ideal");
  for (int ranks = 1; ranks <= 4096; ranks *= 2) {
    const sim::ranks::TuningTimes t = sim::ranks::tuning_times(costs, ranks, model);
    const double gain = sim::ranks::tuning_times(costs, 1, model).shard / t.shard;
    std::printf("%8d %12.3f %12.3f %12.3f %10.2f %9.0f%%\n", ranks, t.replicate, t.leader, t.shard,
                gain, 100 * gain / ranks);
  }
}

int print_models(const char* path) {
  std::ifstream file(path);
  if (!file) return std::fprintf(stderr, "%s cannot be read\n", path), 2;
  std::string kernel, line;
  std::vector<sim::ranks::Cost> costs;
  sim::ranks::TuningModel model;
  const auto flush = [&] {
    if (!costs.empty()) print_model(kernel, costs, model);
    costs.clear();
  };
  while (std::getline(file, line)) {
    char name[64] = {};
    int threads = 1, overlap = 0;
    float compile = 0, run = 0;
    if (line.empty() || line[0] == '#') continue;
    if (std::sscanf(line.c_str(), "%f,%f", &compile, &run) == 2) {
      costs.push_back({compile, run});
    } else if (std::sscanf(line.c_str(), "%63[^,],%d,%d", name, &threads, &overlap) == 3) {
      flush();
      kernel = name;
      model.one_rank.compile_threads = threads;
      model.one_rank.overlap = overlap != 0;
    } else {
      return std::fprintf(stderr, "%s: `%s` is neither a kernel nor costs\n", path, line.c_str()),
             2;
    }
  }
  flush();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seeds = 10000, first = 1;
  sim::Limits limits;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--model") return print_models(argv[i + 1]);
    const long long value = std::atoll(argv[i + 1]);
    if (option == "--seeds")
      seeds = static_cast<std::uint64_t>(value);
    else if (option == "--first")
      first = static_cast<std::uint64_t>(value);
    else if (option == "--most-ranks")
      limits.most_ranks = static_cast<int>(value);
    else
      return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
  }
  std::uint64_t plans = 0, defaults = 0, mixed = 0, fenced = 0, faulted = 0, ranks = 0, broken = 0;
  std::size_t largest = 0, full = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const sim::Scenario scenario = sim::draw(seed, limits);
    const sim::Outcome outcome = sim::World(scenario).run();
    ranks += scenario.ranks.size();
    largest = std::max(largest, scenario.ranks.size());
    full += scenario.ranks.size() == 4096;
    faulted += outcome.faulted;
    if (outcome.divergent)
      (scenario.ranks[0].input.settles ? mixed : fenced) += 1;
    else if (outcome.plans > 0)
      ++plans;
    else
      ++defaults;
    for (const std::string& text : outcome.violations) std::printf("BROKEN: %s\n", text.c_str());
    broken += !outcome.violations.empty();
  }
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf(
      "%llu seeds, %llu ranks in all, up to %zu (4096 in %zu seeds), %.1f s\n"
      "an exchange failed in %llu; all survivors with the plan %llu, all with the defaults %llu\n"
      "failed in the last exchange without a register: split but fenced %llu; register out of one "
      "rank's reach: %llu\npromises broken: %llu\n",
      static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(ranks), largest, full,
      wall, static_cast<unsigned long long>(faulted), static_cast<unsigned long long>(plans),
      static_cast<unsigned long long>(defaults), static_cast<unsigned long long>(fenced),
      static_cast<unsigned long long>(mixed), static_cast<unsigned long long>(broken));
  return broken == 0 ? 0 : 1;
}
