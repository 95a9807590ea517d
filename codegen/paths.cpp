#include "kiln/paths.hpp"

#include <fstream>
#include <string>

#include <dlfcn.h>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/installation.hpp"

namespace kiln {

namespace fs = std::filesystem;

namespace detail {

namespace {

fs::path library_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&library_folder), &info) == 0 || !info.dli_fname)
    return {};
  std::error_code error;
  return fs::weakly_canonical(info.dli_fname, error).parent_path();
}

}  // namespace

Installation installation_of(const fs::path& library_folder) {
  Installation found;
  if (std::ifstream note(library_folder / "kiln-build-tree"); note) {
    for (std::string key, value; note >> key && std::getline(note >> std::ws, value);) {
      if (key == "source") {
        found.include = fs::path(value) / "include";
        found.templates = fs::path(value) / "templates";
        found.report = fs::path(value) / "runtime/report/page";
      } else if (key == "toolkit") {
        found.toolkit = value;
      } else if (key == "plugins") {
        found.plugins.push_back(library_folder / value);
      } else if (key == "programs") {
        found.programs = library_folder / value;
      } else if (key == "plots") {
        found.plots = library_folder / value;
      }
    }
    return found;
  }
  found.include = (library_folder / KILN_INCLUDE_FROM_LIBRARY).lexically_normal();
  found.templates = (library_folder / KILN_TEMPLATES_FROM_LIBRARY).lexically_normal();
  found.plugins = {library_folder};
  found.programs = (library_folder / KILN_PROGRAMS_FROM_LIBRARY).lexically_normal();
  found.report = (library_folder / KILN_REPORT_FROM_LIBRARY).lexically_normal();
  found.plots = found.report / "plots.js";
  return found;
}

const Installation& installation() {
  static const Installation found = installation_of(library_folder());
  return found;
}

std::vector<fs::path> plugin_paths(const char* file_name) {
  std::vector<fs::path> paths;
  for (const fs::path& folder : installation().plugins) paths.push_back(folder / file_name);
  paths.push_back(file_name);
  return paths;
}

}  // namespace detail

namespace {

fs::path in_root_or(const char* in_root, const fs::path& installed) {
  const std::string_view root = detail::environment("KILN_ROOT");
  return root.empty() ? installed : fs::path(root) / in_root;
}

}  // namespace

fs::path include_dir() {
  static const fs::path dir = in_root_or("include", detail::installation().include);
  return dir;
}

fs::path templates_dir() {
  static const fs::path dir = in_root_or("templates", detail::installation().templates);
  return dir;
}

}  // namespace kiln
