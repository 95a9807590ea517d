// The device headers that units begin with, parsed once per process: they are the larger part of
// what Clang parses for a small kernel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringSet.h>

#include "codegen/llvm/clang_run.hpp"
#include "codegen/llvm/unit_includes.hpp"
#include "codegen/source.hpp"
#include "kiln/target.hpp"

namespace kiln::codegen::llvm_host {

/// Clang's form of cuda_runtime.h and some other device headers. Immutable.
struct PrecompiledHeader {
  std::vector<std::string> headers;  ///< the others, in the order included
  llvm::SmallVector<char, 0> parsed;
  llvm::StringSet<> identifiers;  ///< all that were met, also those that macros made
  llvm::StringSet<> macros;       ///< that the headers define
};

/// Has `run` and its `options` begin with cuda_runtime.h and the device headers that units of this
/// source include, precompiled. The precompiled form is made when it is first wanted and kept for
/// the life of the process, up to a limited number of them. Null, and nothing is changed, where the
/// author's options may change what the headers mean, or must come before them: then they are
/// parsed with the unit. Safe to call from several threads, within `run_guarded`.
[[nodiscard]] std::shared_ptr<const PrecompiledHeader> use_precompiled_header(
    ClangRun& run, std::vector<std::string>& options, const Source& source, const Target& target);

/// Whether a unit that was compiled behind this header would have read the same text in the same
/// order without it.
bool fits(const PrecompiledHeader& header, const UnitIncludes& unit);

/// Says what a unit of this source included. The next ones get those headers precompiled that all
/// units so far have included.
void remember_headers(const Source& source, const std::vector<std::string>& headers);

}  // namespace kiln::codegen::llvm_host
