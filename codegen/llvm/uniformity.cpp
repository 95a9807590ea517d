#include "codegen/llvm/uniformity.hpp"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SetVector.h>
#include <llvm/IR/CFG.h>

#include "codegen/llvm/regions.hpp"

namespace kiln::codegen::llvm_host {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;

}  // namespace

// Immediate postdominators in the graph that ends at every barrier, by the iteration of Cooper,
// Harvey and Kennedy. Number 0 is the end that all barriers share.
void Uniformity::find_joins(const std::vector<Suspension>& suspensions) {
  llvm::SmallPtrSet<BasicBlock*, 16> ends;
  for (const Suspension& suspension : suspensions) ends.insert(suspension.block);

  // Postorder of the reversed graph: a block comes after all those that lead to it alone.
  std::vector<BasicBlock*> order;
  llvm::SmallPtrSet<BasicBlock*, 32> seen;
  llvm::SmallVector<std::pair<BasicBlock*, llvm::pred_iterator>, 32> path;
  const auto enter = [&](BasicBlock* block) {
    if (seen.insert(block).second) path.emplace_back(block, llvm::pred_begin(block));
  };
  for (const Suspension& suspension : suspensions) {
    enter(suspension.block);
    while (!path.empty()) {
      auto& [block, next] = path.back();
      if (next == llvm::pred_end(block)) {
        order.push_back(block);
        path.pop_back();
      } else if (BasicBlock* before = *next++; !ends.contains(before)) {
        enter(before);
      }
    }
  }
  llvm::DenseMap<BasicBlock*, unsigned> number;
  for (unsigned i = 0; i < order.size(); ++i)
    number[order[i]] = static_cast<unsigned>(order.size()) - i;
  const auto block_of = [&](unsigned n) { return order[order.size() - n]; };

  constexpr unsigned kUnknown = ~0u;
  std::vector<unsigned> join(order.size() + 1, kUnknown);
  join[0] = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (unsigned n = 1; n < join.size(); ++n) {
      unsigned common = ends.contains(block_of(n)) ? 0 : kUnknown;
      for (BasicBlock* next : llvm::successors(block_of(n))) {
        const auto known = number.find(next);
        if (common == 0 || known == number.end() || join[known->second] == kUnknown) continue;
        unsigned other = known->second;
        if (common == kUnknown) common = other;
        while (common != other) (common > other ? common : other) = join[std::max(common, other)];
      }
      changed |= join[n] != common;
      join[n] = common;
    }
  }
  for (unsigned n = 1; n < join.size(); ++n)
    joins_[block_of(n)] = join[n] == 0 ? nullptr : block_of(join[n]);
}

Uniformity::Uniformity(llvm::Function& kernel, const std::vector<Suspension>& suspensions) {
  find_joins(suspensions);
  llvm::SmallPtrSet<BasicBlock*, 16> spread_from;
  do {
    changed_ = false;
    for (BasicBlock& block : kernel) {
      for (Instruction& instruction : block) {
        if (divergent_.contains(&instruction)) continue;
        if (is_source(instruction) || llvm::any_of(instruction.operands(), [&](llvm::Use& use) {
              auto* operand = llvm::dyn_cast<Instruction>(use.get());
              return operand && divergent_.contains(operand);
            })) {
          diverge(instruction);
        }
      }
      if (divergent_.contains(block.getTerminator()) && spread_from.insert(&block).second)
        spread(block);
    }
  } while (changed_ && !unrelated_);
}

// What differs by thread whatever its operands are.
bool Uniformity::is_source(Instruction& instruction) const {
  if (instruction.isTerminator()) return false;
  // All threads receive the same count of a barrier that counts.
  if (builtin_name(instruction) == "receive32") return false;
  if (const auto known = kernel_leaf(instruction)) return *known != Invariance::per_block;
  if (llvm::isa<llvm::PHINode>(instruction)) return false;
  return llvm::isa<llvm::AllocaInst>(instruction) || instruction.mayReadOrWriteMemory() ||
         instruction.mayHaveSideEffects();
}

void Uniformity::diverge(const Instruction& value) {
  if (divergent_.insert(&value).second) changed_ = true;
}

void Uniformity::spread(BasicBlock& branch) {
  llvm::SetVector<BasicBlock*> between;
  for (BasicBlock* next : llvm::successors(&branch)) {
    if (joins_.contains(next)) between.insert(next);
  }
  if (between.size() < 2) return;
  BasicBlock* join = joins_.lookup(&branch);
  if (!join) {
    unrelated_ = true;
    return;
  }
  between.remove(join);
  for (std::size_t i = 0; i < between.size(); ++i) {
    for (BasicBlock* next : llvm::successors(between[i])) {
      if (next != join && joins_.contains(next)) between.insert(next);
    }
  }
  for (BasicBlock* block : between) {
    for (Instruction& instruction : *block) diverge(instruction);
  }
  for (llvm::PHINode& phi : join->phis()) {
    const llvm::Value* selected = nullptr;
    for (unsigned i = 0; i < phi.getNumIncomingValues(); ++i) {
      BasicBlock* from = phi.getIncomingBlock(i);
      if (from != &branch && !between.contains(from)) continue;
      if (selected && selected != phi.getIncomingValue(i)) diverge(phi);
      selected = phi.getIncomingValue(i);
    }
  }
}

}  // namespace kiln::codegen::llvm_host
