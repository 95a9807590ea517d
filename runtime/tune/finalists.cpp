#include "runtime/tune/finalists.hpp"

#include <algorithm>

#include "runtime/support/infinity.hpp"

namespace kiln::runtime {

namespace {

/// Scores may be disturbed: the final takes all within this band, and some more.
constexpr double kFinalBand = 0.05;
constexpr std::size_t kFewestFinalists = 6, kMaxFinalists = 12;
/// Candidates that are slower than the best by this factor are not in the final. Leading ones,
/// whose scores may be disturbed, still are, unless each launch takes kHopelessSeconds.
constexpr double kHopeless = 1.5, kHopelessSeconds = 0.3;

}  // namespace

Finalists choose_finalists(const Candidates& candidates,
                           std::span<const std::optional<std::size_t>> leading) {
  Finalists finalists;
  const std::vector<std::size_t> ranked = candidates.ranked();
  if (ranked.empty()) return finalists;
  const auto score = [&](std::size_t i) { return candidates.score(i); };
  const double best = score(ranked.front());
  const auto leads = [&](std::size_t i) {
    return std::ranges::find(finalists.leading, i) != finalists.leading.end();
  };
  for (const auto& index : leading)
    if (index && score(*index) < kInfinity && !candidates.comes_last(*index) &&
        (score(*index) <= best * kHopeless || score(*index) < kHopelessSeconds) && !leads(*index))
      finalists.leading.push_back(*index);
  for (const std::size_t i : ranked) {
    const double behind = score(i) / best;
    if (finalists.others.size() == kMaxFinalists || behind > kHopeless ||
        (behind > 1 + kFinalBand && finalists.others.size() >= kFewestFinalists))
      break;
    if (!leads(i) && !candidates.comes_last(i)) finalists.others.push_back(i);
  }
  std::ranges::sort(finalists.others,
                    [&](std::size_t a, std::size_t b) { return candidates.before(a, b); });
  return finalists;
}

}  // namespace kiln::runtime
