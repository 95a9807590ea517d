// Target kinds to compilers.
#pragma once

#include <memory>

#include "codegen/compiler.hpp"

namespace kiln::runtime {

/// @throws EnvironmentError when the compiler's library is missing, saying what to install.
std::shared_ptr<codegen::Compiler> make_compiler(Target::Kind kind);

}  // namespace kiln::runtime
