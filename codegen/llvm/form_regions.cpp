// Kernel in, regions and their descriptor out.
#include <llvm/Demangle/Demangle.h>
#include <llvm/IR/Constants.h>
#include <llvm/Transforms/Utils/ModuleUtils.h>

#include "codegen/llvm/entry_unit.hpp"
#include "codegen/llvm/regions.hpp"
#include "codegen/llvm/rounds.hpp"

namespace kiln::codegen::llvm_host {
namespace {

using llvm::Constant;

class DescriptorBuilder {
 public:
  explicit DescriptorBuilder(llvm::Module& module)
      : module_(module), context_(module.getContext()) {}

  Constant* number(std::uint32_t value) {
    return llvm::ConstantInt::get(llvm::Type::getInt32Ty(context_), value);
  }
  Constant* number64(std::uint64_t value) {
    return llvm::ConstantInt::get(llvm::Type::getInt64Ty(context_), value);
  }
  Constant* table(std::vector<Constant*> values, llvm::Type* type, const char* name) {
    auto* array = llvm::ConstantArray::get(llvm::ArrayType::get(type, values.size()), values);
    return new llvm::GlobalVariable(module_, array->getType(), true,
                                    llvm::GlobalValue::InternalLinkage, array, name);
  }
  Constant* text(const std::string& value) {
    Constant* bytes = llvm::ConstantDataArray::getString(context_, value);
    return new llvm::GlobalVariable(module_, bytes->getType(), true,
                                    llvm::GlobalValue::InternalLinkage, bytes, "kiln_name");
  }
  void exported(const std::string& name, std::vector<Constant*> fields) {
    auto* value = llvm::ConstantStruct::getAnon(context_, fields);
    auto* global = new llvm::GlobalVariable(module_, value->getType(), true,
                                            llvm::GlobalValue::ExternalLinkage, value, name);
    global->setVisibility(llvm::GlobalValue::DefaultVisibility);
    global->setAlignment(llvm::Align(alignof(HostKernel)));
    llvm::appendToUsed(module_, {global});
  }

 private:
  llvm::Module& module_;
  llvm::LLVMContext& context_;
};

// Whether the kernel asks for something that only blocks of a cluster have, or that takes place
// while threads run on.
bool uses_cluster(llvm::Function& kernel) {
  for (llvm::BasicBlock& block : kernel)
    for (llvm::Instruction& instruction : block) {
      const llvm::StringRef name = builtin_name(instruction);
      if (name == "service" || name == "cluster_index" || name == "cluster_dim") return true;
      if (name != "suspend") continue;
      auto* kind =
          llvm::dyn_cast<llvm::ConstantInt>(llvm::cast<llvm::CallInst>(instruction).getOperand(0));
      if (kind && kind->getZExtValue() > static_cast<unsigned>(SuspendKind::warp_active))
        return true;
    }
  return false;
}

}  // namespace

// The constants below follow the layout of HostKernel and HostRegion field by field.
static_assert(sizeof(HostRegion) == 24 && sizeof(HostKernel) == 88 && sizeof(HostVariable) == 24 &&
              offsetof(HostKernel, name) == 8 && offsetof(HostKernel, variables) == 56);

void form_regions(llvm::Module& module, const KernelInfo& info) {
  llvm::Function* function = module.getFunction(kEntryFunction);
  const bool in_cluster = uses_cluster(*function);
  pause_in_loops(*function);
  const CutKernel kernel = cut_kernel(*function, info);
  DescriptorBuilder build(module);
  std::vector<Constant*> regions;
  bool uses_warp = false;
  llvm::StructType* region_type = nullptr;
  for (std::size_t i = 0; i < kernel.regions.size(); ++i) {
    if (i != 0 && kernel.suspensions[i - 1].pause) break;
    std::uint32_t exit = kExited;
    llvm::Function* region = build_region(kernel, i, exit);
    const SuspendKind kind = i == 0 ? SuspendKind::block_barrier : kernel.suspensions[i - 1].kind;
    const bool full_mask = i != 0 && kernel.suspensions[i - 1].full_mask;
    uses_warp |= kind >= SuspendKind::warp_barrier;
    Constant* entry = llvm::ConstantStruct::getAnon({region, build.number(exit),
                                                     build.number(static_cast<std::uint32_t>(kind)),
                                                     build.number(full_mask), build.number(0)});
    region_type = llvm::cast<llvm::StructType>(entry->getType());
    regions.push_back(entry);
  }
  std::vector<Constant*> sizes;
  for (std::uint32_t bytes : info.parameter_bytes) sizes.push_back(build.number(bytes));
  std::vector<Constant*> variables;
  llvm::Type* const pointer = llvm::PointerType::getUnqual(module.getContext());
  llvm::StructType* const variable_type =
      llvm::StructType::get(pointer, pointer, llvm::Type::getInt64Ty(module.getContext()));
  for (llvm::GlobalVariable* variable : kept_variables(module))
    variables.push_back(llvm::ConstantStruct::get(
        variable_type,
        {build.text(llvm::demangle(variable->getName().str())), variable,
         build.number64(module.getDataLayout().getTypeAllocSize(variable->getValueType()))}));
  const std::size_t variable_count = variables.size();
  const auto count = [&](std::size_t n) { return build.number(static_cast<std::uint32_t>(n)); };
  build.exported(
      kHostKernelSymbol + host_entry_suffix(info.entry),
      {build.number(kHostAbiVersion), build.number(sizeof(HostKernel)), build.text(info.symbol),
       build.table(regions, region_type, "kiln_regions"),
       build.table(sizes, llvm::Type::getInt32Ty(module.getContext()), "kiln_parameters"),
       count(regions.size()), count(sizes.size()), build.number(kernel.slot_bytes),
       build.number(info.static_shared), build.number(info.max_threads), build.number(uses_warp),
       build.table(std::move(variables), variable_type, "kiln_variables"),
       build.number64(variable_count), build.number(info.cluster[0]), build.number(info.cluster[1]),
       build.number(info.cluster[2]), build.number(in_cluster)});
  function->eraseFromParent();
}

}  // namespace kiln::codegen::llvm_host
