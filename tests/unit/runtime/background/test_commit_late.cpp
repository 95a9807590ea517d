// Commits of ranks for which something takes long: what is late is published later, for all ranks.
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "background_fixture.hpp"
#include "findings.hpp"
#include "kiln_test.hpp"
#include "runtime/background/commit_loader.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a commit reads the sources of a kernel once", "[runtime][background][ranks]") {
  const Directory directory;
  const fs::path file = directory.path() / "doubling.cuh";
  KernelDefinition kernel = doubling();
  std::ofstream(file) << kernel.source.text;
  kernel.source = {.file = file};
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  runtime::RecordBook& records = detail::Access::engine(runtime)->records();
  const auto kept = std::make_shared<const KernelDefinition>(kernel);
  runtime::Definitions definitions;
  const std::string before = definitions.of(records, kept);
  std::ofstream(file, std::ios::app) << "// edited";
  CHECK(definitions.of(records, kept) == before);
  CHECK(runtime::Definitions().of(records, kept) != before);
}
