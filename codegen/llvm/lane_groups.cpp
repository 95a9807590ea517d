#include "codegen/llvm/lane_groups.hpp"

#include <llvm/ADT/MapVector.h>
#include <llvm/ADT/PostOrderIterator.h>
#include <llvm/ADT/SetVector.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/Analysis/CFG.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/Module.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Cloning.h>
#include <llvm/Transforms/Utils/LoopSimplify.h>

#include "codegen/llvm/invariants.hpp"

namespace kiln::codegen::llvm_host {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::Loop;
using llvm::PHINode;
using llvm::Value;

// Where lanes stop for each other: the header of a loop inside the thread, or a block that a loop
// is left to. Numbered from 1 in the order control reaches them; a lane's state is the cut it is
// at.
struct Cut {
  BasicBlock* block;
  Loop* loop;    // headed by `block`; null for an exit
  Loop* parent;  // the loop it is run in
};

// The blocks a lane runs from a cut, or from the start of the thread, until the next cut or the
// end.
struct Piece {
  llvm::SetVector<BasicBlock*> blocks;
};

class LaneGroups {
 public:
  explicit LaneGroups(const ThreadLoop& thread)
      : thread_(thread),
        function_(*thread.header->getParent()),
        context_(function_.getContext()),
        builder_(context_),
        dominators_(function_),
        loops_(dominators_),
        invariants_([this](Instruction& i) { return leaf(i); }, nullptr) {}

  void run() {
    whole_ = loops_.getLoopFor(thread_.header);
    if (!whole_ || whole_->getHeader() != thread_.header || whole_->isInnermost() || !may_run())
      return;
    hoist_uniform();
    for (Loop* inner : std::vector<Loop*>(whole_->begin(), whole_->end())) {
      llvm::simplifyLoop(inner, &dominators_, &loops_, nullptr, nullptr, nullptr, false);
    }
    collect_cuts();
    for (Loop* inner : inner_) {
      if (!inner->getLoopLatch() || !inner->getLoopPreheader()) return;
    }
    split_affine_variables();
    find_driver_variables();
    make_pieces();
    find_lane_values();
    build();
  }

 private:
  // --- what is there

  bool may_run() {
    for (Instruction& instruction : function_.getEntryBlock()) {
      if (llvm::isa<llvm::AllocaInst>(instruction)) return false;
    }
    llvm::ReversePostOrderTraversal<llvm::Function*> order(&function_);
    if (llvm::containsIrreducibleCFG<BasicBlock*>(order, loops_)) return false;
    for (BasicBlock* block : whole_->blocks()) {
      const bool inside = loops_.getLoopFor(block) != whole_;
      for (Instruction& instruction : *block) {
        if (llvm::isa<llvm::UnreachableInst>(instruction)) return false;
        if (!inside) continue;
        if (instruction.isAtomic() || instruction.isVolatile()) return false;
        // A thread that computes on vectors already fills the machine's: sixteen of them in step
        // would only spill.
        if (instruction.getType()->isFPOrFPVectorTy() && instruction.getType()->isVectorTy())
          return false;
        auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
        if (call && !llvm::isa<llvm::IntrinsicInst>(call) && call->mayWriteToMemory()) return false;
      }
    }
    return true;
  }

  // What is equal for all threads moves in front of them, if it may be computed there: parameters,
  // which are always readable, and what follows from them.
  void hoist_uniform() {
    llvm::ReversePostOrderTraversal<llvm::Function*> order(&function_);
    for (BasicBlock* block : order) {
      if (!whole_->contains(block)) continue;
      for (Instruction& instruction : llvm::make_early_inc_range(*block)) {
        if (llvm::isa<PHINode>(instruction) || instruction.isTerminator()) continue;
        const bool movable = instruction.hasMetadata(llvm::LLVMContext::MD_invariant_load) ||
                             (!instruction.mayReadOrWriteMemory() &&
                              llvm::isSafeToSpeculativelyExecute(&instruction));
        const bool outside = llvm::all_of(instruction.operands(), [&](llvm::Use& use) {
          auto* operand = llvm::dyn_cast<Instruction>(use.get());
          return !operand || !whole_->contains(operand);
        });
        if (!movable || !outside) continue;
        instruction.moveBefore(thread_.before->getTerminator());
        if (!instruction.mayReadFromMemory()) instruction.dropUBImplyingAttrsAndMetadata();
      }
    }
  }

