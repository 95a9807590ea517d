// Kernels that signal each other and wait, launched on the host target by ranks that are threads.
#include <functional>
#include <thread>

#include "findings.hpp"
#include "host_test.hpp"
#include "silent_candidates.hpp"
#include "symmetric_ring.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

RuntimeOptions host_in_memory() {
  RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  return options;
}

/// Calls `body` for each rank on a thread of its own. Returns what they threw.
std::string on_rings(int ranks, const std::function<void(SymmetricMemory&, Ring&)>& body) {
  auto ends = thread_communicators(ranks);
  const Runtime runtime(host_in_memory());
  std::vector<std::string> thrown(ends.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ends.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        Ring ring(runtime);
        SymmetricMemory memory(runtime, std::move(ends[r]), Ring::options(ranks, 120));
        body(memory, ring);
        memory.close();
      } catch (const std::exception& error) {
        thrown[r] = error.what() + std::string("; ");
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& text : thrown) all += text;
  return all;
}

}  // namespace

TEST_CASE("a candidate that makes ranks wait in vain is ended on all of them, and the others count",
          "[host][symmetric]") {
  for (const std::size_t ranks : {2U, 3U})
    CHECK(check_silent_candidates(std::vector<std::string>(ranks, "host"), 0.3) == "");
}

TEST_CASE("kernels of several ranks exchange data while they run", "[host][symmetric]") {
  for (const int ranks : {2, 3, 8}) {
    Findings findings;
    CHECK(on_rings(ranks, [&](SymmetricMemory& memory, Ring& ring) {
            for (unsigned epoch = 1; epoch <= 10; ++epoch)
              findings.check(ring.run(memory, epoch, deadline_in(120)));
          }) == "");
    CHECK(findings.wrong() == "");
  }
}

TEST_CASE("a kernel whose peer never signals ends at the deadline, and is repeated after a reset",
          "[host][symmetric]") {
  Findings findings;
  CHECK(on_rings(2, [&](SymmetricMemory& memory, Ring& ring) {
          const int r = memory.rank();
          findings.check(ring.run(memory, 1, deadline_in(120)));
          findings.check_throws<EnvironmentError>(
              [&] { ring.run(memory, 2, deadline_in(r == 0 ? 0.1 : 1000), 0); }, "rank 0 gave up");
          const auto stall = memory.stalled();
          // Rank 1 may have heard of it before it launched anything.
          findings.check(r == 0 ? stall && stall->rank == 1 : !stall || stall->rank == 0);
          memory.reset();
          for (unsigned epoch = 1; epoch <= 5; ++epoch)
            findings.check(ring.run(memory, epoch, deadline_in(120)));
        }) == "");
  CHECK(findings.wrong() == "");
}
