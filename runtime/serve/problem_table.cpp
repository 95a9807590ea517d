#include "runtime/serve/problem_table.hpp"

#include <algorithm>

namespace kiln::runtime {

using detail::Launchable;

ProblemTable::ProblemTable() {
  generations_.push_back(std::make_unique<Slots>(16));
  current_.store(generations_.back().get(), std::memory_order_release);
}

// On the way of each launch. Declared `inline`, because a shared library's other functions are not
// inlined, and compared without std::equal, which calls memcmp for a few integers.
inline std::uint64_t ProblemTable::hash(std::span<const std::int64_t> problem) noexcept {
  std::uint64_t h = 0x9e3779b97f4a7c15u;
  for (const std::int64_t value : problem) {
    h = (h ^ static_cast<std::uint64_t>(value)) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h;
}

/// At most half of the slots are full, so this ends.
inline ProblemTable::Place ProblemTable::place(const Slots& slots,
                                               std::span<const std::int64_t> problem) noexcept {
  const std::size_t mask = slots.entries.size() - 1;
  for (std::size_t i = hash(problem) & mask;; i = (i + 1) & mask) {
    const Entry* entry = slots.entries[i].load(std::memory_order_acquire);
    if (!entry) return {i, nullptr};
    const Values& there = entry->ready.problem;
    if (there.size() == problem.size() &&
        std::mismatch(problem.begin(), problem.end(), there.begin()).first == problem.end())
      return {i, entry};
  }
}

const Launchable* ProblemTable::find(std::span<const std::int64_t> problem,
                                     Standing at_least) const noexcept {
  const Entry* entry = place(*current_.load(std::memory_order_acquire), problem).entry;
  return entry && entry->standing >= at_least ? &entry->ready : nullptr;
}

const Launchable& ProblemTable::publish(Launchable ready, Standing standing) {
  std::lock_guard lock(mutex_);
  entries_.push_back(std::make_unique<const Entry>(standing, std::move(ready)));
  const Entry* entry = entries_.back().get();
  if (2 * (count_ + 1) > generations_.back()->entries.size()) grow();
  const Place where = place(*generations_.back(), entry->ready.problem);
  if (!where.entry) ++count_;
  generations_.back()->entries[where.slot].store(entry, std::memory_order_release);
  return entry->ready;
}

std::vector<const Launchable*> ProblemTable::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Launchable*> published;
  for (const auto& entry : entries_) published.push_back(&entry->ready);
  return published;
}

void ProblemTable::grow() {
  const Slots& old = *generations_.back();
  auto wider = std::make_unique<Slots>(2 * old.entries.size());
  for (const auto& slot : old.entries)
    if (const Entry* entry = slot.load(std::memory_order_relaxed))
      wider->entries[place(*wider, entry->ready.problem).slot].store(entry,
                                                                     std::memory_order_relaxed);
  generations_.push_back(std::move(wider));
  current_.store(generations_.back().get(), std::memory_order_release);
}

}  // namespace kiln::runtime
