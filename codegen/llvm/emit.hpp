// IR to a shared object: LLVM's code generator, then the LLD library.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <llvm/IR/Module.h>
#include <llvm/Target/TargetMachine.h>

#include "kiln/target.hpp"

namespace kiln::codegen::llvm_host {

/// @throws UserError when LLVM does not know the target.
std::unique_ptr<llvm::TargetMachine> make_target_machine(const Target& target);
llvm::SmallVector<char, 0> emit_object(llvm::Module& module, llvm::TargetMachine& machine);
/// Safe to call from several threads; the linker itself runs one at a time.
/// @throws LoweringError with the linker's words when it refuses the objects.
/// @throws EnvironmentError when the output cannot be written.
std::vector<std::byte> link_shared_object(llvm::ArrayRef<llvm::SmallVector<char, 0>> objects);

}  // namespace kiln::codegen::llvm_host
