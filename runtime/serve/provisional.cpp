#include "runtime/serve/provisional.hpp"

#include <span>
#include <utility>

namespace kiln::runtime {

using detail::Launchable;

namespace {

/// The owner of such a launchable.
struct Provisional {
  Launchable untuned;
  Captures& captures;
  std::weak_ptr<detail::TunableHandle> handle;
};

const Provisional& owner_of(const Launchable& ready) {
  return *static_cast<const Provisional*>(ready.owner.get());
}

void start_provisional(const Launchable& ready, const Launch& launch,
                       std::span<const std::int64_t> problem, Stream stream, void** args) {
  const Provisional& self = owner_of(ready);
  if (!self.captures.device().capturing(stream))
    return self.untuned.start(self.untuned, launch, problem, stream, args);
  if (!self.captures.records(stream))
    throw self.captures.counted(
        "a launch on this stream would make a capture fail, because another stream that waits for "
        "it is being captured, or its own capture has failed: launch on a stream of its own");
  Launchable untuned = self.untuned;
  untuned.owner = ready.owner;  // the graph keeps the problem as well
  self.captures.launch_stand_in(self.handle, untuned, untuned.problem, launch, problem, stream,
                                args);
}

}  // namespace

Launchable provisional(Launchable untuned, Captures& captures,
                       std::weak_ptr<detail::TunableHandle> handle) {
  Launchable wrapped = untuned;
  wrapped.provisional = true;
  wrapped.start = start_provisional;
  wrapped.owner = std::make_shared<const Provisional>(
      Provisional{std::move(untuned), captures, std::move(handle)});
  return wrapped;
}

const Launchable& untuned_of(const Launchable& ready) { return owner_of(ready).untuned; }

detail::Ready unwrapped(const detail::Ready& ready) {
  if (!ready->provisional) return ready;
  auto untuned = std::make_shared<Launchable>(untuned_of(*ready));
  untuned->owner = ready->owner;
  return untuned;
}

}  // namespace kiln::runtime
