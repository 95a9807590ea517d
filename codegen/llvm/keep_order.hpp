// What one thread does to memory stays in its order.
#pragma once

#include <llvm/IR/PassManager.h>

namespace kiln::codegen::llvm_host {

/// Before vectorisation. Of a loop whose iterations are said to be independent LLVM keeps no record
/// of dependences at all, also not of those within an iteration, and makes one wide access of
/// several strided ones, across what lies between them. A loop in which that would move an access
/// past another that may concern the same memory is not said to be independent: LLVM then finds the
/// dependences itself.
struct KeepOrder : llvm::PassInfoMixin<KeepOrder> {
  llvm::PreservedAnalyses run(llvm::Function& function, llvm::FunctionAnalysisManager& analyses);
};

}  // namespace kiln::codegen::llvm_host
