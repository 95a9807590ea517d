// `__shared__` variables, thread-local to the front end, become addresses in the block's arena:
// defined ones one after the other, undefined ones (`extern __shared__`) all behind them.
#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/ReplaceConstant.h>
#include <llvm/Support/Alignment.h>

#include "codegen/llvm/entry_unit.hpp"
#include "codegen/llvm/passes.hpp"

namespace kiln::codegen::llvm_host {

void lower_shared_memory(llvm::Module& module, KernelInfo& info) {
  // An undefined thread-local variable might have an initialiser elsewhere; these never have.
  for (llvm::Function& function : llvm::make_early_inc_range(module)) {
    if (function.isDeclaration() && function.getName().starts_with("_ZTH")) {
      function.replaceAllUsesWith(llvm::ConstantPointerNull::get(function.getType()));
      function.eraseFromParent();
    }
  }
  const llvm::DataLayout& layout = module.getDataLayout();
  std::vector<std::pair<llvm::GlobalVariable*, std::uint64_t>> places;
  std::vector<llvm::GlobalVariable*> dynamic;
  std::uint64_t end = 0;
  for (llvm::GlobalVariable& global : module.globals()) {
    if (!global.isThreadLocal()) continue;
    if (global.isDeclaration()) {
      dynamic.push_back(&global);
      continue;
    }
    if (!global.getInitializer()->isNullValue() &&
        !llvm::isa<llvm::UndefValue>(global.getInitializer())) {
      throw LoweringError("the __shared__ variable " + global.getName().str() +
                          " has an initialiser; shared memory cannot be initialised");
    }
    const llvm::Align align = std::max(global.getAlign().valueOrOne(), llvm::Align(16));
    if (align.value() > kArenaAlignment)
      throw LoweringError("the __shared__ variable " + global.getName().str() +
                          " is aligned to more than 1024 bytes");
    end = llvm::alignTo(end, align);
    places.emplace_back(&global, end);
    end += layout.getTypeAllocSize(global.getValueType());
  }
  llvm::Align behind(kSharedAlignment);
  for (const llvm::GlobalVariable* global : dynamic)
    behind = std::max(behind, global->getAlign().valueOrOne());
  info.static_shared = static_cast<std::uint32_t>(llvm::alignTo(end, behind));
  for (llvm::GlobalVariable* global : dynamic) places.emplace_back(global, info.static_shared);
  if (places.empty()) return;

  std::vector<llvm::Constant*> globals;
  for (auto& [global, offset] : places) globals.push_back(global);
  llvm::convertUsersOfConstantsToInstructions(globals);

  llvm::LLVMContext& context = module.getContext();
  llvm::Function* kernel = module.getFunction(kEntryFunction);
  llvm::FunctionCallee arena = module.getOrInsertFunction(
      "__kiln_shared_arena",
      llvm::AttributeList::get(context, llvm::AttributeList::FunctionIndex,
                               llvm::AttrBuilder(context)
                                   .addMemoryAttr(llvm::MemoryEffects::none())
                                   .addAttribute(llvm::Attribute::NoUnwind)
                                   .addAttribute(llvm::Attribute::WillReturn)),
      llvm::PointerType::getUnqual(context));
  llvm::IRBuilder<> builder(&*kernel->getEntryBlock().getFirstInsertionPt());
  llvm::CallInst* base = builder.CreateCall(arena, {}, "shared");
  base->addRetAttr(llvm::Attribute::getWithAlignment(context, llvm::Align(kSharedAlignment)));
  for (auto& [global, offset] : places) {
    llvm::Value* address = builder.CreateInBoundsGEP(builder.getInt8Ty(), base,
                                                     builder.getInt64(offset), global->getName());
    for (llvm::User* user : llvm::make_early_inc_range(global->users())) {
      auto* intrinsic = llvm::dyn_cast<llvm::IntrinsicInst>(user);
      if (intrinsic && intrinsic->getIntrinsicID() == llvm::Intrinsic::threadlocal_address) {
        intrinsic->replaceAllUsesWith(address);
        intrinsic->eraseFromParent();
      }
    }
    global->replaceAllUsesWith(address);
    global->eraseFromParent();
  }
}

}  // namespace kiln::codegen::llvm_host