  void collect_cuts() {
    llvm::SmallPtrSet<BasicBlock*, 16> exits;
    for (Loop* loop : loops_.getLoopsInPreorder()) {
      if (loop == whole_ || !whole_->contains(loop)) continue;
      llvm::SmallVector<BasicBlock*, 4> blocks;
      loop->getUniqueExitBlocks(blocks);
      exits.insert(blocks.begin(), blocks.end());
    }
    cuts_.push_back({thread_.header, nullptr, nullptr});
    llvm::ReversePostOrderTraversal<llvm::Function*> order(&function_);
    for (BasicBlock* block : order) {
      Loop* loop = loops_.getLoopFor(block);
      if (!loop || loop == whole_ ? !exits.contains(block) : !whole_->contains(loop)) continue;
      const bool header = loop != whole_ && loop->getHeader() == block;
      if (!header && !exits.contains(block)) continue;
      number_[block] = static_cast<unsigned>(cuts_.size());
      cuts_.push_back({block, header ? loop : nullptr, header ? loop->getParentLoop() : loop});
      if (header) inner_.push_back(loop);
    }
  }
  unsigned cut_at(BasicBlock* block) const {
    auto at = number_.find(block);
    return at == number_.end() ? 0 : at->second;
  }
  // The innermost loop whose variables exist where a cut is run.
  Loop* scope_of(unsigned cut) const {
    return cuts_[cut].loop ? cuts_[cut].loop : cuts_[cut].parent;
  }

  std::optional<Invariance> leaf(Instruction& instruction) {
    if (!whole_->contains(&instruction)) return Invariance::per_block;
    if (&instruction == thread_.step) return Invariance::per_thread;
    if (driver_variables_.contains(&instruction)) return Invariance::per_block;
    return std::nullopt;
  }

  // i = thread, thread + s, ... with s equal for all becomes thread + j, j = 0, s, ...: addresses
  // stay affine in the lane.
  void split_affine_variables() {
    for (Loop* inner : inner_) {
      for (PHINode& variable : llvm::make_early_inc_range(inner->getHeader()->phis())) {
        if (!variable.getType()->isIntegerTy() || variable.getNumIncomingValues() != 2) continue;
        Value* first = variable.getIncomingValueForBlock(inner->getLoopPreheader());
        auto* next = llvm::dyn_cast<llvm::BinaryOperator>(
            variable.getIncomingValueForBlock(inner->getLoopLatch()));
        if (!next || next->getOpcode() != Instruction::Add) continue;
        Value* by = next->getOperand(0) == &variable   ? next->getOperand(1)
                    : next->getOperand(1) == &variable ? next->getOperand(0)
                                                       : nullptr;
        invariants_.forget();
        if (!by || invariants_.of(by) != Invariance::per_block ||
            invariants_.of(first) != Invariance::per_thread) {
          continue;
        }
        auto* uniform = PHINode::Create(variable.getType(), 2, "uniform", variable.getIterator());
        builder_.SetInsertPoint(inner->getLoopLatch()->getTerminator());
        uniform->addIncoming(llvm::ConstantInt::get(variable.getType(), 0),
                             inner->getLoopPreheader());
        uniform->addIncoming(builder_.CreateAdd(uniform, by), inner->getLoopLatch());
        builder_.SetInsertPoint(inner->getHeader()->getFirstInsertionPt());
        const llvm::SimplifyQuery query(function_.getParent()->getDataLayout());
        const bool ascends =
            llvm::isKnownNonNegative(first, query) && llvm::isKnownNonNegative(by, query);
        Value* sum = builder_.CreateAdd(first, uniform, "", next->hasNoUnsignedWrap(),
                                        ascends && next->hasNoSignedWrap());
        variable.replaceAllUsesWith(sum);
        variable.eraseFromParent();
      }
    }
  }

