// Loads of one address by many threads, under a condition of each thread's own.
#pragma once

#include <llvm/IR/PassManager.h>

namespace kiln::codegen::llvm_host {

/// LLVM turns a conditional load into a gather even where all threads read the same address,
/// because that address must not be read if no thread reads it. This pass makes it one load: of the
/// address if any thread reads, else of a variable on the stack.
struct BroadcastLoads : llvm::PassInfoMixin<BroadcastLoads> {
  llvm::PreservedAnalyses run(llvm::Function& function, llvm::FunctionAnalysisManager&);
};

}  // namespace kiln::codegen::llvm_host
