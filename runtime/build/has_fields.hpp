// Whether a problem that is named by its fields is one of a kernel's or a choice's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "kiln/definition.hpp"

namespace kiln::runtime {

inline bool has_fields(const KernelDefinition& kernel,
                       const std::map<std::string, std::int64_t>& problem) {
  return problem.size() == kernel.problem_fields.size() &&
         std::ranges::all_of(kernel.problem_fields,
                             [&](const std::string& field) { return problem.contains(field); });
}

}  // namespace kiln::runtime
