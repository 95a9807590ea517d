#include "codegen/llvm/rounds.hpp"

#include <optional>

#include <llvm/ADT/MapVector.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/LoopSimplify.h>

#include "codegen/llvm/regions.hpp"

namespace kiln::codegen::llvm_host {
namespace {

using llvm::BasicBlock;
using llvm::Instruction;
using llvm::Value;

/// A loop that carries more than this from round to round is better left in registers.
constexpr unsigned kMostCarried = 4;

/// How many bytes further a value is for the next thread of a row; nothing: no fixed number. An
/// estimate: it decides what is worth while, not what is right.
class Strides {
 public:
  std::optional<std::int64_t> of(Value* value) {
    auto* instruction = llvm::dyn_cast<Instruction>(value);
    if (!instruction) return 0;
    const auto [known, is_new] = known_.try_emplace(instruction, 0);
    if (!is_new) return known->second;  // a cycle keeps the stride that it began with
    const std::optional<std::int64_t> stride = find(*instruction);
    return known_[instruction] = stride;
  }

 private:
  std::optional<std::int64_t> find(Instruction& i) {
    const llvm::StringRef builtin = builtin_name(i);
    if (builtin == "thread_index") {
      auto* dimension = llvm::dyn_cast<llvm::ConstantInt>(i.getOperand(0));
      return dimension && dimension->isZero() ? 1 : 0;
    }
    if (builtin == "linear_thread") return 1;
    switch (i.getOpcode()) {
      case Instruction::SExt:
      case Instruction::ZExt:
      case Instruction::Trunc:
      case Instruction::Freeze:
      case Instruction::PHI:
        return of(i.getOperand(0));
      case Instruction::Add:
      case Instruction::Or:
        return sum(of(i.getOperand(0)), of(i.getOperand(1)), 1);
      case Instruction::Sub:
        return sum(of(i.getOperand(0)), of(i.getOperand(1)), -1);
      case Instruction::Mul:
      case Instruction::Shl:
        if (auto* by = llvm::dyn_cast<llvm::ConstantInt>(i.getOperand(1));
            by && by->getValue().getActiveBits() < 31) {
          const auto n = static_cast<std::int64_t>(by->getZExtValue());
          return sum(0, of(i.getOperand(0)),
                     i.getOpcode() == Instruction::Mul ? n : 1ll << (n % 31));
        }
        break;
      case Instruction::GetElementPtr:
        return of_address(llvm::cast<llvm::GetElementPtrInst>(i));
      default:
        break;
    }
    for (Value* operand : i.operands()) {
      if (of(operand) != 0) return std::nullopt;
    }
    return 0;
  }

  std::optional<std::int64_t> of_address(llvm::GetElementPtrInst& address) {
    const llvm::DataLayout& layout = address.getModule()->getDataLayout();
    llvm::MapVector<Value*, llvm::APInt> variable;
    llvm::APInt constant(64, 0);
    if (!address.collectOffset(layout, 64, variable, constant)) return std::nullopt;
    std::optional<std::int64_t> stride = of(address.getPointerOperand());
    for (const auto& [index, bytes] : variable)
      stride = sum(stride, of(index), bytes.getSExtValue());
    return stride;
  }

  static std::optional<std::int64_t> sum(std::optional<std::int64_t> a,
                                         std::optional<std::int64_t> b, std::int64_t times) {
    if (!a || !b) return std::nullopt;
    return *a + *b * times;
  }

  llvm::DenseMap<Instruction*, std::optional<std::int64_t>> known_;
};

bool has_suspension(const BasicBlock& block) {
  return llvm::any_of(block, [](const Instruction& i) {
    return builtin_name(i) == "suspend" && !is_pause(*llvm::cast<llvm::CallInst>(&i));
  });
}

// Whether a thread may come from the loop's exit to its head without waiting for others.
bool comes_again(const llvm::Loop& loop) {
  llvm::SmallVector<BasicBlock*, 16> work = {loop.getExitBlock()};
  llvm::SmallPtrSet<BasicBlock*, 16> seen;
  while (!work.empty()) {
    BasicBlock* block = work.pop_back_val();
    if (!seen.insert(block).second) continue;
    if (block == loop.getHeader()) return true;
    if (has_suspension(*block)) continue;
    for (BasicBlock* next : llvm::successors(block)) work.push_back(next);
  }
  return false;
}

/// `phi` as `start + round * step`.
struct Counter {
  llvm::PHINode* phi;
  Instruction* next;
  Value *start, *step;
};

std::optional<Counter> as_counter(llvm::PHINode& phi, const llvm::Loop& loop) {
  auto* next = llvm::dyn_cast<Instruction>(phi.getIncomingValueForBlock(loop.getLoopLatch()));
  if (!next) return std::nullopt;
  Value* step = nullptr;
  if (next->getOpcode() == Instruction::Add) {
    if (next->getOperand(0) == &phi) step = next->getOperand(1);
    if (next->getOperand(1) == &phi) step = next->getOperand(0);
  } else if (auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(next)) {
    if (address->getPointerOperand() == &phi && address->getNumIndices() == 1 &&
        address->getOperand(1)->getType()->isIntegerTy(64))
      step = address->getOperand(1);
  }
  if (!step || !loop.isLoopInvariant(step) || phi.getType()->getScalarSizeInBits() > 64)
    return std::nullopt;
  return Counter{&phi, next, phi.getIncomingValueForBlock(loop.getLoopPreheader()), step};
}

// False for accesses of memory with an order of its own and for what other threads may notice.
bool is_plain(Instruction& instruction, Strides& strides) {
  if (llvm::isa<llvm::AllocaInst>(instruction)) return false;
  if (Value* address = llvm::getLoadStorePointerOperand(&instruction)) {
    auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction);
    auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction);
    if (load ? !load->isSimple() : !store->isSimple()) return false;
    llvm::SmallVector<const Value*, 4> objects;
    llvm::getUnderlyingObjects(address, objects, nullptr, 0);
    if (llvm::any_of(objects, llvm::IsaPred<llvm::AllocaInst>)) return false;
    const llvm::DataLayout& layout = instruction.getModule()->getDataLayout();
    const auto size = layout.getTypeStoreSize(llvm::getLoadStoreType(&instruction));
    const std::optional<std::int64_t> stride = strides.of(address);
    return stride && (*stride == 0 || *stride == static_cast<std::int64_t>(size.getFixedValue()));
  }
  if (auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction)) {
    return llvm::isa<llvm::IntrinsicInst>(call)
               ? !call->mayReadOrWriteMemory() && !call->mayHaveSideEffects() &&
                     !call->isConvergent()
               : kernel_leaf(*call).has_value();
  }
  return !instruction.mayReadOrWriteMemory() && !instruction.mayThrow();
}

