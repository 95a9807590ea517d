// A pool that has no memory, which its own thread notices.
#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/processes/process_pool.hpp"
#include "temporary_directory.hpp"
#include "unit/runtime/allocations.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;
using runtime::PoolOptions;
using runtime::ProcessPool;

namespace {

/// A program that answers nothing.
PoolOptions silent(const TemporaryDirectory& directory) {
  const auto program = directory.path() / "silent";
  std::ofstream(program) << "#!/bin/sh\nexec sleep 60\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  return {.executable = program};
}

}  // namespace

TEST_CASE("a pool without memory gives its requests back", "[runtime][processes]") {
  const TemporaryDirectory directory;
  ProcessPool pool(silent(directory));
  SECTION("for its first process") {
    const LittleForOthers little(0);
    CHECK(std::holds_alternative<ProcessPool::Unusable>(pool.run({})));
  }
  SECTION("when a process has ended") {
    for (int round = 0; round < 2; ++round) {
      std::optional<ProcessPool::Outcome> outcome;
      {
        std::jthread asks([&] { outcome = pool.run(std::vector<std::byte>(10)); });
        REQUIRE(becomes([&] { return pool.processes().size() == 1; }));
        const LittleForOthers little(0);
        ::kill(pool.processes().front(), SIGKILL);
        asks.join();
      }
      REQUIRE(outcome);
      const auto* const unusable = std::get_if<ProcessPool::Unusable>(&*outcome);
      REQUIRE(unusable);
      CHECK(unusable->reason == "no memory");
      // With memory the process is let go, and the next request gets another one.
      REQUIRE(becomes([&] { return pool.processes().empty(); }));
    }
  }
}
