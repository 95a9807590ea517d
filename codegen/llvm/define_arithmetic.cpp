// C++ leaves undefined what the GPU's instructions define, and kernels rely on: conversions of
// floats out of range, and shifts by the width or more. As NVRTC compiles them (PTX ISA, `cvt`,
// `shl`, `shr`):
//  - a conversion saturates. NaN gives 0 from `float` and narrower to 32 bits, and else the integer
//    with the top bit set alone. A target narrower than 32 bits gets the low bits of a conversion
//    to 32 bits of its sign.
//  - `<<` and unsigned `>>` by the width or more give 0, signed `>>` gives the sign in every bit.
#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/PatternMatch.h>

#include "codegen/llvm/passes.hpp"

namespace kiln::codegen::llvm_host {
namespace {

using llvm::Instruction;
using llvm::Value;

// The signedness of a conversion from float to integer; nothing: it is something else.
std::optional<bool> signed_conversion(const Instruction& instruction) {
  if (llvm::isa<llvm::FPToSIInst>(instruction)) return true;
  if (llvm::isa<llvm::FPToUIInst>(instruction)) return false;
  if (const auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction)) {
    if (call->getIntrinsicID() == llvm::Intrinsic::fptosi_sat) return true;
    if (call->getIntrinsicID() == llvm::Intrinsic::fptoui_sat) return false;
  }
  return std::nullopt;
}

Value* converted(Instruction& conversion, bool is_signed) {
  llvm::IRBuilder<> builder(&conversion);
  Value* from = conversion.getOperand(0);
  llvm::Type* to = conversion.getType();
  const unsigned bits = std::max(to->getScalarSizeInBits(), 32u);
  llvm::Type* wide = to->getWithNewBitWidth(bits);
  Value* value =
      builder.CreateIntrinsic(is_signed ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat,
                              {wide, from->getType()}, {from});
  if (bits > 32 || from->getType()->getScalarSizeInBits() > 32) {
    value =
        builder.CreateSelect(builder.CreateFCmpUNO(from, from),
                             llvm::ConstantInt::get(wide, llvm::APInt::getSignMask(bits)), value);
  }
  return builder.CreateTrunc(value, to);
}

bool is_in_range(const Value* amount, unsigned bits) {
  const llvm::APInt* constant = nullptr;
  return llvm::PatternMatch::match(amount, llvm::PatternMatch::m_APInt(constant)) &&
         constant->ult(bits);
}

Value* shifted(llvm::BinaryOperator& shift) {
  llvm::IRBuilder<> builder(&shift);
  Value *value = shift.getOperand(0), *amount = shift.getOperand(1);
  const unsigned bits = shift.getType()->getScalarSizeInBits();
  if (shift.getOpcode() == Instruction::AShr) {
    return builder.CreateAShr(
        value, builder.CreateBinaryIntrinsic(llvm::Intrinsic::umin, amount,
                                             llvm::ConstantInt::get(shift.getType(), bits - 1)));
  }
  Value* result = builder.CreateBinOp(shift.getOpcode(), value, amount);
  return builder.CreateSelect(
      builder.CreateICmpULT(amount, llvm::ConstantInt::get(shift.getType(), bits)), result,
      llvm::Constant::getNullValue(shift.getType()));
}

}  // namespace

void define_arithmetic(llvm::Module& module) {
  std::vector<Instruction*> undefined;
  for (llvm::Function& function : module) {
    for (llvm::BasicBlock& block : function) {
      for (Instruction& instruction : block) {
        const unsigned bits = instruction.getType()->getScalarSizeInBits();
        if (signed_conversion(instruction) ||
            (instruction.isShift() && !is_in_range(instruction.getOperand(1), bits)))
          undefined.push_back(&instruction);
      }
    }
  }
  for (Instruction* instruction : undefined) {
    const auto is_signed = signed_conversion(*instruction);
    instruction->replaceAllUsesWith(is_signed
                                        ? converted(*instruction, *is_signed)
                                        : shifted(llvm::cast<llvm::BinaryOperator>(*instruction)));
    instruction->eraseFromParent();
  }
}

}  // namespace kiln::codegen::llvm_host
