// The options of a host compilation, known without LLVM so that keys can be computed without it.
#pragma once

#include <string>
#include <vector>

#include "codegen/include_closure.hpp"
#include "codegen/source.hpp"
#include "kiln/target.hpp"

namespace kiln::codegen::llvm_host {

/// The CPU name LLVM knows for a target.
std::string cpu_of(const Target& target);
/// The complete options of the compiler proper, except folders and what follows from this machine.
std::vector<std::string> host_options(const Source& source, const Target& target);
/// The include options among the author's own, as `-I...`.
std::vector<std::string> author_include_options(const Source& source);
IncludeContext host_includes();

}  // namespace kiln::codegen::llvm_host
