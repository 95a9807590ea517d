// What ranks do before they agree on a manifest.
#pragma once

#include <exception>

#include "kiln/manifest.hpp"
#include "kiln/tune.hpp"
#include "runtime/prepare/choices_together.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/together/beside_agreement.hpp"

namespace kiln::runtime {

/// Launches of the manifest's problems throw `why`, and do not ask the ranks, which have gone on
/// without this one.
void remember_absence(const detail::Engine& engine, const Manifest& manifest,
                      const TuneOptions& options, const std::exception_ptr& why) noexcept;

/// Calls `work`. If it throws, the other ranks are told first, unless they agree on nothing. If any
/// of them goes on, launches of the manifest's problems do not ask them.
template <class Work>
void before_agreement(detail::Engine& engine, const Manifest& manifest, const TuneOptions& options,
                      const Work& work) {
  if (manifest.wanted.empty()) return work();
  try {
    tell_if_it_throws(options, work, [&](const std::exception_ptr& why) {
      remember_absence(engine, manifest, options, why);
    });
  } catch (...) {
    leave_choices(engine, manifest);
    throw;
  }
}

}  // namespace kiln::runtime
