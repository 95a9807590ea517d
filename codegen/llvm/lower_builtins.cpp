#include "codegen/llvm/lower_builtins.hpp"

#include "codegen/llvm/regions.hpp"

namespace kiln::codegen::llvm_host {
namespace {

using llvm::Instruction;
using llvm::Value;

class BuiltinLowering {
 public:
  BuiltinLowering(const RegionValues& values, const std::vector<std::uint32_t>& parameter_bytes)
      : values_(values),
        parameter_bytes_(parameter_bytes),
        context_(values.entry->getContext()),
        builder_(context_) {}

  void lower(llvm::CallInst* call, llvm::StringRef name) {
    builder_.SetInsertPoint(call);
    Value* value = nullptr;
    if (name == "thread_index") {
      value = dimension(*call, values_.index_of);
      if (value == values_.index_of[0]) widen(*call);
    } else if (name == "block_index") {
      value = dimension(*call, values_.block_index);
    } else if (name == "block_dim") {
      value = dimension(*call, values_.block_dim);
    } else if (name == "grid_dim") {
      value = dimension(*call, values_.grid_dim);
    } else if (name == "cluster_index") {
      value = dimension(*call, values_.cluster_index);
    } else if (name == "cluster_dim") {
      value = dimension(*call, values_.cluster_dim);
    } else if (name == "service") {
      llvm::SmallVector<Value*, 7> operands = {values_.frame, values_.thread};
      operands.append(call->arg_begin(), call->arg_end());
      llvm::SmallVector<llvm::Type*, 7> types;
      for (Value* operand : operands) types.push_back(operand->getType());
      llvm::CallInst* service = builder_.CreateCall(
          llvm::FunctionType::get(call->getType(), types, false), values_.service, operands);
      service->setDoesNotThrow();
      value = service;
    } else if (name == "linear_thread") {
      value = values_.thread;
    } else if (name == "round") {
      value = values_.round;
    } else if (name == "argument") {
      value = argument(*call);
    } else if (name == "shared_arena") {
      value = values_.shared;
    } else if (name == "slot") {
      const auto offset = llvm::cast<llvm::ConstantInt>(call->getArgOperand(0))->getZExtValue();
      value =
          slot_address(offset, builder_.CreateZExt(call->getArgOperand(1), builder_.getInt64Ty()));
    } else if (name == "send32" || name == "send64") {
      Value* sent = call->getArgOperand(0);
      builder_.CreateStore(sent, element(name == "send32" ? values_.send32 : values_.send64,
                                         sent->getType(), values_.thread));
    } else if (name == "receive32" || name == "receive64") {
      value = builder_.CreateLoad(
          call->getType(), element(name == "receive32" ? values_.receive32 : values_.receive64,
                                   call->getType(), call->getArgOperand(0)));
    } else {
      throw LoweringError("the function __kiln_" + name.str() + " is unknown to the lowering");
    }
    if (value) call->replaceAllUsesWith(value);
  }

 private:
  Value* element(Value* array, llvm::Type* type, Value* index) {
    return builder_.CreateInBoundsGEP(type, array,
                                      index == values_.thread
                                          ? values_.wide_thread
                                          : builder_.CreateZExt(index, builder_.getInt64Ty()));
  }

  // LLVM does not see that a sum of 32 bits cannot wrap where it is used under a condition only,
  // and addresses made of it would not look like a vector's.
  void widen(llvm::CallInst& index) {
    for (llvm::User* user : llvm::make_early_inc_range(index.users())) {
      if (llvm::isa<llvm::ZExtInst, llvm::SExtInst>(user) && user->getType()->isIntegerTy(64))
        user->replaceAllUsesWith(values_.wide_x);
    }
  }

  // Address of this thread's `bytes` in the slot array that starts `offset` bytes per thread in.
  Value* slot_address(std::uint64_t offset, Value* bytes) {
    Value* array =
        builder_.CreateInBoundsGEP(builder_.getInt8Ty(), values_.slots,
                                   builder_.CreateMul(builder_.getInt64(offset), values_.stride));
    Value* wide = builder_.CreateZExt(values_.thread, builder_.getInt64Ty());
    return builder_.CreateInBoundsGEP(builder_.getInt8Ty(), array, builder_.CreateMul(wide, bytes));
  }

