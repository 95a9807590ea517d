// Where a kernel is cut, and what happens to the values that live across a cut.
#include <algorithm>
#include <iterator>
#include <optional>

#include <llvm/IR/CFG.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Local.h>

#include "codegen/llvm/invariants.hpp"
#include "codegen/llvm/regions.hpp"
#include "codegen/llvm/uniformity.hpp"

namespace kiln::codegen::llvm_host {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;

// --- invariants ----------------------------------------------------------------------------------

void hoist(Instruction* instruction, BasicBlock* prologue) {
  if (instruction->getParent() == prologue) return;
  for (llvm::Value* operand : instruction->operands()) {
    if (auto* inner = llvm::dyn_cast<Instruction>(operand)) hoist(inner, prologue);
  }
  instruction->moveBefore(prologue->getTerminator());
  instruction->dropUBImplyingAttrsAndMetadata();
}

// --- liveness ------------------------------------------------------------------------------------

// The regions whose entry `value` is live into.
llvm::BitVector live_regions(Instruction& value,
                             const llvm::DenseMap<BasicBlock*, unsigned>& resumes,
                             unsigned regions) {
  llvm::BitVector live(regions);
  llvm::SmallVector<BasicBlock*, 16> work;
  for (llvm::Use& use : value.uses()) {
    auto* user = llvm::cast<Instruction>(use.getUser());
    if (auto* phi = llvm::dyn_cast<llvm::PHINode>(user)) {
      // Used at the end of the predecessor: live into it unless defined there.
      BasicBlock* from = phi->getIncomingBlock(use);
      if (from != value.getParent()) work.push_back(from);
    } else if (user->getParent() != value.getParent()) {
      work.push_back(user->getParent());
    }
  }
  llvm::SmallPtrSet<BasicBlock*, 16> seen;
  while (!work.empty()) {
    BasicBlock* block = work.pop_back_val();
    if (!seen.insert(block).second) continue;
    if (auto at = resumes.find(block); at != resumes.end()) live.set(at->second);
    for (BasicBlock* before : llvm::predecessors(block)) {
      if (before != value.getParent()) work.push_back(before);
    }
  }
  return live;
}

// --- private arrays

// All instructions that may hold an address derived from `variable`; false if it escapes.
bool collect_users(llvm::AllocaInst& variable, llvm::SmallPtrSetImpl<Instruction*>& users) {
  llvm::SmallVector<Instruction*, 16> work = {&variable};
  while (!work.empty()) {
    Instruction* address = work.pop_back_val();
    for (llvm::User* user : address->users()) {
      auto* instruction = llvm::cast<Instruction>(user);
      if (!users.insert(instruction).second) continue;
      if (llvm::isa<llvm::GetElementPtrInst, llvm::PHINode, llvm::SelectInst, llvm::BitCastInst>(
              instruction)) {
        work.push_back(instruction);
      } else if (auto* store = llvm::dyn_cast<llvm::StoreInst>(instruction)) {
        if (store->getValueOperand() == address) return false;
      } else if (!llvm::isa<llvm::LoadInst, llvm::MemIntrinsic, llvm::ICmpInst>(instruction) &&
                 !instruction->isLifetimeStartOrEnd()) {
        return false;
      }
    }
  }
  return true;
}

// Whether a thread may run `index` again after leaving it.
bool repeats(const std::vector<Region>& regions, const llvm::DenseMap<BasicBlock*, unsigned>& stops,
             unsigned index) {
  llvm::BitVector reached(regions.size());
  llvm::SmallVector<unsigned, 8> work = {index};
  while (!work.empty()) {
    for (BasicBlock* block : regions[work.pop_back_val()].blocks) {
      auto stop = stops.find(block);
      if (stop == stops.end() || reached.test(stop->second)) continue;
      reached.set(stop->second);
      work.push_back(stop->second);
    }
  }
  return reached.test(index);
}

bool lives_in_one_run(llvm::AllocaInst& variable, const std::vector<Region>& regions,
                      const llvm::DenseMap<BasicBlock*, unsigned>& stops) {
  llvm::SmallPtrSet<Instruction*, 16> users;
  if (!collect_users(variable, users)) return false;
  int home = -1;
  for (unsigned index = 0; index < regions.size(); ++index) {
    const bool used = llvm::any_of(users, [&](Instruction* user) {
      return !user->isLifetimeStartOrEnd() && regions[index].blocks.contains(user->getParent());
    });
    if (!used) continue;
    if (home >= 0) return false;
    home = static_cast<int>(index);
  }
  return home < 0 || !repeats(regions, stops, static_cast<unsigned>(home));
}

void find_users(CutKernel& kernel) {
  const auto regions = static_cast<unsigned>(kernel.regions.size());
  llvm::DenseMap<BasicBlock*, llvm::SmallVector<unsigned, 2>> regions_of;
  for (unsigned index = 0; index < regions; ++index) {
    for (BasicBlock* block : kernel.regions[index].blocks) regions_of[block].push_back(index);
  }
  for (Instruction& instruction : *kernel.prologue) {
    auto* variable = llvm::dyn_cast<llvm::AllocaInst>(&instruction);
    if (!variable) continue;
    llvm::BitVector& users = kernel.users.try_emplace(variable, regions).first->second;
    for (llvm::User* user : variable->users()) {
      for (unsigned index : regions_of[llvm::cast<Instruction>(user)->getParent()])
        users.set(index);
    }
  }
  for (Slot& slot : kernel.slots) {
    slot.stored.resize(regions);
    for (llvm::User* user : slot.variable->users()) {
      if (!llvm::isa<llvm::StoreInst>(user)) continue;
      for (unsigned index : regions_of[llvm::cast<Instruction>(user)->getParent()])
        slot.stored.set(index);
    }
  }
}

std::uint32_t reserve(CutKernel& kernel, std::uint64_t bytes) {
  const std::uint32_t offset = kernel.slot_bytes;
  kernel.slot_bytes += static_cast<std::uint32_t>(bytes);
  return offset;
}

// Arrays that outlive a region, or whose address escapes, move to the block's slots.
void move_arrays_to_slots(CutKernel& kernel, const llvm::DenseMap<BasicBlock*, unsigned>& stops) {
  llvm::Function& function = *kernel.function;
  llvm::Module& module = *function.getParent();
  llvm::SmallVector<llvm::AllocaInst*, 8> variables;
  for (Instruction& instruction : function.getEntryBlock()) {
    if (auto* variable = llvm::dyn_cast<llvm::AllocaInst>(&instruction))
      variables.push_back(variable);
  }
  for (llvm::AllocaInst* variable : variables) {
    if (lives_in_one_run(*variable, kernel.regions, stops)) continue;
    const std::uint64_t alignment = std::max<std::uint64_t>(variable->getAlign().value(), 4);
    if (alignment > kSharedAlignment) {
      throw LoweringError("a local array is aligned to more than 128 bytes");
    }
    // A slot array starts at the bytes per thread before it, times the threads' granularity.
    kernel.slot_bytes = static_cast<std::uint32_t>(llvm::alignTo(
        kernel.slot_bytes, std::max<std::uint64_t>(alignment / kThreadGranularity, 1)));
    const std::uint64_t bytes = llvm::alignTo(
        variable->getAllocationSize(module.getDataLayout())->getFixedValue(), alignment);
    llvm::IRBuilder<> builder(variable);
    llvm::FunctionCallee slot = module.getOrInsertFunction(
        "__kiln_slot",
        llvm::AttributeList::get(module.getContext(), llvm::AttributeList::FunctionIndex,
                                 llvm::AttrBuilder(module.getContext())
                                     .addMemoryAttr(llvm::MemoryEffects::none())
                                     .addAttribute(llvm::Attribute::NoUnwind)
                                     .addAttribute(llvm::Attribute::WillReturn)),
        builder.getPtrTy(), builder.getInt32Ty(), builder.getInt32Ty());
    llvm::Value* address =
        builder.CreateCall(slot, {builder.getInt32(reserve(kernel, bytes)),
                                  builder.getInt32(static_cast<std::uint32_t>(bytes))});
    llvm::SmallVector<Instruction*, 4> markers;
    for (llvm::User* user : variable->users()) {
      auto* instruction = llvm::cast<Instruction>(user);
      if (instruction->isLifetimeStartOrEnd()) markers.push_back(instruction);
    }
    for (Instruction* marker : markers) marker->eraseFromParent();
    variable->replaceAllUsesWith(address);
    variable->eraseFromParent();
  }
}

}  // namespace

