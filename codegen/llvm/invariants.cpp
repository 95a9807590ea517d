#include "codegen/llvm/invariants.hpp"

#include <llvm/Analysis/ValueTracking.h>

namespace kiln::codegen::llvm_host {
namespace {

using llvm::Instruction;

// Cheaper to repeat for each thread than to store and load.
bool cheap(const Instruction& instruction) {
  switch (instruction.getOpcode()) {
    case Instruction::Add:
    case Instruction::Sub:
    case Instruction::Mul:
    case Instruction::Shl:
    case Instruction::LShr:
    case Instruction::AShr:
    case Instruction::And:
    case Instruction::Or:
    case Instruction::Xor:
    case Instruction::ICmp:
    case Instruction::Select:
    case Instruction::ZExt:
    case Instruction::SExt:
    case Instruction::Trunc:
    case Instruction::GetElementPtr:
      return true;
    case Instruction::UDiv:
    case Instruction::URem:
      return llvm::isa<llvm::ConstantInt>(instruction.getOperand(1));
    default:
      return false;
  }
}

}  // namespace

Invariance Invariants::of(llvm::Value* value) {
  auto* instruction = llvm::dyn_cast<Instruction>(value);
  if (!instruction) return Invariance::per_block;
  if (auto known = known_.find(instruction); known != known_.end()) return known->second;
  known_[instruction] = Invariance::no;  // cuts cycles through PHIs
  const Invariance found = classify(*instruction);
  return known_[instruction] = found;
}

Invariance Invariants::classify(Instruction& instruction) {
  if (auto known = leaf_(instruction)) return *known;
  if (llvm::isa<llvm::PHINode, llvm::AllocaInst>(instruction) || instruction.isTerminator() ||
      instruction.mayReadOrWriteMemory() || instruction.mayHaveSideEffects()) {
    return Invariance::no;
  }
  if (!llvm::isSafeToSpeculativelyExecute(&instruction) && instruction.getParent() != executed_) {
    return Invariance::no;
  }
  Invariance all = Invariance::per_block;
  for (llvm::Value* operand : instruction.operands()) all = std::min(all, of(operand));
  return all == Invariance::per_thread && !cheap(instruction) ? Invariance::no : all;
}

}  // namespace kiln::codegen::llvm_host
