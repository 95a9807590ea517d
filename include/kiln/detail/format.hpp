// Internal: std::format where the compiler has it, {fmt} elsewhere. For .cpp files only; no public
// header includes this.
#pragma once

#include <version>

#if defined(__cpp_lib_format)
#include <format>
namespace kiln::detail {
using std::format;
}
#else
#include <fmt/format.h>
namespace kiln::detail {
using fmt::format;
}
#endif
