// What belongs to a library is found from where the library lies.
#include <fstream>

#include "kiln/detail/installation.hpp"
#include "kiln/paths.hpp"
#include "kiln_test.hpp"
#include "temporary_directory.hpp"

using kiln::detail::installation_of;
using kiln::test::TemporaryDirectory;
namespace fs = std::filesystem;

TEST_CASE("An installed library goes by its own folder alone", "[installation]") {
  const fs::path folder = "/opt/moved/lib";
  const auto found = installation_of(folder);
  CHECK(found.plugins == std::vector<fs::path>{folder});
  CHECK(found.toolkit.empty());
  // Where in the prefix the library lies is configured; no folder above that is looked into.
  for (const fs::path& path :
       {found.include, found.templates, found.programs, found.report, found.plots}) {
    CHECK(path.is_absolute());
    CHECK(path == path.lexically_normal());
    CHECK(path.string().find("..") == std::string::npos);
  }
  CHECK(found.include.filename() == "include");
  CHECK(found.templates.filename() == "templates");
  CHECK(found.programs.filename() == "kiln");
  CHECK(found.plots == found.report / "plots.js");
}

TEST_CASE("A library in a build tree goes by the note beside it", "[installation]") {
  const TemporaryDirectory build;
  std::ofstream(build.path() / "kiln-build-tree") << "source /a source tree\n"
                                                     "toolkit /opt/cuda\n"
                                                     "plugins codegen/llvm\n"
                                                     "plugins runtime/transport\n"
                                                     "programs runtime\n"
                                                     "plots runtime/report/plots.js\n";
  const auto found = installation_of(build.path());
  CHECK(found.include == "/a source tree/include");
  CHECK(found.templates == "/a source tree/templates");
  CHECK(found.toolkit == "/opt/cuda");
  CHECK(found.plugins ==
        std::vector<fs::path>{build.path() / "codegen/llvm", build.path() / "runtime/transport"});
  CHECK(found.programs == build.path() / "runtime");
  CHECK(found.report == "/a source tree/runtime/report/page");
  CHECK(found.plots == build.path() / "runtime/report/plots.js");
}

TEST_CASE("A note in a folder above a library is not read", "[installation]") {
  const TemporaryDirectory outside;
  std::ofstream(outside.path() / "kiln-build-tree") << "source /elsewhere\nplugins .\n";
  const auto found = installation_of(outside.path() / "lib");
  CHECK(found.plugins == std::vector<fs::path>{outside.path() / "lib"});
  CHECK(found.templates.string().find("/elsewhere") == std::string::npos);
}

TEST_CASE("The library under test finds the tree that it was built from", "[installation]") {
  CHECK(fs::exists(kiln::include_dir() / "kiln/config.hpp"));
  CHECK(fs::exists(kiln::templates_dir() / "gemm/gemm.cuh"));
  const auto paths = kiln::detail::plugin_paths("libkiln_llvm.so");
  REQUIRE(paths.size() == 3);
  CHECK(paths.front().is_absolute());
  CHECK(paths.back() == "libkiln_llvm.so");
  CHECK(fs::exists(kiln::detail::installation().programs / "kiln-compiler"));
}
