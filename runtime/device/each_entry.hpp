// The entries of one launch in their order: the kernel's own, then those of its steps.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/device/device.hpp"
#include "runtime/device/resource_check.hpp"

namespace kiln::runtime {

/// Calls `launch(const Module&, const Launch&)` for the entry and for each step that is not empty;
/// for nothing where the entry's grid is empty.
template <class F>
void each_entry(const Module& kernel, const Launch& own, std::span<const Launch> steps,
                const F& launch) {
  if (empty(own)) return;
  launch(kernel, own);
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (!empty(steps[i])) launch(kernel.step(i), steps[i]);
}

}  // namespace kiln::runtime
