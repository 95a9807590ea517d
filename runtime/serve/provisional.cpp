#include "runtime/serve/provisional.hpp"

#include <span>
#include <utility>

#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

using detail::Launchable;

namespace {

/// The owner of such a launchable.
struct Provisional {
  Launchable launchable;
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
    return self.launchable.start(self.launchable, launch, problem, stream, args);
  if (!self.captures.records(stream))
    throw self.captures.counted(
        "a launch on this stream would make a capture fail, because another stream that waits for "
        "it is being captured, or its own capture has failed: launch on a stream of its own");
  Launchable captured = self.launchable;
  captured.owner = ready.owner;  // the graph keeps the problem as well
  self.captures.launch_refreshable(self.handle, captured, captured.problem, launch, problem, stream,
                                   args);
}

}  // namespace

Launchable provisional(Launchable launchable, Captures& captures,
                       std::weak_ptr<detail::TunableHandle> handle) {
  Launchable wrapped = launchable;
  wrapped.provisional = true;
  wrapped.start = start_provisional;
  wrapped.owner = std::make_shared<const Provisional>(
      Provisional{std::move(launchable), captures, std::move(handle)});
  return wrapped;
}

Launchable may_improve(detail::Engine& engine, const std::shared_ptr<ServedHandle>& handle,
                       Launchable launchable) {
  if (Background* const background = engine.background())
    return background->provisional(std::move(launchable), handle);
  if (engine.options().mode != Mode::tune_now) return launchable;
  return provisional(std::move(launchable), engine.captures(), handle);
}

const Launchable& launchable_of(const Launchable& ready) { return owner_of(ready).launchable; }

detail::Ready unwrapped(const detail::Ready& ready) {
  if (!ready->provisional) return ready;
  auto launchable = std::make_shared<Launchable>(launchable_of(*ready));
  launchable->owner = ready->owner;
  return launchable;
}

}  // namespace kiln::runtime
