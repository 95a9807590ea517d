// Which candidates of a search are timed once more, side by side.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "runtime/tune/candidates.hpp"

namespace kiln::runtime {

struct Finalists {
  std::vector<std::size_t> leading;  ///< replaced only by what is certainly faster
  std::vector<std::size_t> others;   ///< in the order in which they are preferred
};

/// Those near the best. `leading`: these, too, as far as they were measured, unless they are slow
/// beyond doubt; those that are nothing are passed over.
Finalists choose_finalists(const Candidates& candidates,
                           std::span<const std::optional<std::size_t>> leading);

}  // namespace kiln::runtime
