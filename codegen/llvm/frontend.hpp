// Clang in-process: one instance's source to LLVM IR, not yet optimised.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include "codegen/source.hpp"
#include "kiln/target.hpp"

namespace kiln::codegen::llvm_host {

/// Null when the source was refused; `log` gets Clang's errors and warnings, `headers_ahead` how
/// many device headers had been parsed before the unit. Safe to call from several threads, each
/// with its own context.
std::unique_ptr<llvm::Module> run_frontend(const Source& source, const Target& target,
                                           llvm::LLVMContext& context, std::string& log,
                                           std::size_t& headers_ahead);

}  // namespace kiln::codegen::llvm_host
