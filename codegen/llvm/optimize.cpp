// The two runs of LLVM's own passes: before the kernel is cut into regions, and after.
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/Scalar/SimpleLoopUnswitch.h>
#include <llvm/Transforms/Utils/LowerSwitch.h>

#include "codegen/llvm/broadcast_loads.hpp"
#include "codegen/llvm/keep_order.hpp"
#include "codegen/llvm/passes.hpp"
#include "codegen/llvm/pipeline.hpp"

namespace kiln::codegen::llvm_host {
void simplify_kernel(llvm::Module& module, llvm::TargetMachine& machine) {
  run_pipeline(module, &machine, [](llvm::PassBuilder& builder, llvm::ModulePassManager& passes) {
    passes.addPass(
        llvm::createModuleToFunctionPassAdaptor(builder.buildFunctionSimplificationPipeline(
            llvm::OptimizationLevel::O2, llvm::ThinOrFullLTOPhase::None)));
    // Branches can be turned into masks, switches cannot.
    passes.addPass(llvm::createModuleToFunctionPassAdaptor(llvm::LowerSwitchPass()));
  });
}

void optimize_regions(llvm::Module& module, llvm::TargetMachine& machine) {
  run_pipeline(module, &machine, [](llvm::PassBuilder& builder, llvm::ModulePassManager& passes) {
    // What is the same for all threads of a row is decided in front of the loop over them.
    builder.registerLateLoopOptimizationsEPCallback(
        [](llvm::LoopPassManager& loops, llvm::OptimizationLevel) {
          loops.addPass(llvm::SimpleLoopUnswitchPass(/*NonTrivial=*/true));
        });
    passes.addPass(
        llvm::createModuleToFunctionPassAdaptor(builder.buildFunctionSimplificationPipeline(
            llvm::OptimizationLevel::O2, llvm::ThinOrFullLTOPhase::None)));
    passes.addPass(llvm::createModuleToFunctionPassAdaptor(KeepOrder()));
    passes.addPass(builder.buildModuleOptimizationPipeline(llvm::OptimizationLevel::O3,
                                                           llvm::ThinOrFullLTOPhase::None));
    passes.addPass(llvm::createModuleToFunctionPassAdaptor(BroadcastLoads()));
    passes.addPass(llvm::GlobalDCEPass());
  });
}

}  // namespace kiln::codegen::llvm_host
