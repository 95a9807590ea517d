// Engines as their options ask for them.
#pragma once

#include <memory>

#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

/// `background`: another device for mode background to measure on; null: `device`.
/// @throws UserError when the options make no sense, or when that device is of another kind
std::shared_ptr<detail::Engine> make_engine(RuntimeOptions options, std::shared_ptr<Device> device,
                                            Builder::MakeCompiler make_compiler,
                                            std::shared_ptr<Device> background = {});

}  // namespace kiln::runtime
