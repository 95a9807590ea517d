// Loops inside a thread: run by groups of lanes in step, so that the vectoriser meets loops over
// lanes, which are innermost and short, instead of loops over threads around other loops.
//
//   for thread: { A; for k: B(k); C }   becomes
//   for each group of kLanes threads: { for lane: A;  for k: for lane: B(k);  for lane: C }
//
// Threads are independent between two suspensions, so any interleaving is theirs to have. Lanes
// whose trip counts differ are masked. Values that live from one lane loop to the next are kept in
// arrays over lanes, which become vector registers.
#pragma once

#include <llvm/IR/Function.h>
#include <llvm/IR/Instructions.h>

namespace kiln::codegen::llvm_host {

inline constexpr unsigned kLanes = 16;

/// The loop over the threads of a row: `step` counts from 0 to `count`, both i32.
struct ThreadLoop {
  llvm::BasicBlock* before;  ///< branches to `header` unconditionally
  llvm::BasicBlock* header;
  llvm::BasicBlock* latch;
  llvm::BasicBlock* after;
  llvm::PHINode* step;
  llvm::Instruction* thread;  ///< first_thread + step
  llvm::Instruction* x;       ///< first_x + step
  llvm::Value* first_thread;
  llvm::Value* first_x;
  llvm::Value* count;
  llvm::MDNode* access_group;  ///< of the accesses that are independent between threads
};

/// Does nothing where it cannot help or may not: no inner loops, rows that do not
/// start at a multiple of kLanes, atomics in them (a lane could wait
/// for another of its group), vectors of the kernel's own, arrays on the stack. Threads left over
/// by whole groups still run through the loop as it was.
void run_in_lane_groups(const ThreadLoop& loop);

}  // namespace kiln::codegen::llvm_host