  static Value* dimension(const llvm::CallInst& call, Value* const (&values)[3]) {
    auto* which = llvm::dyn_cast<llvm::ConstantInt>(call.getArgOperand(0));
    if (!which) throw LoweringError("a thread or block dimension is selected at run time");
    return values[which->getZExtValue()];
  }

  Value* argument(llvm::CallInst& call) {
    auto* index = llvm::dyn_cast<llvm::ConstantInt>(call.getArgOperand(0));
    if (index) builder_.SetInsertPoint(values_.entry->getTerminator());
    auto* load =
        builder_.CreateLoad(builder_.getPtrTy(),
                            element(values_.arguments, builder_.getPtrTy(), call.getArgOperand(0)));
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
    const std::uint64_t bytes = index && index->getValue().ult(parameter_bytes_.size())
                                    ? parameter_bytes_[index->getZExtValue()]
                                    : 0;
    for (llvm::User* user : call.users()) lower_argument_use(user, bytes);
    return load;
  }

  // Under `if (i < n)` LLVM sinks the loads of arguments into the guarded block, where they are
  // conditional and keep the loop over threads from vectorising. What lies within the argument's
  // `bytes` for certain is read on entry instead.
  void lower_argument_use(llvm::User* user, std::uint64_t bytes) {
    Instruction* entry_end = values_.entry->getTerminator();
    if (auto* load = llvm::dyn_cast<llvm::LoadInst>(user)) {
      const llvm::DataLayout& layout = values_.entry->getModule()->getDataLayout();
      llvm::APInt at(64, 0);
      load->getPointerOperand()->stripAndAccumulateConstantOffsets(layout, at, true);
      const std::uint64_t size = layout.getTypeStoreSize(load->getType()).getFixedValue();
      if (load->isSimple() && at.ule(bytes) && size <= bytes - at.getZExtValue()) {
        load->dropUBImplyingAttrsAndMetadata();
        load->moveBefore(entry_end);
      }
      load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
    } else if (auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(user)) {
      if (bytes != 0 && address->hasAllConstantIndices()) address->moveBefore(entry_end);
      for (llvm::User* inner : address->users())
        lower_argument_use(inner, address->hasAllConstantIndices() ? bytes : 0);
    }
  }

  const RegionValues& values_;
  const std::vector<std::uint32_t>& parameter_bytes_;
  llvm::LLVMContext& context_;
  llvm::IRBuilder<> builder_;
};

// Launches keep blockIdx * blockDim + threadIdx below 2^31 in every dimension, so addresses made of
// it are affine whatever integer types they pass through.
void mark_global_index(Instruction& sum, const RegionValues& values) {
  if (sum.getOpcode() != Instruction::Add) return;
  for (unsigned side = 0; side < 2; ++side) {
    auto* product = llvm::dyn_cast<llvm::BinaryOperator>(sum.getOperand(side));
    if (!product || product->getOpcode() != Instruction::Mul) continue;
    for (unsigned d = 0; d < 3; ++d) {
      const bool block_start = (product->getOperand(0) == values.block_index[d] &&
                                product->getOperand(1) == values.block_dim[d]) ||
                               (product->getOperand(1) == values.block_index[d] &&
                                product->getOperand(0) == values.block_dim[d]);
      if (!block_start || sum.getOperand(1 - side) != values.index_of[d]) continue;
      for (Instruction* exact : {static_cast<Instruction*>(product), &sum}) {
        exact->setHasNoUnsignedWrap();
        exact->setHasNoSignedWrap();
      }
    }
  }
}

}  // namespace

void lower_builtins(const std::vector<Instruction*>& code, const RegionValues& values,
                    const std::vector<std::uint32_t>& parameter_bytes) {
  BuiltinLowering lowering(values, parameter_bytes);
  std::vector<Instruction*> calls;
  for (Instruction* instruction : code) {
    const llvm::StringRef name = builtin_name(*instruction);
    if (name.empty()) continue;
    lowering.lower(llvm::cast<llvm::CallInst>(instruction), name);
    calls.push_back(instruction);
  }
  for (Instruction* instruction : code) mark_global_index(*instruction, values);
  for (Instruction* call : calls) call->eraseFromParent();
}

llvm::Function* new_region_function(llvm::Function& kernel, const std::string& name) {
  llvm::LLVMContext& context = kernel.getContext();
  llvm::Type* pointer = llvm::PointerType::getUnqual(context);
  llvm::Type* number = llvm::Type::getInt32Ty(context);
  auto* type =
      llvm::FunctionType::get(llvm::Type::getVoidTy(context), {pointer, number, number}, false);
  llvm::Function* function =
      llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, name, kernel.getParent());
  function->setAttributes(
      llvm::AttributeList::get(context, llvm::AttributeList::FunctionIndex,
                               llvm::AttrBuilder(context, kernel.getAttributes().getFnAttrs())));
  for (auto attribute :
       {llvm::Attribute::Convergent, llvm::Attribute::MustProgress, llvm::Attribute::Memory,
        llvm::Attribute::WillReturn, llvm::Attribute::NoFree, llvm::Attribute::NoSync,
        llvm::Attribute::NoRecurse, llvm::Attribute::NoReturn}) {
    function->removeFnAttr(attribute);
  }
  function->addFnAttr(llvm::Attribute::NoUnwind);
  function->addParamAttr(0, llvm::Attribute::NoAlias);
  function->addParamAttr(0,
                         llvm::Attribute::getWithDereferenceableBytes(context, sizeof(HostFrame)));
  function->addParamAttr(
      0, llvm::Attribute::getWithAlignment(context, llvm::Align(alignof(HostFrame))));
  return function;
}

