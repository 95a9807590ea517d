// One region as a function: a loop over a range of threads around a copy of the region's blocks.
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Cloning.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include "codegen/llvm/regions.hpp"

namespace kiln::codegen::llvm_host {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::Value;

class RegionBuilder {
 public:
  RegionBuilder(const CutKernel& kernel, std::size_t index)
      : kernel_(kernel),
        region_(kernel.regions[index]),
        index_(static_cast<unsigned>(index)),
        context_(kernel.function->getContext()),
        builder_(context_) {}

  llvm::Function* build(std::uint32_t& exit) {
    create_function();
    create_loops();
    clone_blocks();
    rewrite_exits();
    lower_builtins();
    mark_global_indices();
    finish_latch(exit);
    promote_registers();
    mark_parallel();
    return function_;
  }

 private:
  llvm::IntegerType* i32() { return builder_.getInt32Ty(); }

  void create_function() {
    auto* type =
        llvm::FunctionType::get(builder_.getVoidTy(), {builder_.getPtrTy(), i32(), i32()}, false);
    function_ = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage,
                                       "kiln_region_" + std::to_string(index_),
                                       kernel_.function->getParent());
    function_->setAttributes(llvm::AttributeList::get(
        context_, llvm::AttributeList::FunctionIndex,
        llvm::AttrBuilder(context_, kernel_.function->getAttributes().getFnAttrs())));
    for (auto attribute :
         {llvm::Attribute::Convergent, llvm::Attribute::MustProgress, llvm::Attribute::Memory,
          llvm::Attribute::WillReturn, llvm::Attribute::NoFree, llvm::Attribute::NoSync,
          llvm::Attribute::NoRecurse, llvm::Attribute::NoReturn}) {
      function_->removeFnAttr(attribute);
    }
    function_->addFnAttr(llvm::Attribute::NoUnwind);
    frame_ = function_->getArg(0);
    function_->addParamAttr(0, llvm::Attribute::NoAlias);
    function_->addParamAttr(
        0, llvm::Attribute::getWithDereferenceableBytes(context_, sizeof(HostFrame)));
    function_->addParamAttr(
        0, llvm::Attribute::getWithAlignment(context_, llvm::Align(alignof(HostFrame))));
  }

