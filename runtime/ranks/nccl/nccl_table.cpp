#include "runtime/ranks/nccl/nccl_table.hpp"

#include "codegen/dynamic_library.hpp"
#include "kiln/detail/format.hpp"

// cuda.h renames some functions; the library exports the new names.
#define KILN_TEXT_OF(name) #name
#define KILN_TEXT(name) KILN_TEXT_OF(name)

namespace kiln::runtime::ranks {

namespace {

using codegen::DynamicLibrary;

template <class Function>
void find(const DynamicLibrary& library, const char* name, Function*& function,
          std::string& missing) {
  function = reinterpret_cast<Function*>(library.symbol(name));
  if (!function && missing.empty()) missing = name;
}

}  // namespace

NcclProbe open_nccl() {
  constexpr auto kStays = DynamicLibrary::Lifetime::process;
  auto nccl = DynamicLibrary::open("libnccl.so.2", kStays);
  if (!nccl.library)
    return {nullptr, nccl.error + "; install NCCL 2 or put its folder on LD_LIBRARY_PATH"};
  auto driver = DynamicLibrary::open("libcuda.so.1", kStays);
  if (!driver.library) return {nullptr, driver.error + "; NCCL needs the NVIDIA driver"};
  auto t = std::make_shared<NcclTable>();
  std::string missing;
#define KILN_NCCL(name) find(nccl.library, KILN_TEXT(nccl##name), t->name, missing)
#define KILN_CUDA(name) find(driver.library, KILN_TEXT(cu##name), t->name, missing)
  KILN_NCCL(GetVersion);
  KILN_NCCL(GetUniqueId);
  KILN_NCCL(CommInitRankConfig);
  KILN_NCCL(CommGetAsyncError);
  KILN_NCCL(CommAbort);
  KILN_NCCL(CommDestroy);
  KILN_NCCL(CommFinalize);
  KILN_NCCL(CommSplit);
  KILN_NCCL(CommCount);
  KILN_NCCL(CommUserRank);
  KILN_NCCL(AllGather);
  KILN_NCCL(AllReduce);
  KILN_NCCL(Broadcast);
  KILN_NCCL(GetErrorString);
  KILN_CUDA(StreamCreate);
  KILN_CUDA(StreamDestroy);
  KILN_CUDA(StreamQuery);
  KILN_CUDA(MemAlloc);
  KILN_CUDA(MemFree);
  KILN_CUDA(MemcpyHtoDAsync);
  KILN_CUDA(MemcpyDtoHAsync);
#undef KILN_NCCL
#undef KILN_CUDA
  if (!missing.empty())
    return {nullptr, detail::format("{} is not in libnccl.so.2 or libcuda.so.1; NCCL 2.18 or newer "
                                    "is needed",
                                    missing)};
  return {std::move(t), {}};
}

}  // namespace kiln::runtime::ranks
