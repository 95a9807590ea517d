// The steps of form_regions, shared by its files.
#pragma once

#include <vector>

#include <llvm/ADT/BitVector.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/SetVector.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/IR/Function.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Instructions.h>

#include "codegen/llvm/invariants.hpp"
#include "codegen/llvm/passes.hpp"

namespace kiln::codegen::llvm_host {

/// The blocks a thread can run from `entry` until it stops at a suspension or exits.
struct Region {
  llvm::BasicBlock* entry;
  llvm::SetVector<llvm::BasicBlock*> blocks;  ///< suspension blocks included, `entry` first
  llvm::SmallVector<unsigned, 4> stops{};     ///< suspensions among them, counted from 1
};

/// A value that lives across suspensions, kept in an alloca of the kernel so far; each region loads
/// and stores its own copy.
struct Slot {
  llvm::AllocaInst* variable;
  llvm::BitVector live;      ///< by region: holds a value that the region may read
  llvm::BitVector stored{};  ///< by region: the region may give it another value
  bool uniform;          ///< equal for all threads that run a region together: one load serves all
  std::uint32_t offset;  ///< bytes per thread before it
};

/// A kernel taken apart, ready to be rebuilt as regions.
struct CutKernel {
  llvm::Function* function;
  llvm::BasicBlock* prologue;  ///< invariant computations, repeated at the start of every region
  std::vector<Suspension> suspensions;  ///< pauses last
  std::vector<Region> regions;          ///< suspensions.size() + 1
  std::vector<Slot> slots;
  /// By variable of the kernel so far: the regions that use it.
  llvm::DenseMap<llvm::AllocaInst*, llvm::BitVector> users{};
  std::uint32_t slot_bytes = 0;
  std::vector<std::uint32_t> parameter_bytes{};
};

/// Region 0 and one region per suspension.
std::vector<Region> find_regions(llvm::Function& kernel,
                                 const std::vector<Suspension>& suspensions);

/// Moves what each region can compute itself into the prologue and everything else that lives
/// across a suspension into slots.
CutKernel cut_kernel(llvm::Function& kernel, const KernelInfo& info);

/// Builds the function of region `index`, which is not behind a pause, and of what its pauses lead
/// to; returns the suspension at which all its threads stop, kExited, or kMixedExit.
llvm::Function* build_region(const CutKernel& kernel, std::size_t index, std::uint32_t& exit);

/// The builtin a call refers to, without its `__kiln_` prefix; empty for anything else.
llvm::StringRef builtin_name(const llvm::Instruction& instruction);

/// Kinds of suspensions at which threads do not wait for others (rounds.hpp), beyond those of
/// SuspendKind.
inline constexpr unsigned kPauseInLoop = 100, kPauseBehindLoop = 101;
bool is_pause(const llvm::CallInst& suspend);

/// The known facts about a builtin, or about the load of an argument; nothing for any other value.
std::optional<Invariance> kernel_leaf(llvm::Instruction& instruction);

}  // namespace kiln::codegen::llvm_host
