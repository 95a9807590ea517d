#include "runtime/serve/problem_table.hpp"

#include <algorithm>

#include "runtime/serve/problem_hash.hpp"

namespace kiln::runtime {

using detail::Launchable;
using detail::ReadSection;
using detail::Ready;

ProblemTable::ProblemTable(Replaced replaced)
    : replaced_(replaced), slots_(std::make_unique<Slots>(16)) {
  current_.store(slots_.get(), std::memory_order_release);
}

/// On the way of each launch, so compared without std::equal, which calls memcmp for few integers.
/// At most half of the slots are full, so this ends. Loads and the stores of writers are
/// sequentially consistent, as a section that begins with a fence needs it.
inline ProblemTable::Place ProblemTable::place(const Slots& slots,
                                               std::span<const std::int64_t> problem) noexcept {
  const std::size_t mask = slots.entries.size() - 1;
  for (std::size_t i = hash_of(problem) & mask;; i = (i + 1) & mask) {
    const Entry* entry = slots.entries[i].load(std::memory_order_seq_cst);
    if (!entry) return {i, nullptr};
    const Values& there = entry->ready.problem;
    if (there.size() == problem.size() &&
        std::mismatch(problem.begin(), problem.end(), there.begin()).first == problem.end())
      return {i, entry};
  }
}

const Launchable* ProblemTable::find(std::span<const std::int64_t> problem, ReadSection& section,
                                     Standing at_least) const noexcept {
  begin(section);
  const Entry* entry = place(*current_.load(std::memory_order_seq_cst), problem).entry;
  if (!entry || entry->standing < at_least) {
    section.end();
    return nullptr;
  }
  // Written once between two questions, so launches share what they read.
  if (!entry->used.load(std::memory_order_relaxed))
    entry->used.store(true, std::memory_order_relaxed);
  return &entry->ready;
}

Ready ProblemTable::find(std::span<const std::int64_t> problem, Standing at_least) const noexcept {
  ReadSection section;
  begin(section);
  const Entry* entry = place(*current_.load(std::memory_order_seq_cst), problem).entry;
  if (!entry || entry->standing < at_least) return nullptr;
  entry->used.store(true, std::memory_order_relaxed);
  return {entry->self.lock(), &entry->ready};
}

Ready ProblemTable::publish(Launchable ready, Standing standing) {
  auto fresh = std::make_shared<Entry>(standing, std::move(ready));
  fresh->self = fresh;
  const std::lock_guard lock(mutex_);
  if (2 * (entries_.size() + 1) > slots_->entries.size())
    rebuild(std::make_unique<Slots>(2 * slots_->entries.size()), std::list<Garbage>(1));
  const Place where = place(*slots_, fresh->ready.problem);
  std::list<std::shared_ptr<const Entry>> stays;
  std::list<Garbage> leaves;
  if (where.entry && replaced_ == Replaced::stays) stays.push_back(entries_.at(where.entry));
  if (where.entry && replaced_ == Replaced::leaves)
    leaves.emplace_back().entries.push_back(entries_.at(where.entry));
  // The next launch of the problem launches this one.
  if (where.entry) fresh->used = where.entry->used.load(std::memory_order_relaxed);
  entries_.emplace(fresh.get(), fresh);
  // Nothing fails from here on: the old entry would be freed while it is found.
  slots_->entries[where.slot].store(fresh.get(), std::memory_order_seq_cst);
  if (where.entry) entries_.erase(where.entry);
  stayed_.splice(stayed_.end(), stays);
  if (!leaves.empty()) leaves.front().grace = GracePeriod::begin();
  garbage_.splice(garbage_.end(), leaves);
  return {fresh, &fresh->ready};
}

std::vector<Ready> ProblemTable::all() const {
  std::vector<Ready> published;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : stayed_) published.emplace_back(entry, &entry->ready);
    for (const auto& [key, entry] : entries_) published.emplace_back(entry, &entry->ready);
  }
  // Those by address come in another order in each process.
  std::ranges::stable_sort(published, {},
                           [](const Ready& ready) -> const Values& { return ready->problem; });
  return published;
}

ProblemTable::Use ProblemTable::use(std::span<const std::int64_t> problem) {
  const std::lock_guard lock(mutex_);
  const Entry* const entry = place(*slots_, problem).entry;
  if (!entry) return Use::none;
  // A thread that becomes an owner later has a section or an owner already, so the entry is not
  // freed.
  if (entries_.at(entry).use_count() > 1 || entry->ready.owner.use_count() > 1) return Use::owned;
  return entry->used.exchange(false, std::memory_order_relaxed) ? Use::found : Use::none;
}

void ProblemTable::remove(const std::vector<Values>& problems) {
  const std::lock_guard lock(mutex_);
  std::list<Garbage> old(1);
  auto& leaving = old.front().entries;
  for (const Values& problem : problems)
    if (const Entry* const entry = place(*slots_, problem).entry)
      leaving.push_back(entries_.at(entry));
  if (leaving.empty()) return;
  const std::size_t left = entries_.size() - leaving.size();
  std::size_t capacity = slots_->entries.size();
  while (capacity > 16 && 4 * left < capacity) capacity /= 2;
  auto fresh = std::make_unique<Slots>(capacity);
  for (const auto& entry : leaving) entries_.erase(entry.get());
  rebuild(std::move(fresh), std::move(old));
}

void ProblemTable::rebuild(std::unique_ptr<Slots> fresh, std::list<Garbage> old) noexcept {
  for (const auto& [entry, owner] : entries_)
    fresh->entries[place(*fresh, entry->ready.problem).slot].store(entry,
                                                                   std::memory_order_relaxed);
  current_.store(fresh.get(), std::memory_order_seq_cst);
  slots_.swap(fresh);
  old.front().slots = std::move(fresh);
  old.front().grace = GracePeriod::begin();
  garbage_.splice(garbage_.end(), old);
}

std::shared_ptr<const void> ProblemTable::reclaim() {
  auto freed = std::make_shared<std::list<Garbage>>();
  {
    const std::lock_guard lock(mutex_);
    while (!garbage_.empty() && garbage_.front().grace.over())
      freed->splice(freed->end(), garbage_, garbage_.begin());
  }
  if (freed->empty()) return nullptr;
  return freed;
}

bool ProblemTable::waiting() const {
  const std::lock_guard lock(mutex_);
  return !garbage_.empty();
}

}  // namespace kiln::runtime
