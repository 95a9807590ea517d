// What a launch is held to, in the form that costs least to check.
#pragma once

#include <vector>

#include "kiln/definition.hpp"
#include "kiln/detail/arguments.hpp"

namespace kiln::runtime {

/// The definition's relations. @throws UserError naming an argument that is no integer.
std::vector<detail::Relation> relations_of(const KernelDefinition& kernel);

}  // namespace kiln::runtime
