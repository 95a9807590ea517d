// Internal: the files that belong to this library. For .cpp files only; no public header includes
// this.
//
// Nothing here is a path that was compiled in. An installation is found from where the library
// lies, so it can be moved and never reads from the tree that it was built in. A build tree has a
// note beside the library, `kiln-build-tree`, which is not installed; its lines are "source DIR",
// "toolkit DIR", "plugins DIR", "programs DIR" and "plots FILE".
#pragma once

#include <filesystem>
#include <vector>

namespace kiln::detail {

struct Installation {
  std::filesystem::path include;               ///< holds `kiln/config.hpp`
  std::filesystem::path templates;             ///< holds `gemm.cuh`
  std::filesystem::path toolkit;               ///< CUDA's, if a build tree was configured with one
  std::vector<std::filesystem::path> plugins;  ///< folders of libkiln_llvm.so and libkiln_mpi.so
  std::filesystem::path programs;  ///< holds `kiln-compiler` and `kiln-worker`, if they are there
  std::filesystem::path report;    ///< holds `page.html`
  std::filesystem::path plots;     ///< the script that draws a report's plots, if it is there
};

/// What belongs to a library in this folder.
Installation installation_of(const std::filesystem::path& library_folder);

/// What belongs to the library that holds this function; looked up once.
const Installation& installation();

/// The paths at which a plugin is looked for, in order: the installation's, then its bare name, for
/// the loader.
std::vector<std::filesystem::path> plugin_paths(const char* file_name);

}  // namespace kiln::detail
