// Reads what the front end knows about a kernel, then makes one function of it.
#include <llvm/IR/Constants.h>
#include <llvm/IR/Instructions.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>

#include "codegen/llvm/entry_unit.hpp"
#include "codegen/llvm/passes.hpp"
#include "codegen/llvm/pipeline.hpp"

namespace kiln::codegen::llvm_host {
namespace {

bool is_builtin(const llvm::Function& function) {
  return function.isDeclaration() && function.getName().starts_with("__kiln_");
}

const llvm::Function* direct_callee(const llvm::Instruction& instruction) {
  const auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
  return call ? llvm::dyn_cast<llvm::Function>(call->getCalledOperand()->stripPointerCasts())
              : nullptr;
}

// The numbers of an attribute that the device headers spell as an annotation.
std::vector<std::uint32_t> annotation_of(const llvm::Module& module, const llvm::Function& kernel,
                                         llvm::StringRef wanted) {
  const auto* table = module.getNamedGlobal("llvm.global.annotations");
  if (!table) return {};
  const auto* entries = llvm::dyn_cast<llvm::ConstantArray>(table->getInitializer());
  if (!entries) return {};
  for (const llvm::Use& use : entries->operands()) {
    const auto* entry = llvm::cast<llvm::ConstantStruct>(use.get());
    if (entry->getOperand(0)->stripPointerCasts() != &kernel) continue;
    const auto* name =
        llvm::dyn_cast<llvm::GlobalVariable>(entry->getOperand(1)->stripPointerCasts());
    const auto* text =
        name ? llvm::dyn_cast<llvm::ConstantDataSequential>(name->getInitializer()) : nullptr;
    if (!text || text->getAsCString() != wanted) continue;
    const auto* values =
        llvm::dyn_cast<llvm::GlobalVariable>(entry->getOperand(4)->stripPointerCasts());
    if (!values) continue;
    std::vector<std::uint32_t> numbers;
    while (
        const auto* number = llvm::dyn_cast_or_null<llvm::ConstantInt>(
            values->getInitializer()->getAggregateElement(static_cast<unsigned>(numbers.size()))))
      numbers.push_back(static_cast<std::uint32_t>(number->getZExtValue()));
    return numbers;
  }
  return {};
}

std::vector<std::uint32_t> parameter_bytes_of(const llvm::Module& module) {
  std::vector<std::uint32_t> bytes;
  const auto* pointer = module.getNamedGlobal(kParameterSizes);
  if (!pointer) return bytes;
  const auto* table =
      llvm::dyn_cast<llvm::GlobalVariable>(pointer->getInitializer()->stripPointerCasts());
  if (!table) return bytes;
  for (unsigned i = 0;; ++i) {
    const auto* size =
        llvm::dyn_cast_or_null<llvm::ConstantInt>(table->getInitializer()->getAggregateElement(i));
    if (!size || size->isZero()) return bytes;
    bytes.push_back(static_cast<std::uint32_t>(size->getZExtValue()));
  }
}

// The kernel is the only defined function that the chain of generated wrappers ends at.
const llvm::Function* find_kernel(const llvm::Module& module) {
  const llvm::Function* at = module.getFunction(kEntryFunction);
  while (at && (at->getName() == kEntryFunction || at->getName().contains("kiln_entry_unit"))) {
    const llvm::Function* next = nullptr;
    for (const llvm::BasicBlock& block : *at) {
      for (const llvm::Instruction& instruction : block) {
        const llvm::Function* callee = direct_callee(instruction);
        if (callee && !callee->isIntrinsic() && !is_builtin(*callee)) next = callee;
      }
    }
    at = next;
  }
  return at;
}

void erase_global(llvm::Module& module, llvm::StringRef name) {
  if (auto* global = module.getNamedValue(name)) {
    global->replaceAllUsesWith(llvm::PoisonValue::get(global->getType()));
    global->eraseFromParent();
  }
}

}  // namespace

void select_entry(llvm::Module& module, std::size_t entry, std::size_t entries) {
  // These lists refer to all entries, and hold nothing that is needed.
  for (const char* name : {"llvm.used", "llvm.compiler.used"}) erase_global(module, name);
  for (std::size_t other = 0; other < entries; ++other)
    for (const char* stem : {kEntryFunction, kParameterSizes})
      if (other != entry) erase_global(module, stem + host_entry_suffix(other));
  for (const char* stem : {kEntryFunction, kParameterSizes})
    if (auto* chosen = module.getNamedValue(stem + host_entry_suffix(entry))) chosen->setName(stem);
}

KernelInfo read_kernel_info(llvm::Module& module) {
  KernelInfo info;
  const llvm::Function* kernel = find_kernel(module);
  if (!kernel) throw LoweringError("the entry does not name a function");
  if (kernel->isDeclaration()) {
    throw LoweringError("the kernel " + kernel->getName().str() + " is declared but not defined");
  }
  info.symbol = kernel->getName().str();
  const std::vector<std::uint32_t> bounds = annotation_of(module, *kernel, "kiln.launch_bounds");
  if (!bounds.empty()) info.max_threads = bounds.front();
  if (const auto cluster = annotation_of(module, *kernel, "kiln.cluster_dims"); !cluster.empty()) {
    for (std::size_t d = 0; d < 3; ++d) info.cluster[d] = d < cluster.size() ? cluster[d] : 1;
  }
  info.parameter_bytes = parameter_bytes_of(module);
  for (const char* name :
       {"llvm.global.annotations", "llvm.used", "llvm.compiler.used", kParameterSizes}) {
    erase_global(module, name);
  }
  return info;
}

void inline_calls(llvm::Module& module) {
  for (llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    const bool entry = function.getName() == kEntryFunction;
    function.removeFnAttr(llvm::Attribute::NoInline);
    function.removeFnAttr(llvm::Attribute::OptimizeNone);
    function.setLinkage(entry ? llvm::GlobalValue::ExternalLinkage
                              : llvm::GlobalValue::InternalLinkage);
    function.setComdat(nullptr);
    if (!entry) function.addFnAttr(llvm::Attribute::AlwaysInline);
  }
  run_pipeline(module, nullptr, [](llvm::PassBuilder&, llvm::ModulePassManager& passes) {
    passes.addPass(llvm::GlobalDCEPass());
    passes.addPass(llvm::AlwaysInlinerPass(/*InsertLifetime=*/true));
    passes.addPass(llvm::GlobalDCEPass());
  });

  // What is left out of line runs without the block's state: fine for pure recursion only.
  for (const llvm::Function& function : module) {
    if (function.isDeclaration() || function.getName() == kEntryFunction) continue;
    for (const llvm::BasicBlock& block : function) {
      for (const llvm::Instruction& instruction : block) {
        const llvm::Function* callee = direct_callee(instruction);
        const bool shared = llvm::any_of(instruction.operands(), [](const llvm::Use& use) {
          const auto* global = llvm::dyn_cast<llvm::GlobalVariable>(use.get()->stripPointerCasts());
          return global && global->isThreadLocal();
        });
        if (shared || (callee && is_builtin(*callee))) {
          throw LoweringError("the device function " + function.getName().str() +
                              " is recursive or called through a pointer, and uses thread indices, "
                              "shared memory or synchronisation; the host target cannot inline it");
        }
      }
    }
  }
}

}  // namespace kiln::codegen::llvm_host
