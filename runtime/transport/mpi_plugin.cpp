#include "runtime/transport/mpi_plugin.hpp"

#include <filesystem>

#include <dlfcn.h>

#include "kiln/communicators.hpp"
#include "kiln/detail/installation.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

void* open_plugin(std::string& error) {
  // Opened globally: MPI libraries open modules of their own, which look up the library's symbols.
  for (const std::filesystem::path& path : detail::plugin_paths("libkiln_mpi.so")) {
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
    throw EnvironmentError(
        "MPI: libkiln_mpi.so belongs to another build of Kiln; install both again");
  Communicator* communicator = open(deadline, error);
  if (!communicator) throw EnvironmentError("MPI: " + error);
  return std::unique_ptr<Communicator>(communicator);
}

}  // namespace kiln
