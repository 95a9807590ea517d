#include "runtime/prepare/choices_together.hpp"

#include <algorithm>

#include "runtime/together/beside_agreement.hpp"

namespace kiln::runtime {

namespace {

// Places of what is exchanged, of which each rank learns the greatest: first what holds for all,
// then what holds for each problem. A value and its negative tell whether it is the same everywhere.
constexpr std::size_t kLeaves = 0, kMeasures = 1, kMeasuresNot = 2, kAsks = 3, kAsksNot = 4,
                      kFirst = 5;
constexpr std::size_t kOpen = 0, kDecided = 1, kCount = 2, kCountNegative = 3, kEach = 4;

/// Loading takes ranks different times.
TuneOptions waiting(TuneOptions options) {
  options.together.step_seconds =
      std::max(options.together.step_seconds, options.together.first_seconds);
  return options;
}

}  // namespace

bool decides(detail::Engine& engine, bool measure) {
  return measure || !engine.workshop().may_measure(true);
}

std::vector<RanksAsk> ask_ranks(detail::Engine& engine, const TuneOptions& options,
                                const Manifest& manifest, const std::vector<ChoiceItem>& items,
                                bool measure) {
  const std::size_t count = ChoiceEntries(manifest).count();
  if (!options.ranks || count == 0) return {};
  std::vector<float> told(kFirst + kEach * count, 0);
  told[kMeasures] = measure ? 1 : 0;
  told[kMeasuresNot] = measure ? 0 : 1;
  told[kAsks] = decides(engine, measure) ? 1 : 0;
  told[kAsksNot] = decides(engine, measure) ? 0 : 1;
  for (const ChoiceItem& item : items) {
    if (item.choice->tuning().ranks != options.ranks) continue;
    float* const of = &told[kFirst + kEach * item.entry];
    of[item.answered ? kDecided : kOpen] = 1;
    of[kCount] += 1;
    of[kCountNegative] -= 1;
  }
  const bool answered = take_greatest(engine.workshop(), waiting(options), told);
  const bool all = answered && told[kLeaves] == 0 && told[kMeasures] + told[kMeasuresNot] == 1 &&
                   told[kAsks] + told[kAsksNot] == 1;
  std::vector<RanksAsk> asks;
  for (std::size_t i = 0; i < count; ++i) {
    const float* const of = &told[kFirst + kEach * i];
    asks.push_back(!all || of[kCount] != -of[kCountNegative] ? RanksAsk::different
                   : of[kOpen] != 0 && of[kDecided] == 0     ? RanksAsk::together
                                                             : RanksAsk::no);
  }
  return asks;
}

void leave_choices(detail::Engine& engine, const Manifest& manifest,
                   const TuneOptions& options) noexcept {
  try {
    const std::size_t count = ChoiceEntries(manifest).count();
    if (!options.ranks || count == 0) return;
    std::vector<float> told(kFirst + kEach * count, 0);
    told[kLeaves] = 1;
    take_greatest(engine.workshop(), waiting(options), told);
  } catch (...) {  // no memory: the others wait in vain
  }
}

}  // namespace kiln::runtime
