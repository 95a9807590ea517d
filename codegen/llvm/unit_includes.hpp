// Which device headers a unit includes before all else: those that may be parsed ahead of it.
#pragma once

#include <string>
#include <vector>

#include <clang/Lex/Preprocessor.h>

namespace kiln::codegen::llvm_host {

struct UnitIncludes {
  /// Device headers beside cuda_runtime.h that it includes, in that order, before any token of its
  /// own, any pragma but `once` and any #undef.
  std::vector<std::string> headers;
  /// Names of macros that it defines, or asks for, before the last of them.
  std::vector<std::string> defined, tested;
};

/// Fills in `unit` while `preprocessor` runs; it must outlive that.
void watch_includes(clang::Preprocessor& preprocessor, UnitIncludes& unit);

}  // namespace kiln::codegen::llvm_host
