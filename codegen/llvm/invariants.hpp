// Which values can be computed anywhere in a piece of code, and at what cost.
#pragma once

#include <functional>
#include <optional>

#include <llvm/ADT/DenseMap.h>
#include <llvm/IR/Instructions.h>

namespace kiln::codegen::llvm_host {

/// Ordered by generality.
enum class Invariance {
  no,          ///< must be computed where it stands
  per_thread,  ///< cheap, from the thread's index and values of the block
  per_block,   ///< equal for all threads
};

class Invariants {
 public:
  /// What the code at hand knows about an instruction itself; nothing: look at its operands.
  using Leaf = std::function<std::optional<Invariance>(llvm::Instruction&)>;

  /// Instructions in `executed` (may be null) are passed by every thread, so they may be moved even
  /// if they could trap.
  Invariants(Leaf leaf, const llvm::BasicBlock* executed)
      : leaf_(std::move(leaf)), executed_(executed) {}

  Invariance of(llvm::Value* value);

 private:
  Invariance classify(llvm::Instruction& instruction);

  Leaf leaf_;
  const llvm::BasicBlock* executed_;
  llvm::DenseMap<const llvm::Instruction*, Invariance> known_;
};

}  // namespace kiln::codegen::llvm_host
