// Runs a list of LLVM passes over a module.
#pragma once

#include <llvm/IR/Module.h>
#include <llvm/IR/PassManager.h>
#include <llvm/Passes/PassBuilder.h>

namespace kiln::codegen::llvm_host {

/// `add_passes(builder, manager)` fills the list. `machine` may be null where no cost is asked for.
template <class AddPasses>
void run_pipeline(llvm::Module& module, llvm::TargetMachine* machine, AddPasses add_passes) {
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = true;
  tuning.SLPVectorization = true;
  tuning.LoopInterleaving = true;
  llvm::PassBuilder builder(machine, tuning);
  // Destroyed in reverse: outer managers refer to inner ones.
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graphs;
  llvm::ModuleAnalysisManager modules;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graphs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graphs, modules);
  llvm::ModulePassManager passes;
  add_passes(builder, passes);
  passes.run(module, modules);
}

}  // namespace kiln::codegen::llvm_host
