#include "runtime/transport/nccl/nccl_table.hpp"

#include "codegen/dynamic_library.hpp"
#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::runtime::ranks {

namespace {

using codegen::DynamicLibrary;

DynamicLibrary::OpenResult open_library() {
  // It has threads and exit handlers of its own: it is never closed.
  return DynamicLibrary::open("libnccl.so.2", DynamicLibrary::Lifetime::process);
}

template <class Function>
void find(const DynamicLibrary& library, const char* name, Function*& function,
          std::string& missing) {
  function = reinterpret_cast<Function*>(library.symbol(name));
  if (!function && missing.empty()) missing = name;
}

}  // namespace

NcclProbe open_nccl() {
  const auto nccl = open_library();
  if (!nccl.library)
    return {nullptr, nccl.error + "; install NCCL 2 or put its folder on LD_LIBRARY_PATH"};
  auto t = std::make_shared<NcclTable>();
  std::string missing;
#define KILN_NCCL(name) find(nccl.library, "nccl" #name, t->name, missing)
  KILN_NCCL(GetUniqueId);
  KILN_NCCL(CommInitRankConfig);
  KILN_NCCL(CommGetAsyncError);
  KILN_NCCL(CommAbort);
  KILN_NCCL(CommDestroy);
  KILN_NCCL(CommFinalize);
  KILN_NCCL(CommSplit);
  KILN_NCCL(CommCount);
  KILN_NCCL(CommUserRank);
  KILN_NCCL(CommCuDevice);
  KILN_NCCL(AllGather);
  KILN_NCCL(AllReduce);
  KILN_NCCL(Broadcast);
  KILN_NCCL(GetErrorString);
#undef KILN_NCCL
  if (!missing.empty())
    return {nullptr, detail::format("{} has no {}; NCCL 2.18 or newer is needed",
                                    nccl.library.path(), missing)};
  DriverProbe driver = open_driver();
  if (!driver.driver) return {nullptr, driver.reason};
  t->driver = std::move(driver.driver);
  return {std::move(t), {}};
}

std::string nccl_version_text(int code) {
  // Up to 2.8 the code had one digit less for the minor version.
  const int major = code < 10000 ? code / 1000 : code / 10000;
  const int minor = code < 10000 ? code % 1000 / 100 : code % 10000 / 100;
  return detail::format("{}.{}.{}", major, minor, code % 100);
}

}  // namespace kiln::runtime::ranks

namespace kiln {

std::optional<std::string> nccl_version() {
  const auto nccl = runtime::ranks::open_library();
  const auto get = reinterpret_cast<decltype(&::ncclGetVersion)>(
      nccl.library ? nccl.library.symbol("ncclGetVersion") : nullptr);
  int code = 0;
  if (!get || get(&code) != ncclSuccess) return {};
  return runtime::ranks::nccl_version_text(code);
}

}  // namespace kiln