bool qualifies(const llvm::Loop& loop, Strides& strides) {
  BasicBlock* latch = loop.getLoopLatch();
  if (!loop.isInnermost() || !latch || loop.getExitingBlock() != latch || !loop.getExitBlock() ||
      !loop.getLoopPreheader())
    return false;
  auto* branch = llvm::dyn_cast<llvm::BranchInst>(latch->getTerminator());
  auto* condition = branch && branch->isConditional()
                        ? llvm::dyn_cast<llvm::ICmpInst>(branch->getCondition())
                        : nullptr;
  if (!condition) return false;
  unsigned carried = 0;
  bool counts = false;
  for (llvm::PHINode& phi : loop.getHeader()->phis()) {
    const std::optional<Counter> counter = as_counter(phi, loop);
    carried += !counter;
    if (!counter) continue;
    for (unsigned side = 0; side < 2; ++side) {
      Value* end = condition->getOperand(1 - side);
      const Value* at = condition->getOperand(side);
      counts |= (at == counter->next || at == counter->phi) && loop.isLoopInvariant(end);
    }
  }
  if (!counts || carried > kMostCarried || comes_again(loop)) return false;
  return llvm::all_of(loop.blocks(), [&](BasicBlock* block) {
    return llvm::all_of(*block, [&](Instruction& i) { return is_plain(i, strides); });
  });
}

llvm::CallInst* pause(Instruction* before, unsigned kind) {
  llvm::IRBuilder<> builder(before);
  llvm::Function* suspend = before->getModule()->getFunction("__kiln_suspend");
  if (!suspend) {
    suspend = llvm::Function::Create(
        llvm::FunctionType::get(builder.getVoidTy(), {builder.getInt32Ty(), builder.getInt32Ty()},
                                false),
        llvm::Function::ExternalLinkage, "__kiln_suspend", before->getModule());
  }
  return builder.CreateCall(suspend, {builder.getInt32(kind), builder.getInt32(~0u)});
}

void count_by_rounds(const Counter& counter, Instruction* before) {
  llvm::IRBuilder<> builder(before);
  llvm::LLVMContext& context = builder.getContext();
  llvm::FunctionCallee round = before->getModule()->getOrInsertFunction(
      "__kiln_round",
      llvm::AttributeList::get(context, llvm::AttributeList::FunctionIndex,
                               llvm::AttrBuilder(context)
                                   .addMemoryAttr(llvm::MemoryEffects::none())
                                   .addAttribute(llvm::Attribute::NoUnwind)
                                   .addAttribute(llvm::Attribute::WillReturn)),
      builder.getInt64Ty());
  Value* rounds = builder.CreateCall(round, {});
  Value* moved =
      builder.CreateMul(builder.CreateTrunc(rounds, counter.step->getType()), counter.step);
  Value* value = nullptr;
  if (auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(counter.next)) {
    value = builder.CreateGEP(address->getSourceElementType(), counter.start, moved);
  } else {
    value = builder.CreateAdd(counter.start, moved);
  }
  counter.phi->replaceAllUsesWith(value);
  counter.phi->eraseFromParent();
}

}  // namespace

bool is_pause(const llvm::CallInst& suspend) {
  const auto* kind = llvm::dyn_cast<llvm::ConstantInt>(suspend.getArgOperand(0));
  return kind && kind->getZExtValue() >= kPauseInLoop;
}

void pause_in_loops(llvm::Function& kernel) {
  llvm::DominatorTree dominators(kernel);
  llvm::LoopInfo loops(dominators);
  llvm::SmallVector<llvm::Loop*, 8> chosen;
  for (llvm::Loop* loop : loops.getLoopsInPreorder()) {
    if (!loop->isInnermost()) continue;
    llvm::simplifyLoop(loop, &dominators, &loops, nullptr, nullptr, nullptr, false);
    Strides strides;
    if (qualifies(*loop, strides)) chosen.push_back(loop);
  }
  for (llvm::Loop* loop : chosen) {
    BasicBlock* header = loop->getHeader();
    std::vector<Counter> counters;
    for (llvm::PHINode& phi : header->phis()) {
      if (auto counter = as_counter(phi, *loop)) counters.push_back(*counter);
    }
    pause(&*loop->getExitBlock()->getFirstInsertionPt(), kPauseBehindLoop);
    Instruction* first = header->getFirstNonPHI();
    pause(first, kPauseInLoop);
    for (const Counter& counter : counters) count_by_rounds(counter, first);
  }
}

}  // namespace kiln::codegen::llvm_host
