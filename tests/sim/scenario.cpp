#include "scenario.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace sim {

using kiln::OnPartialCache;
using kiln::RankReduction;
using kiln::RankStrategy;

namespace {

int draw_size(Random& random, int most) {
  const double u = random.uniform();
  int low = 2, high = 8;
  if (u > 0.992)
    low = 1025, high = 4096;
  else if (u > 0.96)
    low = 257, high = 1024;
  else if (u > 0.87)
    low = 34, high = 256;
  else if (u > 0.6)
    low = 9, high = 33;
  if (u > 0.999) low = 4096;  // the full size, too
  const int size = low + random.below(high - low + 1);
  return std::min(size, most);
}

Network draw_network(Random& random, int size) {
  Network n;
  n.delay = random.uniform(1e-6, 5e-3);
  n.jitter = n.delay * random.uniform(0.1, 20);
  if (random.chance(0.3)) n.spike = random.uniform(0, 0.02), n.spike_seconds = random.uniform(0, 4);
  if (random.chance(0.3)) n.loss = random.uniform(0, 0.15);
  n.attempts = 3 + random.below(8);
  n.tree = size > 32 || random.chance(0.5);
  n.keeps_deadlines = !random.chance(0.2);
  n.tells_aborts = !random.chance(0.4);
  n.names_late = !random.chance(0.2);
  n.equal_sums = !random.chance(0.1);
  return n;
}

/// Which ranks have which record: none, all the same, some, or two that differ; some corrupt.
void draw_caches(Random& random, std::vector<Rank>& all,
                 const std::vector<std::vector<float>>& truth) {
  const int mode = random.below(5);
  for (std::size_t p = 0; p < truth.size(); ++p) {
    ranks::Record one{truth[p], 0}, other;
    one.winner = static_cast<std::size_t>(std::min_element(one.times.begin(), one.times.end()) -
                                          one.times.begin());
    other = one;
    for (float& t : other.times) t *= 1.25F;
    const double have = mode == 1 ? 1.0 : random.uniform();
    for (Rank& r : all) {
      if (mode == 0 || !random.chance(have)) continue;
      r.input.problems[p].record = mode == 3 && random.chance(0.5) ? other : one;
      ranks::Record& record = *r.input.problems[p].record;
      if (mode != 4 || !random.chance(0.4)) continue;
      switch (random.below(3)) {
        case 0:
          record.winner = record.times.size() + 7;
          break;
        case 1:
          record.times.pop_back();
          break;
        default:
          record.times[0] = std::nanf("");
      }
    }
  }
}

void make_odd(Random& random, Rank& rank) {
  ranks::AgreementInput& in = rank.input;
  switch (random.below(8)) {
    case 0:
      in.identity.candidates ^= 1;
      break;
    case 1:
      in.identity.build ^= 1;
      break;
    case 2:
      in.identity.target ^= 1;
      break;
    case 3:
      in.identity.kernel ^= 1;
      break;
    case 4:
      in.identity.problems ^= 1;
      in.problems.push_back(in.problems.front());
      rank.times.push_back(rank.times.front());
      rank.builds.push_back(rank.builds.front());
      break;
    case 5:
      in.problems.front().candidates += 1;
      in.problems.front().record.reset();
      rank.times.front().push_back(1);
      rank.builds.front().push_back(true);
      in.problems.front().costs.clear();
      break;
    case 6:
      in.options.reduction =
          in.options.reduction == RankReduction::max ? RankReduction::mean : RankReduction::max;
      break;
    default:
      in.options.finalists += 1;
  }
}

Fault draw_fault(Random& random, int size) {
  static const char* const kPhases[] = {
      "start", "digest",   "vote",    "share",   "costs",  "tune", "reduce",  "finals", "build",
      "ready", "lockstep", "compare", "confirm", "settle", "done", "confirm", "prepare"};
  Fault f;
  f.phase = kPhases[random.below(static_cast<int>(std::size(kPhases)))];
  f.sends = random.chance(0.5) ? 0 : random.below(size);
  if (random.chance(0.5)) {
    f.kind = Fault::Kind::crash;
  } else {
    f.kind = Fault::Kind::stall;
    f.seconds = std::exp(random.uniform(-3, 6));  // 50 ms to 400 s
  }
  return f;
}

}  // namespace

std::uint64_t Random::bits() {  // splitmix64
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}
double Random::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
double Random::uniform(double low, double high) { return low + (high - low) * uniform(); }
int Random::below(int count) {
  return static_cast<int>(bits() % static_cast<std::uint64_t>(count));
}
double Random::exponential(double mean) { return -mean * std::log1p(-uniform()); }

