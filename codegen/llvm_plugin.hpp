// The host compiler, opened only when something must be compiled: Clang and LLVM live in a plugin
// that Kiln does not link, so that programs run from stored binaries without either.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.hpp"

namespace kiln::codegen {

/// False when Kiln was configured without LLVM (-Dllvm=disabled, or none was found).
bool has_llvm() noexcept;

/// Where the plugin is looked for, in order: $KILN_LLVM_PLUGIN alone if it is set; else beside this
/// library or in its build tree, then on the loader's search path.
std::vector<std::filesystem::path> host_compiler_plugins();

/// A compiler for host targets. `identity()`, `includes()` and `options()` open nothing; the first
/// `compile` opens the plugin of this very build of Kiln.
/// @throws EnvironmentError from `compile` if no fitting plugin is found: the message says what was
/// tried and what to install.
std::unique_ptr<Compiler> make_host_compiler(
    std::vector<std::filesystem::path> plugins = host_compiler_plugins());

/// Why `compile` would throw; empty when it would not. Opens the plugin.
std::string host_compiler_obstacle(
    std::vector<std::filesystem::path> plugins = host_compiler_plugins());

}  // namespace kiln::codegen
