// What every unit begins with, parsed once: cuda_runtime.h is the larger part of most kernels'
// text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/llvm/clang_run.hpp"
#include "codegen/source.hpp"
#include "kiln/target.hpp"

namespace kiln::codegen::llvm_host {

/// Has `run` and its `options` begin with Clang's precompiled form of cuda_runtime.h and of the
/// device headers that units of this source include. It is made when it is first wanted and kept as
/// long as the process; there is a limit to how many are. Changes nothing where the author's
/// options may change what the headers mean, or must come before them: then they are parsed with
/// the unit. What is returned must outlive the run; null: nothing was changed. Safe to call from
/// several threads.
[[nodiscard]] std::shared_ptr<const void> use_precompiled_header(ClangRun& run,
                                                                 std::vector<std::string>& options,
                                                                 const Source& source,
                                                                 const Target& target);
/// Says which device headers a unit of this source has included, in that order.
void remember_headers(const Source& source, const std::vector<std::string>& headers);

}  // namespace kiln::codegen::llvm_host
