// Other recorded spaces as evidence for a search.
#pragma once

#include <cstddef>
#include <functional>

#include "kiln/recorded.hpp"
#include "runtime/search/strategy.hpp"

namespace kiln::runtime {

/// What `prior` says of the configs of `space`. Parameters are matched by name, values by what the
/// files spell: 16, 16.0 and "16" are the same. Results with a value that `space` does not have are
/// left out, and so are those that were not `told`. @throws UserError when fewer than half of the
/// parameters of `space` that have a choice stand in `prior`, or no result of it that works is
/// left: then it is of another kernel
Evidence evidence_from(const RecordedSpace& prior, const RecordedSpace& space,
                       const std::function<bool(std::size_t config)>& told);

}  // namespace kiln::runtime
