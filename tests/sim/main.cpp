// The long simulation:  rank_simulation [--seeds N] [--first SEED] [--most-ranks N]
// Exit: 0 every promise held, 1 one was broken.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "world.hpp"

int main(int argc, char** argv) {
  std::uint64_t seeds = 10000, first = 1;
  sim::Limits limits;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
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
