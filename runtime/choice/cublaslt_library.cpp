#include "runtime/choice/cublaslt_library.hpp"

#include <filesystem>
#include <vector>

#include "codegen/dynamic_library.hpp"
#include "codegen/nvrtc.hpp"
#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::runtime::cublaslt {

using codegen::DynamicLibrary;
using kiln::detail::format;

namespace {

constexpr std::array kNames = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
constexpr std::array kFolders = {"lib64", "lib", "targets/x86_64-linux/lib",
                                 "targets/sbsa-linux/lib"};
/// The oldest whose attributes and enumerators are those used here.
constexpr std::size_t kOldest = 120000;

DynamicLibrary find(std::string& tried) {
  const auto opens = [&](const std::string& name) {
    auto result = DynamicLibrary::open(name, DynamicLibrary::Lifetime::process);
    if (!result.library)
      tried += format("{}{} ({})", tried.empty() ? "" : "; ", name, result.error);
    return std::move(result.library);
  };
  if (const auto asked = detail::environment("KILN_CUBLASLT"); !asked.empty())
    return opens(std::string(asked));  // an explicit choice is not replaced by something else
  for (const char* name : kNames)
    if (auto found = opens(name)) return found;
  for (const std::string& root : codegen::NvrtcOptions::from_environment().cuda_roots)
    for (const char* folder : kFolders)
      for (const char* name : kNames) {
        const std::string path = root + "/" + folder + "/" + name;
        std::error_code none;
        if (!std::filesystem::exists(path, none)) continue;
        if (auto found = opens(path)) return found;
      }
  return {};
}

}  // namespace

Probe open() {
  std::string tried;
  const DynamicLibrary file = find(tried);
  if (!file)
    return {nullptr,
            format("libcublasLt cannot be opened; install it, or name it in KILN_CUBLASLT. "
                   "Tried: {}",
                   tried)};
  auto library = std::make_shared<Library>();
  std::string missing;
  const auto load = [&]<class F>(const char* name, F& function) {
    function = reinterpret_cast<F>(file.symbol(format("cublasLt{}", name).c_str()));
    if (!function) missing += (missing.empty() ? "cublasLt" : ", cublasLt") + std::string(name);
  };
  load("GetVersion", library->GetVersion);
  load("Create", library->Create);
  load("Destroy", library->Destroy);
  load("MatmulDescInit_internal", library->MatmulDescInit_internal);
  load("MatmulDescSetAttribute", library->MatmulDescSetAttribute);
  load("MatrixLayoutCreate", library->MatrixLayoutCreate);
  load("MatrixLayoutDestroy", library->MatrixLayoutDestroy);
  load("MatrixLayoutSetAttribute", library->MatrixLayoutSetAttribute);
  load("MatmulPreferenceCreate", library->MatmulPreferenceCreate);
  load("MatmulPreferenceDestroy", library->MatmulPreferenceDestroy);
  load("MatmulPreferenceSetAttribute", library->MatmulPreferenceSetAttribute);
  load("MatmulAlgoGetHeuristic", library->MatmulAlgoGetHeuristic);
  load("MatmulAlgoInit", library->MatmulAlgoInit);
  load("MatmulAlgoCheck", library->MatmulAlgoCheck);
  load("MatmulAlgoConfigGetAttribute", library->MatmulAlgoConfigGetAttribute);
  load("MatmulAlgoConfigSetAttribute", library->MatmulAlgoConfigSetAttribute);
  load("Matmul", library->Matmul);
  if (!missing.empty()) return {nullptr, format("{} has no {}", file.path(), missing)};
  library->version = library->GetVersion();
  if (library->version < kOldest)
    return {nullptr, format("{} is version {}; {} is the oldest that Kiln can use", file.path(),
                            library->version, kOldest)};
  return {std::move(library), {}};
}

}  // namespace kiln::runtime::cublaslt
