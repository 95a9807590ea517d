// One spelling per argument type, so that what a source writes can be compared with what a caller
// has.
#pragma once

#include <string>

namespace kiln::runtime {

/// `unsigned *` is `unsigned int*`, `half const*` is `const __half*`, `int64_t` is `long`. 64-bit
/// integers have one name: which of the two C++ types they are differs between compilers.
std::string canonical_type(const std::string& type);

}  // namespace kiln::runtime
