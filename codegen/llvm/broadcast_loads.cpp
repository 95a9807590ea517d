#include "codegen/llvm/broadcast_loads.hpp"

#include <vector>

#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>

namespace kiln::codegen::llvm_host {
namespace {

using llvm::Value;

void load_once(llvm::IntrinsicInst& gather, Value* address) {
  llvm::IRBuilder<> builder(&gather);
  auto* type = llvm::cast<llvm::FixedVectorType>(gather.getType());
  llvm::BasicBlock& entry = gather.getFunction()->getEntryBlock();
  llvm::IRBuilder<> first(&entry, entry.getFirstInsertionPt());
  llvm::AllocaInst* nothing = first.CreateAlloca(type->getElementType());
  const llvm::Align alignment =
      llvm::cast<llvm::ConstantInt>(gather.getArgOperand(1))->getMaybeAlignValue().valueOrOne();
  nothing->setAlignment(std::max(nothing->getAlign(), alignment));
  Value *mask = gather.getArgOperand(2), *otherwise = gather.getArgOperand(3);
  Value* source = builder.CreateSelect(builder.CreateOrReduce(mask), address, nothing);
  Value* value = builder.CreateVectorSplat(
      type->getElementCount(),
      builder.CreateAlignedLoad(type->getElementType(), source, alignment));
  if (!llvm::isa<llvm::UndefValue>(otherwise))  // poison is one
    value = builder.CreateSelect(mask, value, otherwise);
  gather.replaceAllUsesWith(value);
  gather.eraseFromParent();
}

}  // namespace

llvm::PreservedAnalyses BroadcastLoads::run(llvm::Function& function,
                                            llvm::FunctionAnalysisManager&) {
  std::vector<std::pair<llvm::IntrinsicInst*, Value*>> found;
  for (llvm::BasicBlock& block : function) {
    for (llvm::Instruction& instruction : block) {
      auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction);
      if (!call || call->getIntrinsicID() != llvm::Intrinsic::masked_gather ||
          !llvm::isa<llvm::FixedVectorType>(call->getType()))
        continue;
      if (Value* address = llvm::getSplatValue(call->getArgOperand(0)))
        found.emplace_back(call, address);
    }
  }
  for (auto [gather, address] : found) load_once(*gather, address);
  return found.empty() ? llvm::PreservedAnalyses::all() : llvm::PreservedAnalyses::none();
}

}  // namespace kiln::codegen::llvm_host