  // Loop variables that are equal for all lanes still in the loop are kept once per group.
  void find_driver_variables() {
    for (Loop* inner : inner_) {
      for (PHINode& variable : inner->getHeader()->phis()) {
        if (variable.getNumIncomingValues() == 2) driver_variables_.insert(&variable);
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (Instruction* instruction : driver_variables_) {
        invariants_.forget();
        auto* variable = llvm::cast<PHINode>(instruction);
        Loop* home = loops_.getLoopFor(variable->getParent());
        const bool uniform = llvm::all_of(variable->incoming_values(), [&](llvm::Use& value) {
          return invariants_.of(value.get()) == Invariance::per_block &&
                 in_scope(value.get(), home);
        });
        const bool stays = llvm::all_of(cuts_entered_with(*variable), [&](unsigned cut) {
          return home->contains(scope_of(cut));
        });
        if (uniform && stays) continue;
        driver_variables_.remove(instruction);
        changed = true;
        break;
      }
    }
    invariants_.forget();
  }

  // Whether the driver's variables that `value` is computed from exist where `at` runs.
  bool in_scope(Value* value, Loop* at) {
    auto* instruction = llvm::dyn_cast<Instruction>(value);
    if (!instruction || !whole_->contains(instruction) || instruction == thread_.step) return true;
    if (driver_variables_.contains(instruction)) {
      return loops_.getLoopFor(instruction->getParent())->contains(at);
    }
    return llvm::all_of(instruction->operands(),
                        [&](llvm::Use& use) { return in_scope(use.get(), at); });
  }

  // --- pieces

  void make_pieces() {
    for (const Cut& cut : cuts_) {
      Piece piece;
      piece.blocks.insert(cut.block);
      for (std::size_t i = 0; i < piece.blocks.size(); ++i) {
        if (piece.blocks[i] == thread_.latch) continue;
        for (BasicBlock* next : llvm::successors(piece.blocks[i])) {
          if (!cut_at(next)) piece.blocks.insert(next);
        }
      }
      pieces_.push_back(std::move(piece));
    }
  }

  // Values needed by a piece that does not compute them: repeated if cheap, else in an array.
  void find_lane_values() {
    builder_.SetInsertPoint(function_.getEntryBlock().getFirstInsertionPt());
    state_ = new_array(builder_.getInt32Ty(), "state");
    live_.resize(cuts_.size());
    for (BasicBlock* block : whole_->blocks()) {
      for (Instruction& instruction : *block) {
        if (instruction.getType()->isVoidTy() || &instruction == thread_.step ||
            driver_variables_.contains(&instruction)) {
          continue;
        }
        const bool variable = llvm::isa<PHINode>(instruction) && cut_at(block);
        const llvm::SmallSetVector<unsigned, 4> needed = cuts_entered_with(instruction);
        const bool repeatable = invariants_.of(&instruction) != Invariance::no &&
                                llvm::all_of(needed, [&](unsigned cut) {
                                  return in_scope(&instruction, scope_of(cut));
                                });
        if (!variable && (needed.empty() || repeatable)) continue;
        lane_values_[&instruction] = new_array(stored_type(instruction.getType()), "lanes");
        for (unsigned cut : needed) live_[cut].push_back(&instruction);
      }
    }
  }

  llvm::SmallSetVector<unsigned, 4> cuts_entered_with(Instruction& value) {
    llvm::SmallSetVector<unsigned, 4> found;
    llvm::SmallVector<BasicBlock*, 16> work;
    for (llvm::Use& use : value.uses()) {
      auto* user = llvm::cast<Instruction>(use.getUser());
      auto* phi = llvm::dyn_cast<PHINode>(user);
      BasicBlock* at = phi ? phi->getIncomingBlock(use) : user->getParent();
      if (at != value.getParent() && whole_->contains(at)) work.push_back(at);
    }
    llvm::SmallPtrSet<BasicBlock*, 16> seen;
    while (!work.empty()) {
      BasicBlock* block = work.pop_back_val();
      if (!seen.insert(block).second) continue;
      if (unsigned cut = cut_at(block)) found.insert(cut);
      for (BasicBlock* before : llvm::predecessors(block)) {
        if (before != value.getParent() && whole_->contains(before)) work.push_back(before);
      }
    }
    return found;
  }

  llvm::Type* stored_type(llvm::Type* type) {
    return type->isIntegerTy(1) ? builder_.getInt8Ty() : type;
  }
  llvm::AllocaInst* new_array(llvm::Type* type, const char* name) {
    auto* array = builder_.CreateAlloca(llvm::ArrayType::get(type, kLanes), nullptr, name);
    array->setAlignment(llvm::Align(64));
    return array;
  }

  // --- building

  BasicBlock* new_block(const char* name) {
    return BasicBlock::Create(context_, name, &function_, thread_.header);
  }

  void build() {
    BasicBlock* groups = new_block("groups");
    BasicBlock* rest = new_block("rest");
    builder_.SetInsertPoint(thread_.before->getTerminator());
    Value* zero = builder_.getInt32(0);
    Value* aligned = builder_.CreateIsNull(
        builder_.CreateAnd(builder_.CreateOr(thread_.first_thread, thread_.first_x), kLanes - 1));
    Value* end = builder_.CreateSelect(aligned, builder_.CreateAnd(thread_.count, ~(kLanes - 1)),
                                       zero, "groups.end");
    Value* some = builder_.CreateICmpNE(end, zero);
    thread_.before->getTerminator()->eraseFromParent();
    builder_.SetInsertPoint(thread_.before);
    builder_.CreateCondBr(some, groups, rest);

    builder_.SetInsertPoint(groups);
    PHINode* base = builder_.CreatePHI(builder_.getInt32Ty(), 2, "group");
    base->addIncoming(zero, thread_.before);
    base_ = base;
    run_piece(0, false);
    run_cuts_in(whole_);
    Value* next = builder_.CreateAdd(base, builder_.getInt32(kLanes), "", true, true);
    base->addIncoming(next, builder_.GetInsertBlock());
    builder_.CreateCondBr(builder_.CreateICmpULT(next, end), groups, rest);

    builder_.SetInsertPoint(rest);
    builder_.CreateCondBr(builder_.CreateICmpULT(end, thread_.count), thread_.header,
                          thread_.after);
    const int from_before = thread_.step->getBasicBlockIndex(thread_.before);
    thread_.step->setIncomingBlock(static_cast<unsigned>(from_before), rest);
    thread_.step->setIncomingValue(static_cast<unsigned>(from_before), end);
  }

  void run_cuts_in(Loop* parent) {
    for (unsigned id = 1; id < cuts_.size(); ++id) {
      if (cuts_[id].parent == parent) cuts_[id].loop ? run_loop(id) : run_exit(id);
    }
  }

  // Runs the piece for the lanes at cut `id`; `none` is where control goes if there are none.
  void run_lanes_at(unsigned id, BasicBlock* none) {
    auto* states_type = llvm::FixedVectorType::get(builder_.getInt32Ty(), kLanes);
    Value* states = builder_.CreateAlignedLoad(states_type, state_, llvm::Align(64));
    Value* here = builder_.CreateICmpEQ(
        states, llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(kLanes),
                                               builder_.getInt32(id)));
    Value* mask = builder_.CreateBitCast(here, builder_.getIntNTy(kLanes));
    BasicBlock* all = new_block("all");
    BasicBlock* not_all = new_block("not.all");
    BasicBlock* some = new_block("some");
    BasicBlock* ran = new_block("ran");
    builder_.CreateCondBr(
        builder_.CreateICmpEQ(mask, builder_.getIntN(kLanes, ~0ull >> (64 - kLanes))), all,
        not_all);
    builder_.SetInsertPoint(not_all);
    builder_.CreateCondBr(builder_.CreateIsNull(mask), none, some);
    builder_.SetInsertPoint(all);
    run_piece(id, false);
    builder_.CreateBr(ran);
    builder_.SetInsertPoint(some);
    run_piece(id, true);
    builder_.CreateBr(ran);
    builder_.SetInsertPoint(ran);
  }