std::optional<Invariance> kernel_leaf(Instruction& instruction) {
  const llvm::StringRef builtin = builtin_name(instruction);
  if (builtin == "thread_index" || builtin == "linear_thread" || builtin == "slot") {
    return Invariance::per_thread;
  }
  if (builtin == "block_index" || builtin == "block_dim" || builtin == "grid_dim" ||
      builtin == "cluster_index" || builtin == "cluster_dim" || builtin == "argument" ||
      builtin == "shared_arena") {
    return Invariance::per_block;
  }
  if (builtin == "round") return Invariance::no;
  if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction)) {
    auto* base =
        llvm::dyn_cast<Instruction>(load->getPointerOperand()->stripInBoundsConstantOffsets());
    return load->isSimple() && base && builtin_name(*base) == "argument" ? Invariance::per_block
                                                                         : Invariance::no;
  }
  return std::nullopt;
}

llvm::StringRef builtin_name(const Instruction& instruction) {
  const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
  const auto* callee = call ? call->getCalledFunction() : nullptr;
  if (!callee || !callee->isDeclaration() || !callee->getName().starts_with("__kiln_")) return {};
  return callee->getName().drop_front(7);
}

std::vector<Suspension> split_at_suspensions(llvm::Function& kernel) {
  std::vector<llvm::CallInst*> calls;
  for (BasicBlock& block : kernel) {
    for (Instruction& instruction : block) {
      if (builtin_name(instruction) == "suspend")
        calls.push_back(llvm::cast<llvm::CallInst>(&instruction));
    }
  }
  // Regions behind pauses come last, so the numbers of all other regions have no gap.
  std::stable_partition(calls.begin(), calls.end(),
                        [](const llvm::CallInst* call) { return !is_pause(*call); });
  std::vector<Suspension> suspensions;
  for (llvm::CallInst* call : calls) {
    auto* kind = llvm::dyn_cast<llvm::ConstantInt>(call->getArgOperand(0));
    if (!kind) throw LoweringError("the kind of a synchronisation is not a constant");
    auto* mask = llvm::dyn_cast<llvm::ConstantInt>(call->getArgOperand(1));
    BasicBlock* block = llvm::SplitBlock(call->getParent(), call);
    BasicBlock* resume = llvm::SplitBlock(block, call->getNextNode());
    if (is_pause(*call)) {
      suspensions.push_back({SuspendKind::block_barrier, true, block, resume,
                             kind->getZExtValue() == kPauseInLoop, true});
    } else {
      suspensions.push_back({static_cast<SuspendKind>(kind->getZExtValue()),
                             mask && mask->getValue().isAllOnes(), block, resume});
    }
  }
  return suspensions;
}

