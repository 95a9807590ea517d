#include "runtime/serve/serving.hpp"

#include <algorithm>
#include <utility>

#include "kiln/error.hpp"
#include "runtime/serve/provisions.hpp"

namespace kiln::runtime {

namespace {

template <class T>
void add_to(std::vector<std::weak_ptr<T>>& all, const std::shared_ptr<T>& one) {
  if (all.size() == all.capacity())
    std::erase_if(all, [](const auto& other) { return other.expired(); });
  all.push_back(one);
}

template <class T>
std::vector<std::shared_ptr<T>> living_of(const std::vector<std::weak_ptr<T>>& all) {
  std::vector<std::shared_ptr<T>> living;
  for (const auto& weak : all)
    if (auto one = weak.lock()) living.push_back(std::move(one));
  return living;
}

}  // namespace

void Serving::add(const std::shared_ptr<ServedHandle>& handle) {
  const std::lock_guard lock(mutex_);
  add_to(handles_, handle);
  if (sealed()) handle->provisions().seal();
}

void Serving::add(const std::shared_ptr<ServedChoice>& choice) {
  const std::lock_guard lock(mutex_);
  add_to(choices_, choice);
  if (sealed()) choice->seal();
}

std::vector<std::shared_ptr<ServedHandle>> Serving::handles() const {
  const std::lock_guard lock(mutex_);
  return living_of(handles_);
}

std::vector<std::shared_ptr<ServedChoice>> Serving::choices() const {
  const std::lock_guard lock(mutex_);
  return living_of(choices_);
}

std::shared_ptr<ServedHandle> Serving::find(const detail::TunableHandle& handle) const {
  const auto living = handles();  // outlives the lock: the last owner of a handle may be this one
  const auto found = std::ranges::find(living, &handle, [](const auto& one) {
    return static_cast<const detail::TunableHandle*>(one.get());
  });
  return found == living.end() ? nullptr : *found;
}

void Serving::seal(OnUnprepared unprepared) {
  // Outlive the lock: the last owner of one may be this thread.
  const auto living = handles();
  const auto living_choices = choices();
  const std::lock_guard lock(mutex_);
  for (const auto& weak : handles_)
    if (const auto handle = weak.lock()) handle->provisions().seal();
  for (const auto& weak : choices_)
    if (const auto choice = weak.lock()) choice->seal();
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
