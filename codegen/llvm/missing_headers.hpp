// What to do about headers of CUDA's that the host target does not have.
#pragma once

#include <string>
#include <string_view>

namespace kiln::codegen::llvm_host {

/// Finds in the compiler's `log` a header of CUDA's that was not found, and returns a line about it
/// that begins with `path`, the source's path. Empty if there is none.
std::string explain_missing_header(std::string_view path, std::string_view log);

}  // namespace kiln::codegen::llvm_host
