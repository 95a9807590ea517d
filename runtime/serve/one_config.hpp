// A kernel whose config the program gives.
#pragma once

#include <cstdint>
#include <span>

#include "kiln/definition.hpp"

namespace kiln::runtime {

/// The same kernel with a space of one config. @throws UserError for a config of another number of
/// values than the kernel has parameters
KernelDefinition with_one_config(const KernelDefinition& kernel,
                                 std::span<const std::int64_t> config);

}  // namespace kiln::runtime
