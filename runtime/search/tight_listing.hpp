// Lists the allowed points of a space with too many combinations to walk, when constraints leave
// few of them.
#pragma once

#include <vector>

#include "runtime/search/search_space.hpp"

namespace kiln::runtime {

/// In the order of the parameters and their values; empty when points are not rare, when there are
/// too many, or when none was found. Takes a bounded number of calls of the constraints, well
/// under a second of them.
///
/// Which parameters a constraint looks at is learned by changing them one at a time; then values
/// are given to one parameter after the other, and a constraint is held against the config as soon
/// as all that it looks at is given. What is listed is allowed for certain. A constraint that looks
/// at a parameter in rare cases only may hide points: the list is not for proving completeness.
/// Where constraints look at too much at once for that, the list is made by spreading from one
/// allowed point over changes of one or two values; islands may then be missed. Either list is
/// dropped when it lacks an allowed point that was found otherwise. SearchSpace::enumerate() calls
/// this inside of std::call_once: nothing here may call enumerate(), count() or sample().
std::vector<Point> list_tight(const SearchSpace& space);

}  // namespace kiln::runtime
