// One spelling per argument type, so that what a source writes can be compared with what a caller
// has.
#pragma once

#include <optional>
#include <string>

#include "kiln/types.hpp"

namespace kiln::runtime {

/// `unsigned *` is `unsigned int*`, `half const*` is `const __half*`, `int64_t` is `long`. 64-bit
/// integers have one name: which of the two C++ types they are differs between compilers.
std::string canonical_type(const std::string& type);

/// What a canonical type, or what it points to, is; nothing for types that are none of Kiln's.
std::optional<DataType> element_type(const std::string& canonical);

}  // namespace kiln::runtime
