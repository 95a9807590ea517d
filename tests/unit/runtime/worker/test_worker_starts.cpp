// Workers that cannot be started, now or ever.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "kiln/detail/installation.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/engine_fixture.hpp"
#include "unit/runtime/tune/tuner_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// On a device that workers open.
struct OnHost : Bench {
  OnHost() { device->info().id = "host"; }

  runtime::KernelMaker maker(const fs::path& worker) {
    return runtime::KernelMaker(kernel, Values{1000}, device, builder, 1, {},
                                {.executable = worker});
  }
  const KernelDefinition kernel = doubling();
};

fs::path program(const Directory& directory, const std::string& script) {
  const fs::path path = directory.path() / "worker";
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

}  // namespace

TEST_CASE("candidates stay out of the process while no worker can be started",
          "[runtime][isolation]") {
  const Directory directory;
  OnHost here;
  SECTION("because it ends at once") {
    auto maker = here.maker(program(directory, "echo started >> $0.log; exit 1"));
    REQUIRE(maker.isolate());
    CHECK_THROWS_AS(maker.bench(), runtime::BenchLost);
    CHECK(maker.take_warnings().empty());
    std::ifstream log(directory.path() / "worker.log");
    int starts = 0;
    for (std::string line; std::getline(log, line);) ++starts;
    CHECK(starts == 3);
    CHECK_THROWS_AS(maker.bench(), runtime::BenchLost);  // and later
  }
  SECTION("because the process has no descriptors left") {
    auto maker = here.maker(program(directory, "exit 1"));
    REQUIRE(maker.isolate());
    rlimit files{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
    const rlimit none{3, files.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
    std::string why;
    try {
      maker.bench();
    } catch (const runtime::BenchLost& lost) {
      why = lost.what();
    }
    ::setrlimit(RLIMIT_NOFILE, &files);
    CHECK_THAT(why, Catch::Contains("Too many open files"));
  }
  CHECK(here.device->launches == 0);
}

TEST_CASE("a worker that starts at the second try is used", "[runtime][isolation]") {
  const Directory directory;
  OnHost here;
  const fs::path real = detail::installation().programs / "kiln-worker";
  auto maker =
      here.maker(program(directory, "[ -e $0.tried ] || { touch $0.tried; exit 1; }\nexec '" +
                                        real.string() + "' \"$@\""));
  REQUIRE(maker.isolate());
  CHECK_FALSE(maker.bench().lost());
  CHECK(maker.take_warnings().empty());
}

TEST_CASE("candidates run in the process where no worker is ever of use", "[runtime][isolation]") {
  OnHost here;
  auto maker = here.maker("/nowhere/kiln-worker");
  REQUIRE(maker.isolate());
  maker.bench();
  const std::vector<std::string> warnings = maker.take_warnings();
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings.front(), Catch::Contains("in this process, not in a worker"));
}