  void run_exit(unsigned id) {
    BasicBlock* done = new_block("exit.done");
    run_lanes_at(id, done);
    builder_.CreateBr(done);
    builder_.SetInsertPoint(done);
  }

  // while lanes are at this loop's header: run them to the next cut; then the cuts inside the loop.
  void run_loop(unsigned id) {
    Loop* loop = cuts_[id].loop;
    BasicBlock* before = builder_.GetInsertBlock();
    std::vector<std::pair<PHINode*, PHINode*>> variables;
    std::vector<Value*> first;
    for (PHINode& variable : loop->getHeader()->phis()) {
      if (!driver_variables_.contains(&variable)) continue;
      first.push_back(repeat(variable.getIncomingValueForBlock(loop->getLoopPreheader()), driver_));
      variables.emplace_back(&variable, nullptr);
    }
    BasicBlock* head = new_block("loop");
    builder_.CreateBr(head);
    builder_.SetInsertPoint(head);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      variables[i].second = builder_.CreatePHI(variables[i].first->getType(), 2);
      variables[i].second->addIncoming(first[i], before);
      driver_[variables[i].first] = variables[i].second;
    }
    BasicBlock* done = new_block("loop.done");
    run_lanes_at(id, done);
    run_cuts_in(loop);
    std::vector<Value*> next;
    for (auto& [variable, current] : variables) {
      next.push_back(repeat(variable->getIncomingValueForBlock(loop->getLoopLatch()), driver_));
    }
    for (std::size_t i = 0; i < variables.size(); ++i) {
      variables[i].second->addIncoming(next[i], builder_.GetInsertBlock());
    }
    builder_.CreateBr(head);
    for (auto& [variable, current] : variables) driver_.erase(variable);
    builder_.SetInsertPoint(done);
  }

