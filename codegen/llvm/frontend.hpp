// Clang in-process: one instance's source to LLVM IR, not yet optimised.
#pragma once

#include <memory>
#include <string>

#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include "codegen/source.hpp"
#include "kiln/target.hpp"

namespace kiln::codegen::llvm_host {

/// Null when the source was refused; `log` gets Clang's errors and warnings. Safe to call from
/// several threads, each with its own context.
std::unique_ptr<llvm::Module> run_frontend(const Source& source, const Target& target,
                                           llvm::LLVMContext& context, std::string& log);

}  // namespace kiln::codegen::llvm_host
