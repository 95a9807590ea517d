// What looks best before anything is compiled.
#pragma once

#include <cstdint>
#include <span>

#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"
#include "runtime/search/search_space.hpp"
#include "runtime/tune/cost_model.hpp"

namespace kiln::runtime {

/// What the cost model likes best among the configs of a space, of large ones among some; the first
/// of equals. Empty when it likes none.
Values best_guess(const SearchSpace& space, const CostModel& model, std::uint64_t seed);

/// What runs a problem before anything is measured for it: the cost model's choice for kernels that
/// say so (KernelDefinition::untuned_by_cost), else the default. Depends on its arguments alone, so
/// that all ranks with like devices find the same.
Values untuned_config(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                      const DeviceInfo& device);

}  // namespace kiln::runtime
