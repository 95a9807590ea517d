// Kernels and functions whose results do not change by a bit when they are tuned.
#pragma once

#include <optional>
#include <string_view>

#include "kiln/definition.hpp"
#include "kiln/detail/function_core.hpp"
#include "kiln/device.hpp"

namespace kiln::runtime {

/// The kernel with a space of those configs that compute what its untuned config computes, bit for
/// bit (KernelDefinition::numerics). That config is the default of its problem. The definition that
/// is returned may be used by several threads.
KernelDefinition deterministic(const KernelDefinition& kernel, const DeviceInfo& device);
/// The same for a function: its untuned config is that of its default knobs.
detail::FunctionDescription deterministic(const detail::FunctionDescription& function,
                                          const Target& target);

/// The kernel that handles launch: the given one, or the above where the kernel or the runtime asks
/// for it.
KernelDefinition as_served(KernelDefinition kernel, std::optional<bool> of_runtime,
                           const DeviceInfo& device);

/// What $KILN_DETERMINISTIC says. @throws UserError when that is neither 0 nor 1
bool deterministic_from(std::string_view value);
/// `asked`, else what the variable says, else no.
bool is_deterministic(std::optional<bool> asked);

}  // namespace kiln::runtime
