// Making the problems of a manifest ready: what Runtime::prepare does.
#pragma once

#include <functional>
#include <stop_token>

#include "kiln/prepare.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

/// As Runtime::prepare, by the holder of `preparing`. `progress` is called on this thread.
/// @throws as Runtime::prepare
PrepareReport prepare(detail::Engine& engine, const Manifest& manifest,
                      const PrepareOptions& options, const std::stop_token& stop,
                      const std::function<void(const PrepareProgress&)>& progress,
                      const Serving::Preparing& preparing);

/// @throws UserError as Runtime::prepare; the other ranks are told
Serving::Preparing begin_preparing(const Manifest& manifest, const PrepareOptions& options,
                                   detail::Engine& engine);

}  // namespace kiln::runtime
