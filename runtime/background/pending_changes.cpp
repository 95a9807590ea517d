#include "runtime/background/pending_changes.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kiln::runtime {

using State = PendingChange::State;

std::vector<PendingChange> PendingChanges::all() const {
  const std::lock_guard lock(mutex_);
  return pending_;
}

bool PendingChanges::any_waiting() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(pending_, [](const auto& one) { return one.state == State::waiting; });
}

std::optional<PendingChange> PendingChanges::take() {
  const std::lock_guard lock(mutex_);
  const auto next = std::ranges::find(pending_, State::waiting, &PendingChange::state);
  if (next == pending_.end()) return {};
  PendingChange taken = *next;
  next->state = State::loading;
  return taken;
}

void PendingChanges::loaded(const KernelChange& taken,
                            std::optional<std::vector<Proposal>> proposals) {
  const std::lock_guard lock(mutex_);
  PendingChange* const one = find(taken);
  if (!one || one->state != State::loading) return;  // published or dropped meanwhile
  one->state = proposals ? State::loaded : State::failed;
  if (!proposals) return;
  one->loaded.swap(*proposals);  // what leaves outlives the lock
  // Handles may have gone since, and forget() has been called.
  const auto gone = std::ranges::partition(
      one->loaded, [](const Proposal& proposal) { return !proposal.handle.expired(); });
  std::ranges::move(gone, std::back_inserter(*proposals));
  one->loaded.erase(gone.begin(), gone.end());
}

void PendingChanges::replace(std::vector<PendingChange> pending) {
  const std::lock_guard lock(mutex_);
  for (PendingChange& one : pending) {
    const PendingChange* const before = find(one.kernel_change);
    if (!before || one.state != State::waiting) continue;
    // It may have been loaded while the ranks met: then loading it again is looking it up.
    if (before->state == State::loaded) one.loaded = before->loaded;
    if (before->state == State::loading || before->state == State::failed)
      one.state = before->state;
  }
  pending_.swap(pending);  // as above: unloading may wait for running kernels
}

void PendingChanges::forget(const void* handle) {
  std::vector<Proposal> dropped;  // as above
  const std::lock_guard lock(mutex_);
  for (PendingChange& one : pending_) {
    const auto its = std::ranges::partition(
        one.loaded, [&](const Proposal& proposal) { return proposal.place != handle; });
    std::move(its.begin(), its.end(), std::back_inserter(dropped));
    one.loaded.erase(its.begin(), its.end());
  }
}

PendingChange* PendingChanges::find(const KernelChange& kernel_change) {
  const auto found = std::ranges::find(pending_, kernel_change, &PendingChange::kernel_change);
  return found == pending_.end() ? nullptr : &*found;
}

}  // namespace kiln::runtime