RegionValues load_frame(llvm::Function& region, llvm::IRBuilder<>& builder) {
  llvm::LLVMContext& context = region.getContext();
  // Fields never change while a region runs.
  const auto field = [&](llvm::Type* type, std::size_t offset, const char* name) {
    Value* address =
        builder.CreateConstInBoundsGEP1_64(builder.getInt8Ty(), region.getArg(0), offset);
    llvm::LoadInst* load = builder.CreateLoad(type, address, name);
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context, {}));
    return load;
  };
  const auto pointer = [&](std::size_t offset, const char* name, unsigned alignment) {
    llvm::LoadInst* load = field(builder.getPtrTy(), offset, name);
    load->setMetadata(
        llvm::LLVMContext::MD_align,
        llvm::MDNode::get(context, llvm::ConstantAsMetadata::get(builder.getInt64(alignment))));
    return load;
  };
  RegionValues values{};
  values.entry = builder.GetInsertBlock();
  values.frame = region.getArg(0);
  values.service = field(builder.getPtrTy(), offsetof(HostFrame, service), "service");
  values.arguments = pointer(offsetof(HostFrame, arguments), "arguments", 8);
  values.shared = pointer(offsetof(HostFrame, shared), "shared", kSharedAlignment);
  values.slots = pointer(offsetof(HostFrame, slots), "slots", kThreadGranularity);
  values.next = pointer(offsetof(HostFrame, next), "next", kThreadGranularity);
  values.mask = pointer(offsetof(HostFrame, mask), "mask", kThreadGranularity);
  values.send32 = pointer(offsetof(HostFrame, send32), "send32", kThreadGranularity);
  values.send64 = pointer(offsetof(HostFrame, send64), "send64", kThreadGranularity);
  values.receive32 = pointer(offsetof(HostFrame, receive32), "receive32", kThreadGranularity);
  values.receive64 = pointer(offsetof(HostFrame, receive64), "receive64", kThreadGranularity);
  llvm::Type* number = builder.getInt32Ty();
  values.stride = builder.CreateZExt(field(number, offsetof(HostFrame, slot_stride), "stride"),
                                     builder.getInt64Ty());
  for (unsigned d = 0; d < 3; ++d) {
    values.block_index[d] = field(number, offsetof(HostFrame, block_index) + 4 * d, "block.index");
    values.block_dim[d] = field(number, offsetof(HostFrame, block_dim) + 4 * d, "block.dim");
    values.grid_dim[d] = field(number, offsetof(HostFrame, grid_dim) + 4 * d, "grid.dim");
    values.cluster_index[d] =
        field(number, offsetof(HostFrame, cluster_index) + 4 * d, "cluster.index");
    values.cluster_dim[d] = field(number, offsetof(HostFrame, cluster_dim) + 4 * d, "cluster.dim");
  }
  return values;
}

}  // namespace kiln::codegen::llvm_host
