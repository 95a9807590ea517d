#include "kiln/paths.hpp"

#include <cstdlib>

#include <dlfcn.h>

namespace kiln {

namespace fs = std::filesystem;

namespace {

fs::path library_dir() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&library_dir), &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  return fs::weakly_canonical(info.dli_fname, error).parent_path();
}

/// `in_root`: below a source tree or $KILN_ROOT; `in_prefix`: below an installation's prefix.
fs::path find_dir(const char* in_root, const char* in_prefix, const char* landmark) {
  std::error_code error;
  if (const char* root = std::getenv("KILN_ROOT"); root && *root) return fs::path(root) / in_root;
  for (fs::path dir = library_dir(); dir.has_relative_path(); dir = dir.parent_path())
    if (fs::exists(dir / in_prefix / landmark, error)) return dir / in_prefix;
  return fs::path(KILN_SOURCE_ROOT) / in_root;
}

}  // namespace

fs::path include_dir() {
  static const fs::path dir = find_dir("include", "include", "kiln/config.hpp");
  return dir;
}

fs::path templates_dir() {
  static const fs::path dir = find_dir("templates", "share/kiln/templates", "gemm.cuh");
  return dir;
}

}  // namespace kiln
