// The host compiler, opened only when something must be compiled: Clang and LLVM live in a plugin
// that Kiln does not link, so that programs run from stored binaries without either.
#pragma once

#include <memory>
#include <string>

#include "codegen/compiler.hpp"

namespace kiln::codegen {

/// False when Kiln was configured without LLVM (-Dllvm=disabled, or none was found).
bool has_llvm() noexcept;

/// A compiler for host targets. `identity()`, `includes()` and `options()` open nothing; the first
/// `compile` opens the plugin of this very build of Kiln: $KILN_LLVM_PLUGIN, beside this library,
/// in the build tree, then on the loader's search path.
/// @throws EnvironmentError from `compile` if no fitting plugin is found: the message says what was
/// tried and what to install.
std::unique_ptr<Compiler> make_host_compiler();

/// Why `compile` would throw; empty when it would not. Opens the plugin.
std::string host_compiler_problem();

}  // namespace kiln::codegen
