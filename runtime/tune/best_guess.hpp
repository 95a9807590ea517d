// What looks best before anything is compiled.
#pragma once

#include <cstdint>
#include <span>

#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"
#include "runtime/search/search_space.hpp"
#include "runtime/tune/cost_model.hpp"

namespace kiln::runtime {

/// The config of a space that the cost model expects to be fastest; of a large space, the fastest
/// of some. If several are equal, the first. Empty if it expects none to work.
Values best_guess(const SearchSpace& space, const CostModel& model, std::uint64_t seed);

/// The untuned config, which runs before anything is measured for a problem: the cost model's
/// choice for kernels that say so (KernelDefinition::untuned_by_cost), else the default. Depends on
/// its arguments alone, so that all ranks with like devices find the same.
Values untuned_config(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                      const DeviceInfo& device);

/// Whether the untuned config is chosen for the problem, by the cost model or by the kernel's author
/// (KernelDefinition::default_for). If so, other problems' winners are worse guesses: with the
/// kernels and tunings of tests/recorded they have .86 of the best config's speed, and the untuned
/// configs .98.
bool untuned_for_problem(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                         const DeviceLimits& limits);

}  // namespace kiln::runtime
