// What one thread does to memory stays in its order.
#pragma once

#include <llvm/IR/PassManager.h>

namespace kiln::codegen::llvm_host {

/// Runs before vectorisation. For a loop whose iterations are marked as independent, LLVM keeps no
/// record of dependences at all, not even of those within an iteration, and merges several strided
/// accesses into a wide one, across what lies between them. This pass takes the mark from a loop in
/// which that would move an access past another that may concern the same memory; LLVM then finds
/// the dependences itself.
struct KeepOrder : llvm::PassInfoMixin<KeepOrder> {
  llvm::PreservedAnalyses run(llvm::Function& function, llvm::FunctionAnalysisManager& analyses);
};

}  // namespace kiln::codegen::llvm_host
