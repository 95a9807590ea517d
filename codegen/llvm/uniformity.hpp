// Which values are equal for all threads of a block that resume from one barrier together.
#pragma once

#include <vector>

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/IR/Function.h>
#include <llvm/IR/Instructions.h>

#include "codegen/llvm/passes.hpp"

namespace kiln::codegen::llvm_host {

/// For kernels whose only suspensions are block barriers.
///
/// Only threads that meet again are looked at: a branch matters if two of its ways lead to a
/// barrier. Where such a branch is decided by thread, its ways must come together before the next
/// barrier; then all threads pass the same barriers, and between two of them the same blocks except
/// for those between a branch and its join. What is computed there, and the values that the join
/// selects, differ by thread. Where the ways lead to different barriers, threads that meet may have
/// come by different ways and turned different numbers of rounds: then no value counts as uniform.
class Uniformity {
 public:
  Uniformity(llvm::Function& kernel, const std::vector<Suspension>& suspensions);

  bool uniform(const llvm::Instruction& value) const {
    return !unrelated_ && !divergent_.contains(&value);
  }

 private:
  void find_joins(const std::vector<Suspension>& suspensions);
  bool is_source(llvm::Instruction& instruction) const;
  void diverge(const llvm::Instruction& value);
  void spread(llvm::BasicBlock& branch);

  /// Where all ways from a block to its next barriers have come together; null: nowhere. Holds the
  /// blocks from which a barrier can be reached, and no others.
  llvm::DenseMap<llvm::BasicBlock*, llvm::BasicBlock*> joins_;
  llvm::SmallPtrSet<const llvm::Instruction*, 32> divergent_;
  bool unrelated_ = false;
  bool changed_ = false;
};

}  // namespace kiln::codegen::llvm_host
