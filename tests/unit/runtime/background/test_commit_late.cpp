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

TEST_CASE("the end of a runtime waits for a pending config that is being compiled",
          "[runtime][background][ranks]") {
  Job job = serving_job(2);
  std::atomic<bool> compiles{false}, released{false}, ended{false};
  Findings findings;
  job[1].compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry != "k<8, 0>") return;
    compiles = true;
    becomes([&] { return released.load(); }, patient(5));
    findings.check(!ended);
  };
  job[1].device->on_load = [&](const std::string&) { findings.check(!ended); };
  job[1].options.log = [&](LogLevel, std::string_view) { findings.check(!ended); };
  const auto pending = job.run<std::size_t>([&](Process& process, int rank) {
    std::optional<Runtime> runtime(process.runtime());
    std::optional handle(runtime->tuned(doubling()));
    if (rank == 0) {
      run_once(*handle, 60);
      tune_in_window(*runtime);
      return runtime->commit({.wait = false}).pending;
    }
    // Nothing is compiled ahead for what the program has chosen.
    detail::Access::engine(*runtime)->serving().handles().front()->use(Values{60}, Values{4, 0});
    const std::size_t found = runtime->commit({.wait = false}).pending;
    findings.check(becomes([&] { return compiles.load(); }));
    const std::jthread releaser([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      released = true;
    });
    handle.reset();
    runtime.reset();
    findings.check(released);
    ended = true;
    return found;
  });
  CHECK(findings.wrong() == "");
  CHECK(pending == std::vector<std::size_t>{1, 1});
}

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
