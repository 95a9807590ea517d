#include "codegen/llvm/keep_order.hpp"

#include <cstdint>
#include <cstdlib>
#include <vector>

#include <llvm/Analysis/AliasAnalysis.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/LoopIterator.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/IR/Instructions.h>

namespace kiln::codegen::llvm_host {
namespace {

using llvm::Instruction;

struct Access {
  Instruction* instruction;
  llvm::MemoryLocation place;
  const llvm::SCEV* address;
  std::int64_t stride;  ///< bytes from one thread's to the next one's; 0: not constant
  std::int64_t size;
  bool is_store;
};

std::vector<Access> accesses_of(const llvm::Loop& loop, const llvm::LoopInfo& loops,
                                llvm::ScalarEvolution& evolution) {
  std::vector<Access> accesses;
  llvm::LoopBlocksRPO order(const_cast<llvm::Loop*>(&loop));
  order.perform(&loops);
  for (llvm::BasicBlock* block : order) {
    for (Instruction& instruction : *block) {
      llvm::Value* pointer = llvm::getLoadStorePointerOperand(&instruction);
      if (!pointer) continue;
      Access access{&instruction,
                    llvm::MemoryLocation::get(&instruction),
                    evolution.getSCEV(pointer),
                    0,
                    0,
                    llvm::isa<llvm::StoreInst>(instruction)};
      if (access.place.Size.hasValue() && !access.place.Size.isScalable())
        access.size = static_cast<std::int64_t>(access.place.Size.getValue().getFixedValue());
      if (auto* moving = llvm::dyn_cast<llvm::SCEVAddRecExpr>(access.address);
          moving && moving->getLoop() == &loop && moving->isAffine())
        if (auto* step = llvm::dyn_cast<llvm::SCEVConstant>(moving->getStepRecurrence(evolution)))
          access.stride = step->getAPInt().getSExtValue();
      accesses.push_back(access);
    }
  }
  return accesses;
}

/// Whether LLVM might make one wide access of the two: same kind and stride, next to each other
/// within the stride.
bool may_be_grouped(const Access& a, const Access& b, llvm::ScalarEvolution& evolution) {
  if (a.is_store != b.is_store || a.stride == 0 || a.stride != b.stride || a.size == 0 ||
      a.size != b.size || std::abs(a.stride) < 2 * a.size)
    return false;
  const auto* distance =
      llvm::dyn_cast<llvm::SCEVConstant>(evolution.getMinusSCEV(b.address, a.address));
  return distance && std::abs(distance->getAPInt().getSExtValue()) < std::abs(a.stride);
}

/// All loads of a group are made where its first load is, all stores where its last store is.
bool would_reorder(const std::vector<Access>& accesses, llvm::ScalarEvolution& evolution,
                   llvm::AAResults& aliases) {
  for (std::size_t i = 0; i < accesses.size(); ++i)
    for (std::size_t j = i + 2; j < accesses.size(); ++j) {
      if (!may_be_grouped(accesses[i], accesses[j], evolution)) continue;
      const Access& moved = accesses[i].is_store ? accesses[i] : accesses[j];
      for (std::size_t k = i + 1; k < j; ++k)
        if ((accesses[k].is_store || moved.is_store) &&
            !aliases.isNoAlias(accesses[k].place, moved.place))
          return true;
    }
  return false;
}

}  // namespace

llvm::PreservedAnalyses KeepOrder::run(llvm::Function& function,
                                       llvm::FunctionAnalysisManager& analyses) {
  const llvm::LoopInfo& loops = analyses.getResult<llvm::LoopAnalysis>(function);
  auto& evolution = analyses.getResult<llvm::ScalarEvolutionAnalysis>(function);
  auto& aliases = analyses.getResult<llvm::AAManager>(function);
  for (const llvm::Loop* loop : loops.getLoopsInPreorder()) {
    if (!loop->isInnermost() || !loop->isAnnotatedParallel()) continue;
    const std::vector<Access> accesses = accesses_of(*loop, loops, evolution);
    if (!would_reorder(accesses, evolution, aliases)) continue;
    for (const Access& access : accesses)
      access.instruction->setMetadata(llvm::LLVMContext::MD_access_group, nullptr);
  }
  return llvm::PreservedAnalyses::all();
}

}  // namespace kiln::codegen::llvm_host