  // Fields never change while a region runs.
  Value* field(llvm::Type* type, std::size_t offset, const char* name) {
    Value* address = builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), frame_, offset);
    llvm::LoadInst* load = builder_.CreateLoad(type, address, name);
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
    return load;
  }
  Value* pointer_field(std::size_t offset, const char* name, unsigned alignment) {
    auto* load = llvm::cast<llvm::LoadInst>(field(builder_.getPtrTy(), offset, name));
    load->setMetadata(
        llvm::LLVMContext::MD_align,
        llvm::MDNode::get(context_, llvm::ConstantAsMetadata::get(builder_.getInt64(alignment))));
    return load;
  }

  // for each row of threads (equal y and z) in [begin, end): for each x of the row. Rows keep x
  // affine in the inner loop, which is the one that vectorises.
  void create_loops() {
    auto* entry = BasicBlock::Create(context_, "entry", function_);
    auto* divide = BasicBlock::Create(context_, "divide", function_);
    auto* row = BasicBlock::Create(context_, "row", function_);
    body_ = BasicBlock::Create(context_, "body", function_);
    latch_ = BasicBlock::Create(context_, "latch", function_);
    row_latch_ = BasicBlock::Create(context_, "row.latch", function_);
    auto* done = BasicBlock::Create(context_, "done", function_);
    Value* begin = function_->getArg(1);
    Value* end = function_->getArg(2);

    builder_.SetInsertPoint(entry);
    arguments_ = pointer_field(offsetof(HostFrame, arguments), "arguments", 8);
    shared_ = pointer_field(offsetof(HostFrame, shared), "shared", kSharedAlignment);
    slots_ = pointer_field(offsetof(HostFrame, slots), "slots", kThreadGranularity);
    next_ = pointer_field(offsetof(HostFrame, next), "next", kThreadGranularity);
    mask_ = pointer_field(offsetof(HostFrame, mask), "mask", kThreadGranularity);
    send32_ = pointer_field(offsetof(HostFrame, send32), "send32", kThreadGranularity);
    send64_ = pointer_field(offsetof(HostFrame, send64), "send64", kThreadGranularity);
    receive32_ = pointer_field(offsetof(HostFrame, receive32), "receive32", kThreadGranularity);
    receive64_ = pointer_field(offsetof(HostFrame, receive64), "receive64", kThreadGranularity);
    stride_ = builder_.CreateZExt(field(i32(), offsetof(HostFrame, slot_stride), "stride"),
                                  builder_.getInt64Ty());
    for (unsigned d = 0; d < 3; ++d) {
      block_index_[d] = field(i32(), offsetof(HostFrame, block_index) + 4 * d, "block.index");
      block_dim_[d] = field(i32(), offsetof(HostFrame, block_dim) + 4 * d, "block.dim");
      grid_dim_[d] = field(i32(), offsetof(HostFrame, grid_dim) + 4 * d, "grid.dim");
    }
    entry_block_ = entry;
    builder_.CreateCondBr(builder_.CreateICmpULT(begin, block_dim_[0]), row, divide);

    builder_.SetInsertPoint(divide);
    Value* first_row = builder_.CreateUDiv(begin, block_dim_[0]);
    Value* first_x = builder_.CreateURem(begin, block_dim_[0]);
    Value* first_z = builder_.CreateUDiv(first_row, block_dim_[1]);
    Value* first_y = builder_.CreateURem(first_row, block_dim_[1]);
    builder_.CreateBr(row);

    builder_.SetInsertPoint(row);
    const auto phi = [&](Value* from_entry, Value* from_divide, const char* name) {
      llvm::PHINode* node = builder_.CreatePHI(i32(), 3, name);
      node->addIncoming(from_entry, entry);
      node->addIncoming(from_divide, divide);
      return node;
    };
    Value* zero = builder_.getInt32(0);
    llvm::PHINode* thread = phi(begin, begin, "thread");
    llvm::PHINode* x = phi(begin, first_x, "x.first");
    llvm::PHINode* y = phi(zero, first_y, "y");
    llvm::PHINode* z = phi(zero, first_z, "z");
    Value* in_row = builder_.CreateNUWSub(block_dim_[0], x);
    Value* left = builder_.CreateNUWSub(end, thread);
    first_thread_ = thread;
    count_ = builder_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, in_row, left);
    row_ = row;
    builder_.CreateBr(body_);

    builder_.SetInsertPoint(body_);
    step_ = builder_.CreatePHI(i32(), 2, "step");
    step_->addIncoming(zero, row);
    thread_ = builder_.CreateAdd(thread, step_, "t", true, true);
    index_of_[0] = builder_.CreateAdd(x, step_, "x", true, true);
    index_of_[1] = y;
    index_of_[2] = z;

    builder_.SetInsertPoint(row_latch_);
    Value* next_thread = builder_.CreateAdd(thread, count_, "", true, true);
    Value* next_y = builder_.CreateAdd(y, builder_.getInt32(1));
    Value* wraps = builder_.CreateICmpEQ(next_y, block_dim_[1]);
    thread->addIncoming(next_thread, row_latch_);
    x->addIncoming(zero, row_latch_);
    y->addIncoming(builder_.CreateSelect(wraps, zero, next_y), row_latch_);
    z->addIncoming(builder_.CreateAdd(z, builder_.CreateZExt(wraps, i32())), row_latch_);
    builder_.CreateCondBr(builder_.CreateICmpULT(next_thread, end), row, done);
    builder_.SetInsertPoint(done);
    builder_.CreateRetVoid();
  }

  // Address of this thread's element of the slot array that starts `offset` bytes per thread in.
  Value* slot_address(std::uint32_t offset, Value* bytes) {
    Value* array = builder_.CreateInBoundsGEP(
        builder_.getInt8Ty(), slots_, builder_.CreateMul(builder_.getInt64(offset), stride_));
    Value* wide = builder_.CreateZExt(thread_, builder_.getInt64Ty());
    return builder_.CreateInBoundsGEP(builder_.getInt8Ty(), array, builder_.CreateMul(wide, bytes));
  }
  llvm::Type* stored_type(llvm::Type* type) {
    return type->isIntegerTy(1) ? builder_.getInt8Ty() : type;
  }
  Value* slot_address(const Slot& slot, Value* thread) {
    llvm::Type* type = stored_type(slot.variable->getAllocatedType());
    Value* array = builder_.CreateInBoundsGEP(
        builder_.getInt8Ty(), slots_, builder_.CreateMul(builder_.getInt64(slot.offset), stride_));
    return builder_.CreateInBoundsGEP(type, array,
                                      builder_.CreateZExt(thread, builder_.getInt64Ty()));
  }

  void clone_blocks() {
    // Locals of this region and the registers of slots: allocas of the new function.
    builder_.SetInsertPoint(entry_block_, entry_block_->getFirstInsertionPt());
    for (Instruction& instruction : *kernel_.prologue) {
      if (auto* variable = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) {
        llvm::AllocaInst* copy = builder_.CreateAlloca(
            variable->getAllocatedType(), variable->getArraySize(), variable->getName());
        copy->setAlignment(variable->getAlign());
        map_[variable] = copy;
      }
    }
    for (const Slot& slot : kernel_.slots) {
      registers_.insert(llvm::cast<llvm::AllocaInst>(map_[slot.variable]));
    }
    builder_.SetInsertPoint(body_);
    for (Instruction& instruction : *kernel_.prologue) {
      if (instruction.isTerminator() || llvm::isa<llvm::AllocaInst>(instruction)) continue;
      Instruction* copy = instruction.clone();
      builder_.Insert(copy);
      map_[&instruction] = copy;
      cloned_.push_back(copy);
    }
    for (const Slot& slot : kernel_.slots) {
      if (!slot.live.test(index_)) continue;
      llvm::Type* type = slot.variable->getAllocatedType();
      // A uniform value is read before any thread runs on and stores the next one.
      if (slot.uniform) builder_.SetInsertPoint(row_->getTerminator());
      Value* value = builder_.CreateLoad(
          stored_type(type), slot_address(slot, slot.uniform ? first_thread_ : thread_));
      value = builder_.CreateTruncOrBitCast(value, type);
      builder_.SetInsertPoint(body_);
      builder_.CreateStore(value, map_[slot.variable]);
    }
    for (BasicBlock* block : region_.blocks) {
      BasicBlock* copy = llvm::CloneBasicBlock(block, map_, "", function_);
      copy->moveBefore(latch_);
      map_[block] = copy;
      for (Instruction& instruction : *copy) cloned_.push_back(&instruction);
    }
    builder_.SetInsertPoint(body_);
    builder_.CreateBr(llvm::cast<BasicBlock>(map_[region_.entry]));
    for (Instruction* instruction : cloned_) {
      if (auto* phi = llvm::dyn_cast<llvm::PHINode>(instruction)) {
        for (unsigned i = phi->getNumIncomingValues(); i-- > 0;) {
          if (!region_.blocks.contains(phi->getIncomingBlock(i)))
            phi->removeIncomingValue(i, false);
        }
      }
      llvm::RemapInstruction(instruction, map_,
                             llvm::RF_NoModuleLevelChanges | llvm::RF_IgnoreMissingLocals);
    }
  }

  void leave(BasicBlock* block, std::uint32_t to) {
    builder_.SetInsertPoint(block);
    builder_.CreateBr(latch_);
    exits_.emplace_back(block, to);
  }

  bool defines(const Slot& slot) const {
    return llvm::any_of(slot.variable->users(), [&](llvm::User* user) {
      auto* store = llvm::dyn_cast<llvm::StoreInst>(user);
      return store && region_.blocks.contains(store->getParent());
    });
  }

  void rewrite_exits() {
    for (std::size_t i = 0; i < kernel_.suspensions.size(); ++i) {
      const Suspension& suspension = kernel_.suspensions[i];
      if (!region_.blocks.contains(suspension.block)) continue;
      auto* block = llvm::cast<BasicBlock>(map_[suspension.block]);
      // A mask that lives across suspensions is read back in front of the call.
      auto* call = llvm::cast<llvm::CallInst>(&*llvm::find_if(
          *block, [](Instruction& instruction) { return builtin_name(instruction) == "suspend"; }));
      Value* mask = call->getArgOperand(1);
      forget(call);
      forget(block->getTerminator());
      block->getTerminator()->eraseFromParent();
      call->eraseFromParent();
      builder_.SetInsertPoint(block);
      const bool warp = suspension.kind >= SuspendKind::warp_barrier;
      if (warp && !suspension.full_mask) {
        builder_.CreateStore(mask, builder_.CreateInBoundsGEP(i32(), mask_, wide_thread()));
      }
      for (const Slot& slot : kernel_.slots) {
        if (!slot.live.test(static_cast<unsigned>(i + 1)) || !defines(slot)) continue;
        llvm::Type* type = slot.variable->getAllocatedType();
        Value* value = builder_.CreateLoad(type, map_[slot.variable]);
        builder_.CreateStore(builder_.CreateZExtOrBitCast(value, stored_type(type)),
                             slot_address(slot, thread_));
      }
      leave(block, static_cast<std::uint32_t>(i + 1));
    }
    for (BasicBlock* original : region_.blocks) {
      auto* block = llvm::cast<BasicBlock>(map_[original]);
      if (llvm::isa<llvm::ReturnInst>(block->getTerminator())) {
        forget(block->getTerminator());
        block->getTerminator()->eraseFromParent();
        leave(block, kExited);
        continue;
      }
      for (Instruction& instruction : *block) {
        if (builtin_name(instruction) != "fault") continue;
        Value* message = llvm::cast<llvm::CallInst>(instruction).getArgOperand(0);
        while (&block->back() != &instruction) {
          forget(&block->back());
          block->back().eraseFromParent();
        }
        forget(&instruction);
        instruction.eraseFromParent();
        builder_.SetInsertPoint(block);
        builder_.CreateStore(message,
                             builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), frame_,
                                                                 offsetof(HostFrame, fault)));
        leave(block, kExited);
        break;
      }
    }
  }

  Value* wide_thread() { return builder_.CreateZExt(thread_, builder_.getInt64Ty()); }
  void forget(Instruction* instruction) { llvm::erase(cloned_, instruction); }

  void lower_builtins() {
    std::vector<Instruction*> lowered;
    for (Instruction* instruction : cloned_) {
      const llvm::StringRef name = builtin_name(*instruction);
      if (name.empty()) continue;
      builder_.SetInsertPoint(instruction);
      auto* call = llvm::cast<llvm::CallInst>(instruction);
      Value* value = nullptr;
      const auto element = [&](Value* array, llvm::Type* type, Value* index) {
        return builder_.CreateInBoundsGEP(type, array,
                                          builder_.CreateZExt(index, builder_.getInt64Ty()));
      };
      const auto dimension = [&](Value* const(&values)[3]) -> Value* {
        auto* which = llvm::dyn_cast<llvm::ConstantInt>(call->getArgOperand(0));
        if (!which) throw LoweringError("a thread or block dimension is selected at run time");
        return values[which->getZExtValue()];
      };
      if (name == "thread_index") {
        value = dimension(index_of_);
      } else if (name == "block_index") {
        value = dimension(block_index_);
      } else if (name == "block_dim") {
        value = dimension(block_dim_);
      } else if (name == "grid_dim") {
        value = dimension(grid_dim_);
      } else if (name == "linear_thread") {
        value = thread_;
      } else if (name == "argument") {
        auto* index = llvm::dyn_cast<llvm::ConstantInt>(call->getArgOperand(0));
        if (index) builder_.SetInsertPoint(entry_block_->getTerminator());
        auto* load = builder_.CreateLoad(
            builder_.getPtrTy(), element(arguments_, builder_.getPtrTy(), call->getArgOperand(0)));
        load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
        const std::uint64_t bytes = index && index->getValue().ult(kernel_.parameter_bytes.size())
                                        ? kernel_.parameter_bytes[index->getZExtValue()]
                                        : 0;
        for (llvm::User* user : call->users()) lower_argument_use(user, bytes);
        value = load;
      } else if (name == "shared_arena") {
        value = shared_;
      } else if (name == "slot") {
        value =
            slot_address(static_cast<std::uint32_t>(
                             llvm::cast<llvm::ConstantInt>(call->getArgOperand(0))->getZExtValue()),
                         builder_.CreateZExt(call->getArgOperand(1), builder_.getInt64Ty()));
      } else if (name == "send32" || name == "send64") {
        Value* sent = call->getArgOperand(0);
        builder_.CreateStore(
            sent, element(name == "send32" ? send32_ : send64_, sent->getType(), thread_));
      } else if (name == "receive32" || name == "receive64") {
        value = builder_.CreateLoad(
            call->getType(), element(name == "receive32" ? receive32_ : receive64_, call->getType(),
                                     call->getArgOperand(0)));
      } else {
        throw LoweringError("the function __kiln_" + name.str() + " is unknown to the lowering");
      }
      if (value) call->replaceAllUsesWith(value);
      lowered.push_back(call);
    }
    for (Instruction* call : lowered) call->eraseFromParent();
  }

  // Launches keep blockIdx * blockDim + threadIdx below 2^31 in every dimension, so addresses made
  // of it are affine whatever integer types they pass through.
  void mark_global_indices() {
    for (BasicBlock& block : *function_) {
      for (Instruction& instruction : block) {
        if (instruction.getOpcode() != Instruction::Add) continue;
        for (unsigned side = 0; side < 2; ++side) {
          auto* product = llvm::dyn_cast<llvm::BinaryOperator>(instruction.getOperand(side));
          if (!product || product->getOpcode() != Instruction::Mul) continue;
          for (unsigned d = 0; d < 3; ++d) {
            const bool block_start = (product->getOperand(0) == block_index_[d] &&
                                      product->getOperand(1) == block_dim_[d]) ||
                                     (product->getOperand(1) == block_index_[d] &&
                                      product->getOperand(0) == block_dim_[d]);
            if (!block_start || instruction.getOperand(1 - side) != index_of_[d]) continue;
            for (Instruction* exact : {static_cast<Instruction*>(product), &instruction}) {
              exact->setHasNoUnsignedWrap();
              exact->setHasNoSignedWrap();
            }
          }
        }
      }
    }
  }

  // Under `if (i < n)` LLVM sinks the loads of arguments into the guarded block, where they are
  // conditional and keep the loop over threads from vectorising. What lies within the argument's
  // `bytes` for certain is read on entry instead.
  void lower_argument_use(llvm::User* user, std::uint64_t bytes) {
    Instruction* entry_end = entry_block_->getTerminator();
    if (auto* load = llvm::dyn_cast<llvm::LoadInst>(user)) {
      const llvm::DataLayout& layout = function_->getParent()->getDataLayout();
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

  void finish_latch(std::uint32_t& exit) {
    exit = exits_.empty() ? kExited : exits_.front().second;
    for (auto& [block, to] : exits_) {
      if (to != exit) exit = kMixedExit;
    }
    builder_.SetInsertPoint(latch_);
    if (exit == kMixedExit) {
      llvm::PHINode* state = builder_.CreatePHI(i32(), static_cast<unsigned>(exits_.size()));
      for (auto& [block, to] : exits_) state->addIncoming(builder_.getInt32(to), block);
      builder_.CreateStore(state, builder_.CreateInBoundsGEP(i32(), next_, wide_thread()));
    }
    Value* step = builder_.CreateAdd(step_, builder_.getInt32(1), "", true, true);
    step_->addIncoming(step, latch_);
    loop_branch_ = builder_.CreateCondBr(builder_.CreateICmpULT(step, count_), body_, row_latch_);
  }

  // Between two suspensions the threads of a block are unordered, so no iteration of the thread
  // loop depends on another through memory, except through what the iterations share on this stack.
  void mark_parallel() {
    llvm::MDNode* group = llvm::MDNode::getDistinct(context_, {});
    for (BasicBlock& block : *function_) {
      if (&block == entry_block_ || &block == row_ || &block == row_latch_) continue;
      for (Instruction& instruction : block) {
        Value* address = nullptr;
        if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction))
          address = load->getPointerOperand();
        if (auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction))
          address = store->getPointerOperand();
        if (!address || is_local(address)) continue;
        instruction.setMetadata(llvm::LLVMContext::MD_access_group, group);
      }
    }
    llvm::MDNode* accesses = llvm::MDNode::get(
        context_, {llvm::MDString::get(context_, "llvm.loop.parallel_accesses"), group});
    llvm::MDNode* loop = llvm::MDNode::getDistinct(context_, {nullptr, accesses});
    loop->replaceOperandWith(0, loop);
    loop_branch_->setMetadata(llvm::LLVMContext::MD_loop, loop);
  }

  void promote_registers() {
    llvm::DominatorTree dominators(*function_);
    std::vector<llvm::AllocaInst*> variables;
    for (Instruction& instruction : *entry_block_) {
      auto* variable = llvm::dyn_cast<llvm::AllocaInst>(&instruction);
      if (variable && llvm::isAllocaPromotable(variable)) variables.push_back(variable);
    }
    for (llvm::AllocaInst* variable : variables) registers_.erase(variable);
    llvm::PromoteMemToReg(variables, dominators);
  }

  bool is_local(Value* address) const {
    llvm::SmallVector<const Value*, 4> objects;
    llvm::getUnderlyingObjects(address, objects, nullptr, 0);
    return llvm::any_of(objects, [&](const Value* object) {
      auto* variable = llvm::dyn_cast<llvm::AllocaInst>(object);
      return variable && !registers_.contains(variable);
    });
  }

  const CutKernel& kernel_;
  const Region& region_;
  unsigned index_;
  llvm::LLVMContext& context_;
  llvm::IRBuilder<> builder_;
  llvm::Function* function_ = nullptr;
  Value* frame_ = nullptr;
  Value *arguments_, *shared_, *slots_, *next_, *mask_, *send32_, *send64_, *receive32_,
      *receive64_;
  Value *stride_, *count_, *thread_, *first_thread_;
  Value *block_index_[3], *block_dim_[3], *grid_dim_[3], *index_of_[3];
  BasicBlock *entry_block_, *row_, *body_, *latch_, *row_latch_;
  llvm::PHINode* step_ = nullptr;
  llvm::BranchInst* loop_branch_ = nullptr;
  llvm::ValueToValueMapTy map_;
  std::vector<Instruction*> cloned_;
  std::vector<std::pair<BasicBlock*, std::uint32_t>> exits_;
  llvm::SmallPtrSet<const llvm::AllocaInst*, 16> registers_;
};

}  // namespace

llvm::Function* build_region(const CutKernel& kernel, std::size_t index, std::uint32_t& exit) {
  return RegionBuilder(kernel, index).build(exit);
}

}  // namespace kiln::codegen::llvm_host
