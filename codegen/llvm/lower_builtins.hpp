// A region's function, and what the builtins of device headers are in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <llvm/IR/IRBuilder.h>

namespace kiln::codegen::llvm_host {

/// What the builtins stand for.
struct RegionValues {
  llvm::BasicBlock* entry;  ///< of the function: what holds for all threads is computed here
  llvm::Value *arguments, *shared, *slots, *next, *mask, *send32, *send64, *receive32, *receive64;
  llvm::Value *frame, *service;
  llvm::Value* stride;  ///< threads per slot array, 64 bits
  llvm::Value *block_index[3], *block_dim[3], *grid_dim[3], *cluster_index[3], *cluster_dim[3];
  // Values of the loop over threads at hand.
  llvm::Value *thread, *index_of[3];
  llvm::Value *wide_thread, *wide_x;  ///< `thread` and `index_of[0]` in 64 bits
  llvm::Value* round;  ///< how often the threads have turned the loop that they turn together
};

/// A function without a body, of the type that the block scheduler calls.
llvm::Function* new_region_function(llvm::Function& kernel, const std::string& name);
/// Loads what holds for all threads from the frame, at the builder's place in the first block.
RegionValues load_frame(llvm::Function& region, llvm::IRBuilder<>& builder);

/// Replaces all calls of builtins in `code`, which lies in one loop over threads.
/// @throws LoweringError for a builtin that is unknown
void lower_builtins(const std::vector<llvm::Instruction*>& code, const RegionValues& values,
                    const std::vector<std::uint32_t>& parameter_bytes);

}  // namespace kiln::codegen::llvm_host