  // A copy, at the insertion point, of what `value` is computed from.
  Value* repeat(Value* value, llvm::DenseMap<Value*, Value*>& known) {
    auto* instruction = llvm::dyn_cast<Instruction>(value);
    if (!instruction || !whole_->contains(instruction)) return value;
    if (auto at = known.find(value); at != known.end()) return at->second;
    std::vector<Value*> operands;
    for (Value* operand : instruction->operands()) operands.push_back(repeat(operand, known));
    Instruction* copy = instruction->clone();
    for (unsigned i = 0; i < operands.size(); ++i) copy->setOperand(i, operands[i]);
    copy->dropUBImplyingAttrsAndMetadata();
    builder_.Insert(copy);
    if (&known != &driver_) known[value] = copy;  // the driver's blocks do not dominate each other
    return copy;
  }

  Value* element(llvm::AllocaInst* array, Value* lane) {
    return builder_.CreateInBoundsGEP(array->getAllocatedType(), array,
                                      {builder_.getInt64(0), lane});
  }
  void tag(Instruction* access) {
    access->setMetadata(llvm::LLVMContext::MD_access_group, thread_.access_group);
  }
  Value* load_lane(Instruction* value, Value* lane) {
    llvm::AllocaInst* array = lane_values_[value];
    auto* load = builder_.CreateLoad(stored_type(value->getType()), element(array, lane));
    tag(load);
    return builder_.CreateTruncOrBitCast(load, value->getType());
  }
  void store_lane(Instruction* to, Value* value, Value* lane) {
    tag(builder_.CreateStore(builder_.CreateZExtOrBitCast(value, stored_type(to->getType())),
                             element(lane_values_[to], lane)));
  }

