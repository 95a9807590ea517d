#include "groups.hpp"

#include <cmath>
#include <utility>

namespace sim {

namespace {

/// Of several things by number only this one is left.
template <class T>
void keep(std::vector<T>& all, std::size_t number) {
  std::vector<T> one{std::move(all[number])};
  all = std::move(one);
}

void renumber(Rank& rank, int number, int size) {
  rank.input.rank = number;
  rank.input.size = size;
  rank.input.options.leader %= size;
}

Scenario group_of(const Scenario& job, int groups, int group) {
  Scenario part = job;
  part.seed = job.seed * 4099 + static_cast<std::uint64_t>(group);
  part.ranks.clear();
  part.odd_rank = part.faulty = false;
  part.odd = part.out_of_reach = -1;
  part.register_reachable = true;
  const int size = static_cast<int>(job.ranks.size());
  for (int r = group; r < size; r += groups) {
    const int number = static_cast<int>(part.ranks.size());
    if (r == job.odd) part.odd_rank = true, part.odd = number;
    if (r == job.out_of_reach) part.register_reachable = false, part.out_of_reach = number;
    part.ranks.push_back(job.ranks[static_cast<std::size_t>(r)]);
    Rank& rank = part.ranks.back();
    part.faulty |= rank.fault.kind != Fault::Kind::none;
    if (job.odd_rank) continue;
    const std::size_t problem = static_cast<std::size_t>(group) % rank.times.size();
    rank.input.identity.problems += problem;
    keep(rank.input.problems, problem);
    keep(rank.times, problem);
    keep(rank.builds, problem);
  }
  const int members = static_cast<int>(part.ranks.size());
  for (int number = 0; number < members; ++number)
    renumber(part.ranks[static_cast<std::size_t>(number)], number, members);
  return part;
}

}  // namespace

std::vector<Played> in_groups(const Scenario& job, int groups) {
  std::vector<Played> played;
  Scenario all = job;
  all.faulty = false;
  for (int group = 0; group < groups; ++group) {
    const Scenario part = group_of(job, groups, group);
    const Outcome outcome = World(part).run();
    for (std::size_t i = 0; i < part.ranks.size(); ++i) {
      Rank& rank =
          all.ranks[static_cast<std::size_t>(group) + i * static_cast<std::size_t>(groups)];
      const double ended = outcome.ended.at(i);
      rank.fault = {};
      if (std::isfinite(ended)) {
        rank.start = ended;
      } else {
        rank.fault.kind = Fault::Kind::crash;
        rank.fault.phase = "start";
        all.faulty = true;
      }
    }
    played.push_back({part, outcome});
  }
  const Outcome outcome = World(all).run();
  played.push_back({std::move(all), outcome});
  return played;
}

}  // namespace sim