Scenario draw(std::uint64_t seed, const Limits& limits) {
  Random random(seed * 0x2545f4914f6cdd1d + 1);
  Scenario s;
  s.seed = seed;
  const int size = draw_size(random, limits.most_ranks);
  s.network = draw_network(random, size);
  s.ranks.resize(static_cast<std::size_t>(size));

  kiln::RankOptions options;
  const int strategy = random.below(10);
  options.strategy = strategy < 4   ? RankStrategy::replicate
                     : strategy < 8 ? RankStrategy::shard
                     : strategy < 9 ? RankStrategy::leader
                                    : RankStrategy::replicate;
  options.lockstep = strategy == 9;
  options.reduction = random.chance(0.6) ? RankReduction::max : RankReduction::mean;
  options.on_partial_cache =
      random.chance(0.7) ? OnPartialCache::distribute : OnPartialCache::retune;
  options.leader = random.below(size);
  options.finalists = static_cast<std::uint32_t>(random.below(5));
  options.first_seconds = 20, options.step_seconds = 10, options.tune_seconds = 60;
  const bool settles = random.chance(0.6);

  std::vector<std::vector<float>> truth(static_cast<std::size_t>(1 + random.below(4)));
  for (auto& times : truth) {
    times.resize(static_cast<std::size_t>(1 + random.below(12)));
    for (float& t : times) t = static_cast<float>(std::exp(random.uniform(-12, -5)));
  }
  const bool some_fail = random.chance(0.3), all_fail = random.chance(0.02);
  const int stores = random.below(3);  // none, one for all, one for each few ranks
  for (int r = 0; r < size; ++r) {
    Rank& rank = s.ranks[static_cast<std::size_t>(r)];
    rank.start = random.uniform(0, 2);
    rank.offset = random.uniform(-1e5, 1e5);
    rank.drift = random.uniform(-1e-4, 1e-4);
    ranks::AgreementInput& in = rank.input;
    in.rank = r, in.size = size;
    in.options = options;
    in.identity = {1, 2, 3, 4, 5, 6};
    in.compile_threads = 4;
    in.store = stores == 0 ? 0 : stores == 1 ? 77 : 100 + static_cast<std::uint64_t>(r / 8);
    in.nonce = random.bits();
    in.settles = settles;
    for (const auto& times : truth) {
      ranks::ProblemInput problem;
      problem.candidates = times.size();
      if (random.chance(0.8))
        for (std::size_t c = 0; c < times.size(); ++c)
          problem.costs.push_back({static_cast<float>(random.uniform(0.01, 0.3)),
                                   static_cast<float>(random.uniform(0.005, 0.1))});
      in.problems.push_back(std::move(problem));
      std::vector<float> measured;
      std::vector<bool> builds;
      for (const float t : times) {
        const bool fails = all_fail || (some_fail && random.chance(0.1));
        builds.push_back(!(fails && random.chance(0.5)));
        measured.push_back(fails ? ranks::kFailed
                                 : t * static_cast<float>(random.uniform(0.95, 1.1)));
      }
      rank.times.push_back(std::move(measured));
      rank.builds.push_back(std::move(builds));
    }
  }
  draw_caches(random, s.ranks, truth);

  const auto any = [&]() -> Rank& { return s.ranks[static_cast<std::size_t>(random.below(size))]; };
  if (random.chance(0.12)) {
    s.odd_rank = true;
    s.odd = random.below(size);
    make_odd(random, s.ranks[static_cast<std::size_t>(s.odd)]);
  }
  if (random.chance(0.1)) any().slowness = 10;
  if (random.chance(0.05)) any().slowness = 1000;
  if (random.chance(0.1)) any().overruns = true;
  if (random.chance(0.05)) {  // one that compiles next to nothing
    auto& odd = any();
    for (std::size_t p = 0; p < truth.size(); ++p)
      for (std::size_t c = 0; c < truth[p].size(); ++c)
        if (random.chance(0.7)) odd.builds[p][c] = false, odd.times[p][c] = ranks::kFailed;
  }
  if (random.chance(0.05)) any().trouble = "device lost: code 700";
  if (random.chance(0.05)) any().start = random.uniform(2, 60);
  if (random.chance(0.55)) {
    s.faulty = true;
    const int count = 1 + (random.chance(0.25) ? random.below(std::min(size, 4)) : 0);
    for (int i = 0; i < count; ++i) any().fault = draw_fault(random, size);
  }
  if (settles && random.chance(0.1)) {
    s.register_reachable = false;
    s.out_of_reach = random.below(size);
  }
  if (random.chance(0.15)) any().stops_at = random.uniform(0, 60);
  return s;
}

}  // namespace sim
