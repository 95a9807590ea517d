// A launch of what is in use, on data of its own, compared with the reference.
#pragma once

#include <cstdint>
#include <span>

#include "kiln/detail/handle_core.hpp"
#include "runtime/serve/kernel_loader.hpp"

namespace kiln::runtime {

/// As DynamicTuned::verify, of this launchable, for an exact problem.
Verification verify_launch(detail::Engine& engine, KernelLoader& loader,
                           const detail::Launchable& ready, std::span<const std::int64_t> problem,
                           std::uint64_t seed);

}  // namespace kiln::runtime