std::vector<Region> find_regions(llvm::Function& kernel,
                                 const std::vector<Suspension>& suspensions) {
  llvm::DenseMap<BasicBlock*, unsigned> stops;
  for (unsigned i = 0; i < suspensions.size(); ++i) stops[suspensions[i].block] = i + 1;
  std::vector<Region> regions;
  const auto add = [&](BasicBlock* entry) {
    Region region{entry, {}};
    region.blocks.insert(entry);
    for (std::size_t i = 0; i < region.blocks.size(); ++i) {
      if (const auto stop = stops.find(region.blocks[i]); stop != stops.end()) {
        region.stops.push_back(stop->second);
        continue;
      }
      for (BasicBlock* next : llvm::successors(region.blocks[i])) region.blocks.insert(next);
    }
    regions.push_back(std::move(region));
  };
  add(&kernel.getEntryBlock());
  for (const Suspension& suspension : suspensions) add(suspension.resume);
  return regions;
}

CutKernel cut_kernel(llvm::Function& function, const KernelInfo& info) {
  CutKernel kernel{&function, nullptr, split_at_suspensions(function), {}, {}};
  kernel.regions = find_regions(function, kernel.suspensions);
  kernel.parameter_bytes = info.parameter_bytes;
  llvm::DenseMap<BasicBlock*, unsigned> stops, resumes;
  for (unsigned i = 0; i < kernel.suspensions.size(); ++i) {
    stops[kernel.suspensions[i].block] = i + 1;
    resumes[kernel.suspensions[i].resume] = i + 1;
  }
  move_arrays_to_slots(kernel, stops);

  // The old entry block stays region 0's entry; the prologue goes in front of it.
  BasicBlock* first = &function.getEntryBlock();
  kernel.prologue = BasicBlock::Create(function.getContext(), "prologue", &function, first);
  llvm::BranchInst* branch = llvm::BranchInst::Create(first, kernel.prologue);
  for (Instruction& instruction : llvm::make_early_inc_range(*first)) {
    if (llvm::isa<llvm::AllocaInst>(instruction)) instruction.moveBefore(branch);
  }

  const unsigned regions = static_cast<unsigned>(kernel.regions.size());
  std::vector<std::pair<Instruction*, llvm::BitVector>> crossing;
  for (BasicBlock& block : function) {
    for (Instruction& instruction : block) {
      if (instruction.getType()->isVoidTy() || llvm::isa<llvm::AllocaInst>(instruction)) continue;
      llvm::BitVector live = live_regions(instruction, resumes, regions);
      if (live.any()) crossing.emplace_back(&instruction, std::move(live));
    }
  }
  // A division that may trap is moved only from where every thread passes anyway.
  Invariants invariants(kernel_leaf, first);
  // Classified first: hoisting moves instructions out of the block that makes them movable.
  std::vector<bool> movable;
  for (auto& [value, live] : crossing) movable.push_back(invariants.of(value) != Invariance::no);
  for (std::size_t i = 0; i < crossing.size(); ++i) {
    if (movable[i]) hoist(crossing[i].first, kernel.prologue);
  }
  // Threads that wait only for their warp are not in step with the block.
  std::optional<Uniformity> uniformity;
  std::vector<Suspension> barriers;
  llvm::copy_if(kernel.suspensions, std::back_inserter(barriers),
                [](const Suspension& suspension) { return !suspension.pause; });
  if (llvm::none_of(barriers, [](const Suspension& suspension) {
        return suspension.kind >= SuspendKind::warp_barrier;
      })) {
    uniformity.emplace(function, barriers);
  }
  const llvm::DataLayout& layout = function.getParent()->getDataLayout();
  for (std::size_t i = 0; i < crossing.size(); ++i) {
    auto& [value, live] = crossing[i];
    if (movable[i]) continue;
    const std::uint64_t bytes = layout.getTypeAllocSize(value->getType());
    const bool uniform = uniformity && uniformity->uniform(*value);
    llvm::AllocaInst* variable =
        llvm::DemoteRegToStack(*value, false, kernel.prologue->getFirstInsertionPt());
    kernel.slots.push_back({variable, std::move(live), {}, uniform, reserve(kernel, bytes)});
  }
  find_users(kernel);
  return kernel;
}

}  // namespace kiln::codegen::llvm_host
