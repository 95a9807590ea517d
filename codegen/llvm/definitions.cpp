// Checks that what a kernel uses is defined: in its source, or in the process that will load it.
#include <set>

#include <dlfcn.h>
#include <llvm/Demangle/Demangle.h>

#include "codegen/llvm/passes.hpp"

namespace kiln::codegen::llvm_host {
namespace {

bool is_missing(const llvm::GlobalValue& value) {
  if (!value.isDeclaration() || value.use_empty() || value.hasExternalWeakLinkage()) return false;
  const llvm::StringRef name = value.getName();
  // Kiln's passes or the code generator replace these.
  if (name.starts_with("llvm.") || name.starts_with("__kiln_")) return false;
  if (value.hasHiddenVisibility()) return false;  // in the object of the kernel's own entry
  return ::dlsym(RTLD_DEFAULT, name.str().c_str()) == nullptr;
}

}  // namespace

void check_definitions(const llvm::Module& module) {
  std::set<std::string> missing;
  for (const llvm::GlobalValue& value : module.global_values())
    if (is_missing(value)) missing.insert(llvm::demangle(value.getName().str()));
  if (missing.empty()) return;
  std::string text = "the kernel uses names that are declared but never defined:";
  for (const std::string& name : missing) text += " " + name + ",";
  text.pop_back();
  throw LoweringError(text);
}

}  // namespace kiln::codegen::llvm_host
