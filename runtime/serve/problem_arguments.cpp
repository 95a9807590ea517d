#include "runtime/serve/problem_arguments.hpp"

#include <algorithm>

#include "runtime/serve/problem_hash.hpp"

namespace kiln::runtime {

// Loads and the stores of writers are sequentially consistent, as a section that begins with a
// fence needs it.
const EntryArguments* ProblemArguments::find(std::span<const std::int64_t> problem,
                                             detail::ReadSection& section) const noexcept {
  begin(section);
  for (const auto& way : sets_[hash_of(problem) % kPlaces]) {
    const Entry* const entry = way.load(std::memory_order_seq_cst);
    if (!entry) break;
    if (std::ranges::equal(entry->problem, problem)) return &entry->arguments;
  }
  section.end();
  return nullptr;
}

std::shared_ptr<const EntryArguments> ProblemArguments::keep(std::span<const std::int64_t> problem,
                                                             EntryArguments arguments) {
  auto entry =
      std::make_shared<const Entry>(Values(problem.begin(), problem.end()), std::move(arguments));
  std::shared_ptr<const EntryArguments> kept(entry, &entry->arguments);
  std::list<Garbage> leaves(1), freed;  // `freed` ends without the lock
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return kept;
  replaced_.reserve(kTogether);
  // Nothing fails from here on: the old entry would be freed while it is found.
  const std::size_t place = hash_of(problem) % kPlaces;
  const std::size_t way = next_[place];
  next_[place] = static_cast<std::uint8_t>((way + 1) % kWays);
  sets_[place][way].store(entry.get(), std::memory_order_seq_cst);
  if (auto old = std::exchange(owners_[place][way], std::move(entry)))
    replaced_.push_back(std::move(old));
  if (replaced_.size() == kTogether) {
    leaves.front().entries.swap(replaced_);
    leaves.front().grace = GracePeriod::begin();
    garbage_.splice(garbage_.end(), leaves);
  }
  while (!garbage_.empty() && garbage_.front().grace.over())
    freed.splice(freed.end(), garbage_, garbage_.begin());
  return kept;
}

}  // namespace kiln::runtime
