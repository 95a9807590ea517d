// Global variables of a kernel's source: `__constant__` ones are filled by the program that
// launches it, so the optimiser must not assume that one keeps the value of its initialiser.
#include <llvm/IR/GlobalVariable.h>

#include "codegen/llvm/entry_unit.hpp"
#include "codegen/llvm/passes.hpp"

namespace kiln::codegen::llvm_host {
namespace {

bool is_variable(const llvm::GlobalVariable& global) {
  if (global.isDeclaration() || global.isConstant() || global.isThreadLocal()) return false;
  const llvm::StringRef name = global.getName();
  // The compiler's own tables, and the guards of variables that are initialised when first reached.
  return !name.empty() && !name.starts_with("llvm.") && !name.starts_with("_ZGV") &&
         !name.starts_with(kParameterSizes);
}

}  // namespace

void keep_variables(llvm::Module& module) {
  for (llvm::GlobalVariable& global : module.globals()) {
    if (!is_variable(global)) continue;
    // Hidden: a variable of the same name in the process must not take its place.
    global.setComdat(nullptr);
    global.setLinkage(llvm::GlobalValue::ExternalLinkage);
    global.setVisibility(llvm::GlobalValue::HiddenVisibility);
    global.setDSOLocal(true);
  }
}

std::vector<llvm::GlobalVariable*> kept_variables(llvm::Module& module) {
  std::vector<llvm::GlobalVariable*> kept;
  for (llvm::GlobalVariable& global : module.globals())
    if (is_variable(global) && global.hasHiddenVisibility()) kept.push_back(&global);
  return kept;
}

void share_variables(llvm::Module& module) {
  for (llvm::GlobalVariable& global : module.globals()) {
    if (global.isDeclaration() || !global.hasExternalLinkage()) continue;
    if (is_variable(global))
      global.setInitializer(nullptr);
    else
      global.setLinkage(llvm::GlobalValue::InternalLinkage);
  }
}

}  // namespace kiln::codegen::llvm_host
