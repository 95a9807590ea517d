#include "runtime/prepare/choices_together.hpp"

#include <algorithm>
#include <map>

#include "runtime/together/beside_agreement.hpp"

namespace kiln::runtime {

namespace {

// Places of what is exchanged, of which each rank learns the greatest: first what holds for all,
// then what holds for each problem. A value and its negative tell whether it is the same
// everywhere.
constexpr std::size_t kLeaves = 0, kMeasures = 1, kMeasuresNot = 2, kAsks = 3, kAsksNot = 4,
                      kFirst = 5;
// Of a problem: how many choices of it there are, then each of them. The last place is that of all
// others, too.
constexpr std::size_t kCount = 0, kCountNegative = 1, kChoices = 2, kMostChoices = 4;
constexpr std::size_t kOpen = 0, kDecided = 1, kEachChoice = 2;
constexpr std::size_t kEach = kChoices + kEachChoice * kMostChoices;

std::vector<float> nothing_told(std::size_t entries) {
  return std::vector<float>(kFirst + kEach * entries, 0);
}

/// Loading takes ranks different times.
TuneOptions waiting(TuneOptions options) {
  options = patient(std::move(options));
  options.together.step_seconds =
      std::max(options.together.step_seconds, options.together.first_seconds);
  return options;
}

/// How the manifest's choices are tuned: once for each communicator, the runtime's first. Ranks
/// that have made the same choices in the same order find the same.
std::vector<TuneOptions> ways_to_tune(const detail::Engine& engine, const Manifest& manifest) {
  std::vector<TuneOptions> ways;
  const auto add = [&](TuneOptions options) {
    const auto same = [&](const TuneOptions& known) { return known.ranks == options.ranks; };
    if (options.ranks && std::ranges::none_of(ways, same))
      ways.push_back(waiting(std::move(options)));
  };
  add(engine.completed(engine.options().tuning));
  for (const auto& choice : engine.serving().choices())
    if (std::ranges::any_of(manifest.wanted, [&](const WantedInstance& wanted) {
          return wanted.is_choice && wanted.kernel == choice->description().name &&
                 wanted.types == choice->description().types;
        }))
      add(choice->tuning());
  return ways;
}

/// The places of the items in what the ranks of one communicator exchange; 0: it is not theirs.
std::vector<std::size_t> places_of(const std::vector<ChoiceItem>& items,
                                   const Communicator* ranks) {
  std::map<std::size_t, std::size_t> found;  // by entry, how many choices
  std::vector<std::size_t> places;
  for (const ChoiceItem& item : items) {
    std::size_t& place = places.emplace_back(0);
    if (item.choice->tuning().ranks.get() != ranks) continue;
    const std::size_t which = std::min(found[item.entry]++, kMostChoices - 1);
    place = kFirst + kEach * item.entry + kChoices + kEachChoice * which;
  }
  return places;
}

}  // namespace

bool decides(detail::Engine& engine, bool measure) {
  return measure || !engine.workshop().may_measure(true);
}

std::vector<RanksAsk> ask_ranks(detail::Engine& engine, const Manifest& manifest,
                                const std::vector<ChoiceItem>& items, bool measure) {
  std::vector<RanksAsk> asks(items.size(), RanksAsk::no);
  const std::size_t count = ChoiceEntries(manifest).count();
  if (count == 0) return asks;
  for (const TuneOptions& options : ways_to_tune(engine, manifest)) {
    std::vector<float> told = nothing_told(count);
    told[measure ? kMeasures : kMeasuresNot] = 1;
    told[decides(engine, measure) ? kAsks : kAsksNot] = 1;
    const std::vector<std::size_t> places = places_of(items, options.ranks.get());
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (places[i] == 0) continue;
      told[places[i] + (items[i].answered ? kDecided : kOpen)] = 1;
      float* const of = &told[kFirst + kEach * items[i].entry];
      of[kCount] += 1;
      of[kCountNegative] -= 1;
    }
    const bool answered = take_greatest(engine.workshop(), options, told);
    const bool all = answered && told[kLeaves] == 0 && told[kMeasures] + told[kMeasuresNot] == 1 &&
                     told[kAsks] + told[kAsksNot] == 1;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (places[i] == 0) continue;
      const float* const entry = &told[kFirst + kEach * items[i].entry];
      const float* const of = &told[places[i]];
      asks[i] = !all || entry[kCount] != -entry[kCountNegative] ? RanksAsk::different
                : of[kOpen] != 0 && of[kDecided] == 0           ? RanksAsk::together
                                                                : RanksAsk::no;
    }
  }
  return asks;
}

void leave_choices(detail::Engine& engine, const Manifest& manifest) noexcept {
  try {
    const std::size_t count = ChoiceEntries(manifest).count();
    if (count == 0) return;
    for (const TuneOptions& options : ways_to_tune(engine, manifest)) {
      std::vector<float> told = nothing_told(count);
      told[kLeaves] = 1;
      take_greatest(engine.workshop(), options, told);
    }
  } catch (...) {  // no memory: the others wait in vain
  }
}

}  // namespace kiln::runtime
