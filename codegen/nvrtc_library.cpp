#include "codegen/nvrtc_library.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/installation.hpp"
#include "kiln/error.hpp"

namespace kiln::codegen {
namespace {

constexpr std::array kLibraryNames = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

// Below a root: toolkit, distribution, and the layouts of NVIDIA's Python wheels with site-packages
// or its `nvidia` folder as the root.
constexpr const char* kLibraryFolders[] = {"lib64",
                                           "lib",
                                           "targets/x86_64-linux/lib",
                                           "targets/sbsa-linux/lib",
                                           "nvidia/cu13/lib",
                                           "nvidia/cuda_nvrtc/lib",
                                           "cu13/lib",
                                           "cuda_nvrtc/lib"};
constexpr const char* kHeaderFolders[] = {"include",
                                          "targets/x86_64-linux/include",
                                          "targets/sbsa-linux/include",
                                          "nvidia/cu13/include",
                                          "nvidia/cuda_runtime/include",
                                          "cu13/include",
                                          "cuda_runtime/include"};
constexpr const char* kDefaultRoot = "/usr/local/cuda";

bool exists(const std::string& path) {
  struct stat s;
  return ::stat(path.c_str(), &s) == 0;
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? std::string() : path.substr(0, slash);
}

// NVRTC has state that other users of it in the process rely on.
constexpr auto kKept = DynamicLibrary::Lifetime::process;

DynamicLibrary open_library(const NvrtcOptions& options, std::string& tried) {
  DynamicLibrary library;
  const auto opens = [&](const std::string& candidate) {
    auto opened = DynamicLibrary::open(candidate, kKept);
    library = std::move(opened.library);
    if (!library && tried.find(opened.error) == std::string::npos) tried += "\n  " + opened.error;
    return static_cast<bool>(library);
  };
  const auto loader_finds = [&] {
    return std::any_of(kLibraryNames.begin(), kLibraryNames.end(), opens);
  };
  const auto lies_below = [&](const std::string& root) {
    for (const char* folder : kLibraryFolders)
      for (const char* name : kLibraryNames) {
        const std::string path = root + "/" + folder + "/" + name;
        if (exists(path) && opens(path)) return true;
      }
    return false;
  };
  if (!options.library.empty()) {
    opens(options.library);  // an explicit choice is not replaced by something else
    return library;
  }
  for (const std::string& root : options.cuda_roots) {
    // The default root comes after what the loader finds.
    if ((root == kDefaultRoot && loader_finds()) || lies_below(root)) return library;
  }
  loader_finds();
  return library;
}

template <class F>
void load(const DynamicLibrary& library, const char* name, F& function, std::string& missing) {
  function = reinterpret_cast<F>(library.symbol(name));
  if (!function) missing += std::string(missing.empty() ? "" : ", ") + name;
}

std::string load_table(const DynamicLibrary& library, NvrtcTable& table) {
  std::string missing;
  load(library, "nvrtcVersion", table.Version, missing);
  load(library, "nvrtcGetErrorString", table.GetErrorString, missing);
  load(library, "nvrtcGetNumSupportedArchs", table.GetNumSupportedArchs, missing);
  load(library, "nvrtcGetSupportedArchs", table.GetSupportedArchs, missing);
  load(library, "nvrtcCreateProgram", table.CreateProgram, missing);
  load(library, "nvrtcDestroyProgram", table.DestroyProgram, missing);
  load(library, "nvrtcCompileProgram", table.CompileProgram, missing);
  load(library, "nvrtcGetCUBINSize", table.GetCUBINSize, missing);
  load(library, "nvrtcGetCUBIN", table.GetCUBIN, missing);
  load(library, "nvrtcGetProgramLogSize", table.GetProgramLogSize, missing);
  load(library, "nvrtcGetProgramLog", table.GetProgramLog, missing);
  load(library, "nvrtcAddNameExpression", table.AddNameExpression, missing);
  load(library, "nvrtcGetLoweredName", table.GetLoweredName, missing);
  return missing;
}

std::vector<std::string> find_headers(const NvrtcOptions& options, const std::string& library) {
  std::vector<std::string> candidates;
  const auto add_root = [&](const std::string& root) {
    for (const char* folder : kHeaderFolders) candidates.push_back(root + "/" + folder);
  };
  // What was asked for, what belongs to the library, then the usual places.
  const auto& roots = options.cuda_roots;
  const auto usual = std::find(roots.begin(), roots.end(), kDefaultRoot);
  std::for_each(roots.begin(), usual, add_root);
  const std::string toolkit = parent_of(parent_of(library));  // or nvidia/cuda_nvrtc
  if (!toolkit.empty()) add_root(toolkit);
  if (!parent_of(toolkit).empty()) add_root(parent_of(toolkit));
  std::for_each(usual, roots.end(), add_root);
  for (const std::string& dir : candidates) {
    if (!exists(dir + "/cuda_fp16.h")) continue;
    std::vector<std::string> found = {dir};
    if (exists(dir + "/cccl/cuda/std/version")) found.push_back(dir + "/cccl");  // libcu++ since 13
    return found;
  }
  return {};
}

const char* advice(nvrtcResult result) {
  switch (result) {
    case NVRTC_ERROR_OUT_OF_MEMORY:
      return "compile fewer kernels at once: each takes several hundred MB";
    case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE:
    case NVRTC_ERROR_PROGRAM_CREATION_FAILURE:
      return "check that libnvrtc-builtins of the same version lies beside libnvrtc";
    default:
      return "check the installation of NVRTC, or choose another with KILN_NVRTC";
  }
}

}  // namespace

NvrtcOptions NvrtcOptions::from_environment() {
  NvrtcOptions options;
  options.library = detail::environment("KILN_NVRTC");
  constexpr detail::Variable kRoots[] = {"KILN_CUDA_ROOT", "CUDA_HOME", "CUDA_PATH"};
  for (const detail::Variable root : kRoots)
    if (const auto folder = detail::environment(root); !folder.empty())
      options.cuda_roots.emplace_back(folder);
  options.cuda_roots.push_back(kDefaultRoot);
  if (const auto& toolkit = detail::installation().toolkit; !toolkit.empty())
    options.cuda_roots.push_back(toolkit.string());
  return options;
}

void NvrtcTable::check(nvrtcResult result, const char* call) const {
  if (result == NVRTC_SUCCESS) return;
  throw EnvironmentError(detail::format("{} failed: {} ({}). {}.", call, GetErrorString(result),
                                        static_cast<int>(result), advice(result)));
}

namespace {

std::unique_ptr<NvrtcLibrary> open_nvrtc(const NvrtcOptions& options, std::string& reason) {
  auto nvrtc = std::make_unique<NvrtcLibrary>();
  std::string tried;
  nvrtc->library = open_library(options, tried);
  if (!nvrtc->library) {
    reason =
        "NVRTC cannot be opened; install CUDA's NVRTC 12 or newer, or name the library in "
        "KILN_NVRTC or its toolkit in KILN_CUDA_ROOT. Tried:" +
        tried;
    return nullptr;
  }
  nvrtc->path = nvrtc->library.path();
  const std::string missing = load_table(nvrtc->library, nvrtc->table);
  if (!missing.empty()) {
    reason = detail::format("{} has no {}; NVRTC 12 or newer is needed", nvrtc->path, missing);
    return nullptr;
  }
  const NvrtcTable& f = nvrtc->table;
  int count = 0;
  if (f.Version(&nvrtc->major, &nvrtc->minor) != NVRTC_SUCCESS || nvrtc->major < 12) {
    reason = detail::format("{} is version {}.{}; NVRTC 12 or newer is needed", nvrtc->path,
                            nvrtc->major, nvrtc->minor);
    return nullptr;
  }
  // NVRTC opens its built-in functions by bare name, which the loader finds only in folders that it
  // knows: those beside a library opened by path have to be loaded already.
  const std::string builtins = detail::format("{}/libnvrtc-builtins.so.{}.{}",
                                              parent_of(nvrtc->path), nvrtc->major, nvrtc->minor);
  if (exists(builtins)) DynamicLibrary::open(builtins, kKept);
  if (f.GetNumSupportedArchs(&count) == NVRTC_SUCCESS && count > 0) {
    nvrtc->archs.resize(static_cast<std::size_t>(count));
    if (f.GetSupportedArchs(nvrtc->archs.data()) != NVRTC_SUCCESS) nvrtc->archs.clear();
  }
  nvrtc->build = nvrtc->library.build_id();
  struct stat file;
  if (nvrtc->build.empty() && ::stat(nvrtc->path.c_str(), &file) == 0) {
    nvrtc->build = detail::format("{} bytes", file.st_size);
  }
  nvrtc->include_dirs = find_headers(options, nvrtc->path);
  return nvrtc;
}

}  // namespace

std::shared_ptr<const NvrtcLibrary> opened_nvrtc(const NvrtcOptions& options, std::string& reason) {
  using Asked = std::pair<std::string, std::vector<std::string>>;
  struct Opened {
    std::mutex mutex;
    std::map<Asked, std::shared_ptr<const NvrtcLibrary>> libraries;
  };
  static auto* const opened = new Opened;  // runtimes may end after all statics
  const std::lock_guard lock(opened->mutex);
  const Asked asked{options.library, options.cuda_roots};
  if (const auto known = opened->libraries.find(asked); known != opened->libraries.end())
    return known->second;
  std::shared_ptr<const NvrtcLibrary> library = open_nvrtc(options, reason);
  if (library) opened->libraries.emplace(asked, library);
  return library;
}

}  // namespace kiln::codegen
