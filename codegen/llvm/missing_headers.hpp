// What to do about headers of CUDA's that the host target does not have.
#pragma once

#include <string>
#include <string_view>

namespace kiln::codegen::llvm_host {

/// A line about the header that the compiler's `log` says was not found, beginning with `path`, the
/// source's; empty if there is none, or it is not one of CUDA's.
std::string explain_missing_header(std::string_view path, std::string_view log);

}  // namespace kiln::codegen::llvm_host