  // for lane in 0..kLanes: (if it is here:) the piece.
  void run_piece(unsigned id, bool masked) {
    const Piece& piece = pieces_[id];
    BasicBlock* before = builder_.GetInsertBlock();
    BasicBlock* head = new_block("lane");
    BasicBlock* body = masked ? new_block("lane.active") : head;
    BasicBlock* left = new_block("lane.left");
    BasicBlock* latch = masked ? new_block("lane.latch") : left;
    BasicBlock* after = new_block("lanes.done");
    builder_.CreateBr(head);
    builder_.SetInsertPoint(head);
    PHINode* lane = builder_.CreatePHI(builder_.getInt64Ty(), 2, "lane");
    lane->addIncoming(builder_.getInt64(0), before);
    Value* old_state = nullptr;
    if (masked) {
      auto* state = builder_.CreateLoad(builder_.getInt32Ty(), element(state_, lane));
      tag(state);
      old_state = state;
      builder_.CreateCondBr(builder_.CreateICmpEQ(state, builder_.getInt32(id)), body, latch);
      builder_.SetInsertPoint(body);
    }
    llvm::DenseMap<Value*, Value*> known = driver_;
    Value* narrow = builder_.CreateTrunc(lane, builder_.getInt32Ty());
    known[thread_.step] = builder_.CreateAdd(base_, narrow, "", true, true);
    // Groups start at a multiple of kLanes: said so that t % kLanes is seen to be the lane.
    for (auto [value, first] :
         {std::pair{thread_.thread, thread_.first_thread}, {thread_.x, thread_.first_x}}) {
      Value* start =
          builder_.CreateAnd(builder_.CreateAdd(first, base_, "", true, true), ~(kLanes - 1));
      Value* joined = builder_.CreateOr(start, narrow);
      llvm::cast<llvm::PossiblyDisjointInst>(joined)->setIsDisjoint(true);
      known[value] = joined;
    }

    llvm::ValueToValueMapTy map;
    std::vector<BasicBlock*> copies;
    for (BasicBlock* block : piece.blocks) {
      BasicBlock* copy = llvm::CloneBasicBlock(block, map, "", &function_);
      copy->moveBefore(left);
      map[block] = copy;
      copies.push_back(copy);
    }
    // What comes from elsewhere: loop variables, values of earlier pieces, repeated computations.
    for (auto& [from, to] : known) map[from] = to;
    BasicBlock* entry = piece.blocks.front();
    for (PHINode& variable : entry->phis()) {
      if (!known.contains(&variable)) map[&variable] = load_lane(&variable, lane);
    }
    for (PHINode& phi : llvm::make_early_inc_range(copies.front()->phis())) phi.eraseFromParent();
    for (BasicBlock* copy : copies) {
      for (Instruction& instruction : *copy) {
        if (auto* phi = llvm::dyn_cast<PHINode>(&instruction)) {
          for (unsigned i = phi->getNumIncomingValues(); i-- > 0;) {
            if (!piece.blocks.contains(phi->getIncomingBlock(i)))
              phi->removeIncomingValue(i, false);
          }
        }
        for (Value* operand : instruction.operands()) {
          auto* source = llvm::dyn_cast<Instruction>(operand);
          if (!source || !whole_->contains(source) || map.count(source)) continue;
          map[source] =
              lane_values_.contains(source) ? load_lane(source, lane) : repeat(source, known);
        }
      }
    }
    builder_.CreateBr(copies.front());

    builder_.SetInsertPoint(left);
    PHINode* state = builder_.CreatePHI(builder_.getInt32Ty(), 2);
    // What each way out of the piece leaves in the lane's arrays.
    std::vector<std::pair<BasicBlock*, llvm::MapVector<Instruction*, Value*>>> ways;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      BasicBlock* original = piece.blocks[i];
      if (original == thread_.latch) {
        copies[i]->getTerminator()->eraseFromParent();
        builder_.SetInsertPoint(copies[i]);
        builder_.CreateBr(left);
        state->addIncoming(builder_.getInt32(0), copies[i]);
        ways.push_back({copies[i], {}});
        remap(*copies[i], map);
        continue;
      }
      Instruction* terminator = copies[i]->getTerminator();
      remap(*copies[i], map);
      for (unsigned s = 0; s < terminator->getNumSuccessors(); ++s) {
        const unsigned to = cut_at(original->getTerminator()->getSuccessor(s));
        if (!to) continue;
        BasicBlock* edge = new_block("lane.to.loop");
        edge->moveBefore(left);
        terminator->setSuccessor(s, edge);
        builder_.SetInsertPoint(edge);
        llvm::DenseMap<Value*, Value*> known_here = known;  // what is repeated here stays here
        const auto mapped = [&](Value* value) -> Value* {
          auto* instruction = llvm::dyn_cast<Instruction>(value);
          if (!instruction || !whole_->contains(instruction)) return value;
          if (auto at = map.find(value); at != map.end()) return at->second;
          return lane_values_.contains(instruction) ? load_lane(instruction, lane)
                                                    : repeat(value, known_here);
        };
        llvm::MapVector<Instruction*, Value*> stores;
        for (Instruction* value : live_[to]) {
          const bool own_variable =
              llvm::isa<PHINode>(value) && value->getParent() == entry && id != 0;
          if (piece.blocks.contains(value->getParent()) && !own_variable)
            stores[value] = map[value];
        }
        for (PHINode& variable : cuts_[to].block->phis()) {
          if (!driver_variables_.contains(&variable)) {
            stores[&variable] = mapped(variable.getIncomingValueForBlock(original));
          }
        }
        builder_.CreateBr(left);
        state->addIncoming(builder_.getInt32(to), edge);
        ways.push_back({edge, std::move(stores)});
      }
    }
    // Every array that some way writes is written by all, so that the stores need no mask and the
    // arrays can become registers.
    llvm::MapVector<Instruction*, Value*> before_piece, final_values;
    const auto unchanged = [&](Instruction* value) {
      Value*& old = before_piece[value];
      if (!old) {
        builder_.SetInsertPoint(head, head->getFirstInsertionPt());
        old = load_lane(value, lane);
      }
      return old;
    };
    for (auto& [from, stores] : ways) {
      for (auto& [value, stored] : stores) final_values[value] = nullptr;
    }
    for (auto& [value, final_value] : final_values) {
      PHINode* joined = PHINode::Create(value->getType(), 2, "", left->begin());
      for (auto& [from, stores] : ways) {
        auto at = stores.find(value);
        joined->addIncoming(at == stores.end() ? unchanged(value) : at->second, from);
      }
      final_value = joined;
    }
    Value* final_state = state;
    builder_.SetInsertPoint(left);
    if (masked) {
      builder_.CreateBr(latch);
      const auto keep = [&](Value* changed, Value* old) {
        PHINode* joined = PHINode::Create(changed->getType(), 2, "", latch->begin());
        joined->addIncoming(changed, left);
        joined->addIncoming(old, head);
        return joined;
      };
      for (auto& [value, final_value] : final_values)
        final_value = keep(final_value, unchanged(value));
      final_state = keep(state, old_state);
      builder_.SetInsertPoint(latch);
    }
    for (auto& [value, final_value] : final_values) store_lane(value, final_value, lane);
    tag(builder_.CreateStore(final_state, element(state_, lane)));
    Value* next = builder_.CreateAdd(lane, builder_.getInt64(1), "", true, true);
    lane->addIncoming(next, latch);
    auto* branch =
        builder_.CreateCondBr(builder_.CreateICmpULT(next, builder_.getInt64(kLanes)), head, after);
    llvm::MDNode* accesses = llvm::MDNode::get(
        context_,
        {llvm::MDString::get(context_, "llvm.loop.parallel_accesses"), thread_.access_group});
    llvm::MDNode* properties = llvm::MDNode::getDistinct(context_, {nullptr, accesses});
    properties->replaceOperandWith(0, properties);
    branch->setMetadata(llvm::LLVMContext::MD_loop, properties);
    builder_.SetInsertPoint(after);
  }

  static void remap(BasicBlock& block, llvm::ValueToValueMapTy& map) {
    for (Instruction& instruction : block) {
      llvm::RemapInstruction(&instruction, map,
                             llvm::RF_NoModuleLevelChanges | llvm::RF_IgnoreMissingLocals);
    }
  }

  const ThreadLoop& thread_;
  llvm::Function& function_;
  llvm::LLVMContext& context_;
  llvm::IRBuilder<> builder_;
  llvm::DominatorTree dominators_;
  llvm::LoopInfo loops_;
  Invariants invariants_;
  Loop* whole_ = nullptr;
  std::vector<Cut> cuts_;                         // the first is the start of the thread
  std::vector<Loop*> inner_;                      // all loops in the thread
  llvm::DenseMap<BasicBlock*, unsigned> number_;  // of the cut that begins with a block
  llvm::SetVector<Instruction*> driver_variables_;
  llvm::DenseMap<Value*, Value*> driver_;  // their values where the group is
  std::vector<Piece> pieces_;
  llvm::MapVector<Instruction*, llvm::AllocaInst*> lane_values_;
  std::vector<std::vector<Instruction*>> live_;  // by cut: arrays read from there on
  llvm::AllocaInst* state_ = nullptr;
  Value* base_ = nullptr;
};

}  // namespace

void run_in_lane_groups(const ThreadLoop& loop) { LaneGroups(loop).run(); }

}  // namespace kiln::codegen::llvm_host
