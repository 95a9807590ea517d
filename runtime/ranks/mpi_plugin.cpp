#include "runtime/ranks/mpi_plugin.hpp"

#include <filesystem>

#include <dlfcn.h>

#include "kiln/communicators.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

/// Beside this library, where the build and the installation put it; else where the loader looks.
void* open_plugin(std::string& error) {
  constexpr const char* kName = "libkiln_mpi.so";
  Dl_info self{};
  std::filesystem::path beside;
  if (::dladdr(reinterpret_cast<void*>(&mpi_communicator), &self) != 0 && self.dli_fname)
    beside = std::filesystem::path(self.dli_fname).parent_path();
  // Global: an MPI opens modules of its own, which look for its symbols.
  for (const std::filesystem::path& path :
       {beside / kName, beside / "runtime" / "ranks" / kName, std::filesystem::path(kName)}) {
    if (void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE))
      return handle;
    const char* said = ::dlerror();
    if (error.empty() || std::filesystem::exists(path)) error = said ? said : "";
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<Communicator> mpi_communicator(Deadline deadline) {
  std::string error;
  void* plugin = open_plugin(error);
  if (!plugin)
    throw EnvironmentError(
        "MPI: libkiln_mpi.so cannot be opened: " + error +
        ". Build Kiln with -Dmpi=enabled, and have the MPI on the loader's path");
  const auto version =
      reinterpret_cast<KilnMpiPluginVersion*>(::dlsym(plugin, "kiln_mpi_plugin_version"));
  const auto open = reinterpret_cast<KilnMpiOpen*>(::dlsym(plugin, "kiln_mpi_open"));
  if (!version || !open || version() != kKilnMpiPluginVersion)
    throw EnvironmentError("MPI: libkiln_mpi.so is of another build of Kiln; install both anew");
  Communicator* communicator = open(deadline, error);
  if (!communicator) throw EnvironmentError("MPI: " + error);
  return std::unique_ptr<Communicator>(communicator);
}

}  // namespace kiln
