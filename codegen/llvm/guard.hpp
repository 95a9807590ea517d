// Clang, LLVM and LLD end the process when they cannot go on. Here they end one compilation only.
#pragma once

#include <optional>
#include <string>

#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/IR/LLVMContext.h>

namespace kiln::codegen::llvm_host {

/// Runs `work` on a thread of its own, whose stack is large enough for a compiler whatever the
/// caller's is, and waits for it. Returns the reason where LLVM reported a fatal error or called
/// for an exit: what `work` held is leaked then. Exceptions of `work` come through.
/// @throws EnvironmentError when no thread can be started, or LLVM is out of memory.
std::optional<std::string> run_guarded(llvm::function_ref<void()> work);

/// Runs `step` within `run_guarded`; false if LLVM wanted to exit.
bool run_recoverable(llvm::function_ref<void()> step);

/// From here on, what LLVM says about code in `context` goes to `log` as said of the file `path`;
/// both outlive it. Without this LLVM prints it, and exits at an error.
void send_diagnostics(llvm::LLVMContext& context, const std::string& path, std::string& log);
/// Whether there was an error among it.
bool has_errors(const llvm::LLVMContext& context);

}  // namespace kiln::codegen::llvm_host
