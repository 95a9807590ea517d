// One region as a function: a loop over a range of threads around a copy of the region's blocks,
// and such a loop for each part behind a pause (rounds.hpp).
#include <optional>
#include <string>

#include <llvm/ADT/SmallSet.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Cloning.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include "codegen/llvm/lower_builtins.hpp"
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
        index_(static_cast<unsigned>(index)),
        context_(kernel.function->getContext()),
        builder_(context_) {}

  llvm::Function* build(std::uint32_t& exit) {
    find_parts(index_);
    function_ = new_region_function(*kernel_.function, "kiln_region_" + std::to_string(index_));
    begin_rows();
    for (std::size_t i = parts_.size(); i-- > 0;) add_part(parts_[i]);
    end_rows();
    promote_registers();
    mark_parallel();
    exit = exit_.value_or(kExited);
    return function_;
  }

 private:
  // Lists this region and those behind its pauses, each before the parts that lead to it.
  void find_parts(unsigned part) {
    if (!seen_.insert(part).second) return;
    for (unsigned stop : kernel_.regions[part].stops) {
      if (suspension(stop).pause) find_parts(stop);
    }
    parts_.push_back(part);
  }
  const Suspension& suspension(unsigned number) const { return kernel_.suspensions[number - 1]; }

  llvm::IntegerType* i32() { return builder_.getInt32Ty(); }

  // for each row of threads (equal y and z) in [begin, end): for each x of the row. Rows keep x
  // affine in the inner loop, which is the one that vectorises.
  void begin_rows() {
    BasicBlock* entry = new_block("entry");
    BasicBlock* divide = new_block("divide");
    row_ = new_block("row");
    Value* begin = function_->getArg(1);

    builder_.SetInsertPoint(entry);
    values_ = load_frame(*function_, builder_);
    Value* const(&block_dim)[3] = values_.block_dim;
    builder_.CreateCondBr(builder_.CreateICmpULT(begin, block_dim[0]), row_, divide);

    builder_.SetInsertPoint(divide);
    Value* first_row = builder_.CreateUDiv(begin, block_dim[0]);
    Value* first_x = builder_.CreateURem(begin, block_dim[0]);
    Value* first_z = builder_.CreateUDiv(first_row, block_dim[1]);
    Value* first_y = builder_.CreateURem(first_row, block_dim[1]);
    builder_.CreateBr(row_);

    builder_.SetInsertPoint(row_);
    const auto phi = [&](Value* from_entry, Value* from_divide, const char* name) {
      llvm::PHINode* node = builder_.CreatePHI(i32(), 3, name);
      node->addIncoming(from_entry, entry);
      node->addIncoming(from_divide, divide);
      return node;
    };
    first_thread_ = phi(begin, begin, "thread");
    first_x_ = phi(begin, first_x, "x.first");
    y_ = phi(builder_.getInt32(0), first_y, "y");
    z_ = phi(builder_.getInt32(0), first_z, "z");
    Value* in_row = builder_.CreateNUWSub(block_dim[0], first_x_);
    Value* left = builder_.CreateNUWSub(function_->getArg(2), first_thread_);
    count_ = builder_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, in_row, left);
    at_ = row_;
  }

  void end_rows() {
    builder_.SetInsertPoint(at_);
    row_latch_ = new_block("row.latch");
    BasicBlock* done = new_block("done");
    builder_.CreateBr(row_latch_);
    builder_.SetInsertPoint(row_latch_);
    Value* zero = builder_.getInt32(0);
    Value* next_thread = builder_.CreateAdd(first_thread_, count_, "", true, true);
    Value* next_y = builder_.CreateAdd(y_, builder_.getInt32(1));
    Value* wraps = builder_.CreateICmpEQ(next_y, values_.block_dim[1]);
    first_thread_->addIncoming(next_thread, row_latch_);
    first_x_->addIncoming(zero, row_latch_);
    y_->addIncoming(builder_.CreateSelect(wraps, zero, next_y), row_latch_);
    z_->addIncoming(builder_.CreateAdd(z_, builder_.CreateZExt(wraps, i32())), row_latch_);
    builder_.CreateCondBr(builder_.CreateICmpULT(next_thread, function_->getArg(2)), row_, done);
    builder_.SetInsertPoint(done);
    builder_.CreateRetVoid();
  }

  // A loop over the row's threads around one region. Behind a pause only those that wait there run;
  // at the head of a loop they do so until none is left.
  void add_part(unsigned part) {
    part_ = part;
    region_ = &kernel_.regions[part];
    map_.clear();
    cloned_.clear();
    exits_.clear();
    const bool first = part == index_;
    const bool turns = !first && suspension(part).in_loop;
    merge_ = turns ? new_block("merge") : nullptr;
    BasicBlock* before = at_;
    body_ = new_block("body");
    latch_ = new_block("latch");
    after_ = new_block("after");
    Value* zero = builder_.getInt32(0);
    Value* together = nullptr;
    llvm::PHINode *round = nullptr, *here = nullptr;
    head_ = before;
    builder_.SetInsertPoint(before);
    if (!first) {
      head_ = new_block("head");
      builder_.CreateCondBr(builder_.CreateICmpNE(waiting_[part], zero), head_, after_);
      builder_.SetInsertPoint(head_);
      Value* there = waiting_[part];
      if (turns) {
        round = builder_.CreatePHI(builder_.getInt64Ty(), 2, "round");
        round->addIncoming(builder_.getInt64(0), before);
        here = builder_.CreatePHI(i32(), 2, "here");
        here->addIncoming(there, before);
        there = here;
      }
      // The condition is decided in front of the loop over threads, which then exists twice. That
      // pays for what is done often.
      together = turns ? builder_.CreateICmpEQ(there, count_, "together") : builder_.getFalse();
    }
    values_.round = round;
    builder_.CreateBr(body_);

    builder_.SetInsertPoint(body_);
    step_ = builder_.CreatePHI(i32(), 2, "step");
    step_->addIncoming(zero, head_);
    values_.thread = builder_.CreateAdd(first_thread_, step_, "t", true, true);
    values_.index_of[0] = builder_.CreateAdd(first_x_, step_, "x", true, true);
    Value* step = wide(step_);
    values_.wide_thread = builder_.CreateAdd(wide(first_thread_), step, "", true, true);
    values_.wide_x = builder_.CreateAdd(wide(first_x_), step, "", true, true);
    next_ = builder_.CreateInBoundsGEP(i32(), values_.next, values_.wide_thread);
    values_.index_of[1] = y_;
    values_.index_of[2] = z_;
    clone_blocks(together);
    rewrite_exits();
    if (turns) merge_exits();
    lower_builtins(cloned_, values_, kernel_.parameter_bytes);
    const std::vector<std::pair<unsigned, Value*>> stopped = finish_latch();

    if (turns) {
      BasicBlock* turned = new_block("turned");
      llvm::cast<llvm::BranchInst>(latch_->getTerminator())->setSuccessor(1, turned);
      builder_.SetInsertPoint(turned);
      round->addIncoming(builder_.CreateAdd(round, builder_.getInt64(1), "", true, true), turned);
      Value* stay = stopped.front().first == part ? stopped.front().second : stopped.back().second;
      here->addIncoming(stay, turned);
      builder_.CreateCondBr(builder_.CreateICmpNE(stay, zero), head_, after_);
    }
    builder_.SetInsertPoint(after_);
    std::vector<std::pair<unsigned, Value*>> came;
    for (const auto& [stop, count] : stopped) {
      if (turns) {
        // The loop has one exit: a thread that waited at its head waits behind it in the end.
        if (stop != part) came.emplace_back(stop, waiting_[part]);
        continue;
      }
      came.emplace_back(stop, count);
      if (first) continue;
      llvm::PHINode* merged = builder_.CreatePHI(i32(), 2);
      merged->addIncoming(zero, before);
      merged->addIncoming(count, latch_);
      came.back().second = merged;
    }
    for (const auto& [stop, count] : came) {
      Value*& waiting = waiting_[stop];
      waiting = waiting ? builder_.CreateAdd(waiting, count) : count;
    }
    at_ = after_;
  }

  BasicBlock* new_block(const char* name) { return BasicBlock::Create(context_, name, function_); }
  llvm::Type* stored_type(llvm::Type* type) {
    return type->isIntegerTy(1) ? builder_.getInt8Ty() : type;
  }
  Value* element_of(const Slot& slot, Value* thread) {
    llvm::Type* type = stored_type(slot.variable->getAllocatedType());
    Value* array = builder_.CreateInBoundsGEP(
        builder_.getInt8Ty(), values_.slots,
        builder_.CreateMul(builder_.getInt64(slot.offset), values_.stride));
    return builder_.CreateInBoundsGEP(type, array, thread);
  }

  // `together` (null for the region itself): all threads of the row wait at this part.
  void clone_blocks(Value* together) {
    // Locals of this region and the registers of slots: allocas of the new function.
    builder_.SetInsertPoint(values_.entry, values_.entry->getFirstInsertionPt());
    for (Instruction& instruction : *kernel_.prologue) {
      auto* variable = llvm::dyn_cast<llvm::AllocaInst>(&instruction);
      if (!variable || !uses(variable)) continue;
      llvm::AllocaInst* copy = builder_.CreateAlloca(variable->getAllocatedType(),
                                                     variable->getArraySize(), variable->getName());
      copy->setAlignment(variable->getAlign());
      map_[variable] = copy;
    }
    for (const Slot& slot : kernel_.slots) {
      if (uses(slot.variable)) registers_.insert(llvm::cast<llvm::AllocaInst>(map_[slot.variable]));
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
      if (!slot.live.test(part_) || !uses(slot.variable)) continue;
      llvm::Type* type = slot.variable->getAllocatedType();
      // A uniform value is read before any thread runs on and stores the next one. Behind a pause
      // the first thread may not be among those that have one.
      const bool uniform = slot.uniform && !together;
      if (uniform) builder_.SetInsertPoint(head_->getTerminator());
      Value* first = uniform ? wide(first_thread_) : nullptr;
      Value* value = builder_.CreateLoad(stored_type(type),
                                         element_of(slot, uniform ? first : values_.wide_thread));
      value = builder_.CreateTruncOrBitCast(value, type);
      builder_.SetInsertPoint(body_);
      builder_.CreateStore(value, map_[slot.variable]);
    }
    for (BasicBlock* block : region_->blocks) {
      BasicBlock* copy = llvm::CloneBasicBlock(block, map_, "", function_);
      copy->moveBefore(latch_);
      map_[block] = copy;
      for (Instruction& instruction : *copy) cloned_.push_back(&instruction);
    }
    builder_.SetInsertPoint(body_);
    auto* begin = llvm::cast<BasicBlock>(map_[region_->entry]);
    if (together) {
      Value* here =
          builder_.CreateICmpEQ(builder_.CreateLoad(i32(), next_), builder_.getInt32(part_));
      builder_.CreateCondBr(builder_.CreateOr(together, here), begin, latch_);
    } else {
      builder_.CreateBr(begin);
    }
    for (Instruction* instruction : cloned_) {
      if (auto* phi = llvm::dyn_cast<llvm::PHINode>(instruction)) {
        for (unsigned i = phi->getNumIncomingValues(); i-- > 0;) {
          if (!region_->blocks.contains(phi->getIncomingBlock(i)))
            phi->removeIncomingValue(i, false);
        }
      }
      llvm::RemapInstruction(instruction, map_,
                             llvm::RF_NoModuleLevelChanges | llvm::RF_IgnoreMissingLocals);
    }
  }

  bool uses(llvm::AllocaInst* variable) const {
    return kernel_.users.find(variable)->second.test(part_);
  }

  void leave(BasicBlock* block, std::uint32_t to) {
    builder_.SetInsertPoint(block);
    if (parts_.size() > 1 && !merge_) store_next(builder_.getInt32(to));
    builder_.CreateBr(merge_ ? merge_ : latch_);
    exits_.emplace_back(block, to);
    if (to != kExited && suspension(to).pause) return;
    exit_ = exit_.value_or(to) == to ? to : kMixedExit;
  }

  void store_next(Value* state) { builder_.CreateStore(state, next_); }
  void store(const Slot& slot) {
    llvm::Type* type = slot.variable->getAllocatedType();
    Value* value = builder_.CreateLoad(type, map_[slot.variable]);
    builder_.CreateStore(builder_.CreateZExtOrBitCast(value, stored_type(type)),
                         element_of(slot, values_.wide_thread));
  }

  // A round ends at the head again or behind the loop. Threads that do one or the other store all
  // that either needs: a select is cheaper than two stores under masks.
  void merge_exits() {
    builder_.SetInsertPoint(merge_);
    state_ = builder_.CreatePHI(i32(), static_cast<unsigned>(exits_.size()));
    for (auto& [block, to] : exits_) state_->addIncoming(builder_.getInt32(to), block);
    for (const Slot& slot : kernel_.slots) {
      const bool read =
          llvm::any_of(exits_, [&](const auto& exit) { return slot.live.test(exit.second); });
      if (read && slot.stored.test(part_)) store(slot);
    }
    store_next(state_);
    builder_.CreateBr(latch_);
  }

  void rewrite_exits() {
    for (unsigned stop : region_->stops) {
      const Suspension& suspension = this->suspension(stop);
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
        builder_.CreateStore(mask,
                             builder_.CreateInBoundsGEP(i32(), values_.mask, values_.wide_thread));
      }
      for (const Slot& slot : kernel_.slots) {
        if (!merge_ && slot.live.test(stop) && slot.stored.test(part_)) store(slot);
      }
      leave(block, stop);
    }
    for (BasicBlock* original : region_->blocks) {
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
        builder_.CreateStore(
            message, builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), function_->getArg(0),
                                                         offsetof(HostFrame, fault)));
        leave(block, kExited);
        break;
      }
    }
  }

  Value* wide(Value* index) { return builder_.CreateZExt(index, builder_.getInt64Ty()); }
  void forget(Instruction* instruction) { llvm::erase(cloned_, instruction); }

  // Returns, for each pause at which threads may have stopped, how many of the row's did.
  std::vector<std::pair<unsigned, Value*>> finish_latch() {
    builder_.SetInsertPoint(latch_);
    if (parts_.size() == 1 && exit_ == kMixedExit) {
      llvm::PHINode* state = builder_.CreatePHI(i32(), static_cast<unsigned>(exits_.size()));
      for (auto& [block, to] : exits_) state->addIncoming(builder_.getInt32(to), block);
      store_next(state);
    }
    std::vector<std::pair<unsigned, Value*>> stopped;
    std::vector<llvm::PHINode*> one_more;
    for (unsigned stop : region_->stops) {
      if (!suspension(stop).pause) continue;
      one_more.push_back(builder_.CreatePHI(i32(), static_cast<unsigned>(exits_.size()) + 1));
      stopped.emplace_back(stop, nullptr);
      if (merge_) {
        llvm::IRBuilder<> merged(merge_->getTerminator());
        Value* here = merged.CreateICmpEQ(state_, merged.getInt32(stop));
        one_more.back()->addIncoming(merged.CreateZExt(here, i32()), merge_);
      } else {
        for (auto& [block, to] : exits_)
          one_more.back()->addIncoming(builder_.getInt32(to == stop), block);
      }
      if (part_ != index_) one_more.back()->addIncoming(builder_.getInt32(0), body_);
    }
    for (std::size_t i = 0; i < stopped.size(); ++i) {
      builder_.SetInsertPoint(body_, body_->begin());
      llvm::PHINode* count = builder_.CreatePHI(i32(), 2, "stopped");
      count->addIncoming(builder_.getInt32(0), head_);
      builder_.SetInsertPoint(latch_);
      stopped[i].second = builder_.CreateAdd(count, one_more[i], "", true, true);
      count->addIncoming(stopped[i].second, latch_);
    }
    Value* step = builder_.CreateAdd(step_, builder_.getInt32(1), "", true, true);
    step_->addIncoming(step, latch_);
    thread_loops_.push_back(
        builder_.CreateCondBr(builder_.CreateICmpULT(step, count_), body_, after_));
    return stopped;
  }

  // Between two suspensions the threads of a block are unordered, so no iteration of the thread
  // loop depends on another through memory, except through what the iterations share on this stack.
  void mark_parallel() {
    llvm::MDNode* group = llvm::MDNode::getDistinct(context_, {});
    for (BasicBlock& block : *function_) {
      if (&block == values_.entry || &block == row_ || &block == row_latch_) continue;
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
    // Vectors leave a few threads over, which need no second loop.
    llvm::MDNode* no_unrolling = llvm::MDNode::get(
        context_, llvm::MDString::get(context_, "llvm.loop.unroll.runtime.disable"));
    for (llvm::BranchInst* branch : thread_loops_) {
      llvm::MDNode* loop = llvm::MDNode::getDistinct(context_, {nullptr, accesses, no_unrolling});
      loop->replaceOperandWith(0, loop);
      branch->setMetadata(llvm::LLVMContext::MD_loop, loop);
    }
  }

  void promote_registers() {
    llvm::DominatorTree dominators(*function_);
    std::vector<llvm::AllocaInst*> variables;
    for (Instruction& instruction : *values_.entry) {
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
  unsigned index_;
  llvm::LLVMContext& context_;
  llvm::IRBuilder<> builder_;
  std::vector<unsigned> parts_;
  llvm::SmallSet<unsigned, 4> seen_;
  llvm::Function* function_ = nullptr;
  RegionValues values_{};
  BasicBlock *row_ = nullptr, *row_latch_ = nullptr;
  BasicBlock* at_ = nullptr;  ///< where the next part begins
  llvm::PHINode *first_thread_ = nullptr, *first_x_ = nullptr, *y_ = nullptr, *z_ = nullptr;
  Value* count_ = nullptr;                    ///< threads of the row
  llvm::DenseMap<unsigned, Value*> waiting_;  ///< by pause: threads of the row that stopped there
  std::vector<llvm::BranchInst*> thread_loops_;
  llvm::SmallPtrSet<const llvm::AllocaInst*, 16> registers_;
  std::optional<std::uint32_t> exit_;

  // Of the part at hand.
  unsigned part_ = 0;
  const Region* region_ = nullptr;
  BasicBlock *head_ = nullptr, *body_ = nullptr, *latch_ = nullptr, *after_ = nullptr;
  BasicBlock* merge_ = nullptr;  ///< of a part that turns: where its exits meet
  llvm::PHINode *step_ = nullptr, *state_ = nullptr;
  Value* next_ = nullptr;  ///< where the thread's next region is kept
  llvm::ValueToValueMapTy map_;
  std::vector<Instruction*> cloned_;
  std::vector<std::pair<BasicBlock*, std::uint32_t>> exits_;
};

}  // namespace

llvm::Function* build_region(const CutKernel& kernel, std::size_t index, std::uint32_t& exit) {
  return RegionBuilder(kernel, index).build(exit);
}

}  // namespace kiln::codegen::llvm_host
