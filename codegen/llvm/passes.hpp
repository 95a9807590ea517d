// Kiln's own IR passes: from a kernel as Clang emits it to regions over the threads of a block.
// They run in the order of this file; ARCHITECTURE.md shows a kernel after each of them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <llvm/IR/Module.h>

#include "codegen/host_abi.hpp"

namespace llvm {
class TargetMachine;
}

namespace kiln::codegen::llvm_host {

/// The kernel uses something the host target cannot run. Becomes a CompileFailure.
struct LoweringError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What is learnt about a kernel on the way.
struct KernelInfo {
  std::size_t entry = 0;  ///< 0: the kernel's own; from 1 on: a step
  std::string symbol;     ///< mangled name of the instance
  std::vector<std::uint32_t> parameter_bytes;
  std::uint32_t static_shared = 0;
  std::uint32_t max_threads = 0;
  std::uint32_t cluster[3] = {0, 0, 0};  ///< from __cluster_dims__
};

/// A point where a thread of the block waits for others. `id` counts from 1.
struct Suspension {
  SuspendKind kind;
  bool full_mask;            ///< a warp suspension that names all lanes
  llvm::BasicBlock* block;   ///< holds the suspend call and a branch, nothing else
  llvm::BasicBlock* resume;  ///< where the thread goes on
  bool in_loop = false;      ///< a pause at a loop's head: see rounds.hpp
  bool pause = false;        ///< does not wait for other threads
};

/// Gives conversions and shifts that C++ leaves undefined the results that they have on a GPU.
void define_arithmetic(llvm::Module& module);
/// Keeps the source's global variables, used or not, as variables that others may write.
void keep_variables(llvm::Module& module);
/// Leaves the variables to another module of the same binary, which defines them. @pre
/// keep_variables() has run on both
void share_variables(llvm::Module& module);
/// Those that keep_variables() kept, and that this module defines. @pre it has run
std::vector<llvm::GlobalVariable*> kept_variables(llvm::Module& module);
/// Gives one of the generated entries the plain names, and removes the others.
void select_entry(llvm::Module& module, std::size_t entry, std::size_t entries);
/// Reads names, parameter sizes and launch bounds, and removes everything but the kernel.
KernelInfo read_kernel_info(llvm::Module& module);
/// Leaves one function: the entry with all device functions inlined.
/// @throws LoweringError for recursion that needs the block's state.
void inline_calls(llvm::Module& module);
/// Gives `__shared__` variables their place in the block's arena.
void lower_shared_memory(llvm::Module& module, KernelInfo& info);
/// SSA form, simplification and unrolling, with suspensions as barriers to code motion.
void simplify_kernel(llvm::Module& module, llvm::TargetMachine& machine);
/// @throws LoweringError naming functions and variables that the kernel uses and that neither its
/// source nor this process has.
void check_definitions(const llvm::Module& module);

/// Cuts the kernel at its suspensions. Pauses come last.
std::vector<Suspension> split_at_suspensions(llvm::Function& kernel);

/// Turns the kernel into region functions and exports the descriptor.
void form_regions(llvm::Module& module, const KernelInfo& info);

/// Vectorises the regions and cleans up.
void optimize_regions(llvm::Module& module, llvm::TargetMachine& machine);

}  // namespace kiln::codegen::llvm_host
