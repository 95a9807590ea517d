#include "runtime/serve/serving.hpp"

#include <algorithm>
#include <utility>

#include "kiln/error.hpp"
#include "runtime/serve/provisions.hpp"

namespace kiln::runtime {

void Serving::add(const std::shared_ptr<ServedHandle>& handle) {
  const std::lock_guard lock(mutex_);
  if (handles_.size() == handles_.capacity())
    std::erase_if(handles_, [](const auto& other) { return other.expired(); });
  handles_.push_back(handle);
  if (sealed()) handle->provisions().seal();
}

std::vector<std::shared_ptr<ServedHandle>> Serving::handles() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<ServedHandle>> living;
  for (const auto& weak : handles_)
    if (auto handle = weak.lock()) living.push_back(std::move(handle));
  return living;
}

std::shared_ptr<ServedHandle> Serving::find(const detail::TunableHandle& handle) const {
  const auto living = handles();  // outlives the lock: the last owner of a handle may be this one
  const auto found = std::ranges::find(living, &handle, [](const auto& one) {
    return static_cast<const detail::TunableHandle*>(one.get());
  });
  return found == living.end() ? nullptr : *found;
}

void Serving::seal(OnUnprepared unprepared) {
  const auto living = handles();  // outlives the lock: the last owner of a handle may be this one
  const std::lock_guard lock(mutex_);
  for (const auto& weak : handles_)
    if (const auto handle = weak.lock()) handle->provisions().seal();
  phase_.store(static_cast<int>(unprepared), std::memory_order_release);
}

void Serving::renew() {
  const auto living = handles();  // as in seal(), which may be going on
  const std::lock_guard lock(mutex_);
  if (!sealed()) return;
  for (const auto& handle : living) handle->provisions().seal();
}

Serving::Preparing Serving::begin_preparing() {
  if (preparing_.exchange(true))
    throw UserError("prepare: another preparation of this runtime is going on; wait for it first");
  return Preparing(*this);
}

}  // namespace kiln::runtime
