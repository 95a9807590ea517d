// Clang in-process: one instance's source to LLVM IR, not yet optimised.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include "codegen/source.hpp"
#include "kiln/target.hpp"

namespace kiln::codegen::llvm_host {

struct FrontendResult {
  std::unique_ptr<llvm::Module> module;  ///< null when the source was refused
  std::string log;                       ///< errors, or warnings
};

/// Safe to call from several threads, each with its own context.
FrontendResult run_frontend(const Source& source, const Target& target, llvm::LLVMContext& context);

}  // namespace kiln::codegen::llvm_host
