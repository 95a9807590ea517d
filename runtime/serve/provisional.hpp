// Launchables that are in use while something better is looked for: an untuned config, or the
// winner of a search that goes on.
#pragma once

#include <memory>

#include "kiln/detail/handle_core.hpp"
#include "runtime/serve/captures.hpp"
#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// Launches what `launchable` does. On a stream that is being captured the launch is noted, so that
/// a graph can be refreshed. `captures` and the handle's device must outlive it.
detail::Launchable provisional(detail::Launchable launchable, Captures& captures,
                               std::weak_ptr<detail::TunableHandle> handle);

/// As provisional(), where something better may come: from the background, or in mode tune_now from
/// the program, which tunes what it has prepared without measuring. Otherwise as it is.
detail::Launchable may_improve(detail::Engine& engine, const std::shared_ptr<ServedHandle>& handle,
                               detail::Launchable launchable);

/// What a provisional launchable launches, as it was before. @pre ready.provisional
const detail::Launchable& launchable_of(const detail::Launchable& ready);

/// What a provisional launchable launches, with the same owner; any other launchable as it is.
detail::Ready unwrapped(const detail::Ready& ready);

}  // namespace kiln::runtime
