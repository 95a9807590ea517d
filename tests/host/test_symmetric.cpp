// Kernels that signal each other and wait, launched on the host target by ranks that are threads.
#include <algorithm>
#include <functional>
#include <thread>

#include "findings.hpp"
#include "host_test.hpp"
#include "silent_candidates.hpp"
#include "symmetric_ring.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

RuntimeOptions host_in_memory() {
  RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  return options;
}

struct Turn {
  int n;
};
}  // namespace
KILN_CONFIG(Turn, n);
namespace {

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

/// That a candidate has. Ranks that wait for it spin, with more of them than cores.
const double kGuard = std::min(kiln::test::patient(1), 3.0);

}  // namespace

TEST_CASE("a candidate that makes ranks wait in vain is ended on all of them, and the others count",
          "[host][symmetric]") {
  for (const std::size_t ranks : {2U, 3U})
    CHECK(check_silent_candidates(std::vector<std::string>(ranks, "host"), kGuard) == "");
}

TEST_CASE("a check that takes longer than a candidate has costs nothing, unless its rank is late",
          "[host][symmetric]") {
  for (const std::size_t ranks : {2U, 3U})
    CHECK(check_slow_check(std::vector<std::string>(ranks, "host"), kGuard, 3 * kGuard, 60) == "");
  CHECK(check_slow_check({"host", "host"}, 0.3, 5, 2) == "");
}

TEST_CASE("ranks tune in memory that was given up before", "[host][symmetric]") {
  for (const int ranks : {2, 3}) {
    auto ends = thread_communicators(ranks);
    std::vector<std::string> thrown(ends.size());
    Findings findings;
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < ends.size(); ++r)
        threads.emplace_back([&, r, end = std::shared_ptr(std::move(ends[r]))] {
          try {
            RuntimeOptions options = host_in_memory();
            options.mode = Mode::untuned;
            options.isolation = Isolation::off;  // else workers try the rest once one has hung
            const Runtime runtime(options);
            SymmetricMemory memory(runtime, end, {.bytes = 64, .flags = 2});
            GivenUpRounds rounds(runtime, memory, end);
            for (int round = 0; round < 100; ++round) findings.check(rounds.run(round));
            memory.close();
          } catch (const std::exception& error) {
            thrown[r] = error.what();
          }
        });
    }
    CHECK(findings.wrong() == "");
    for (const std::string& text : thrown) CHECK(text == "");
  }
}

TEST_CASE("how late another rank begins is in no sample of a candidate", "[host][symmetric]") {
  constexpr double kLate = 0.1;
  for (const int ranks : {2, 3}) {
    auto ends = thread_communicators(ranks);
    Findings findings;
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < ends.size(); ++r)
      threads.emplace_back([&, end = std::shared_ptr(std::move(ends[r]))] {
        const Runtime runtime(host_in_memory());
        SymmetricMemory memory(runtime, end, {.bytes = 64, .flags = 1});
        const int rank = memory.rank();
        int begun = 0;
        const Function<Turn, Turn, void()> turn{
            .name = "turn",
            .space = Space<Turn, Turn>{Turn{1}}.values(&Turn::n, {1, 2}),
            .call =
                [&](const Turn&, Stream) {
                  const Peers& p = *memory.peers();
                  const unsigned epoch = ++*p.counters;
                  signal(p, (rank + 1) % ranks, 0, epoch);
                  static_cast<void>(wait(p, (rank + ranks - 1) % ranks, 0, epoch));
                },
            .problem = [] { return Turn{1}; },
            .snapshot =
                [&](Stream) {
                  // Before a call, and not timed: one rank is late, then another one.
                  return [&](Stream) {
                    if (begun++ % ranks == rank)
                      std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
                  };
                },
            .communicates = true};
        TuneOptions options;
        options.ranks = end;
        options.together.finalists = 0;
        options.together.guard = memory.guard(120);
        const TuneResult result = tuned(runtime, turn, {.tuning = options}).tune({});
        for (const Candidate& c : result.candidates) {
          findings.check(c.status == CandidateStatus::measured && c.seconds < kLate / 2);
          findings.check(!c.samples.empty());
        }
        memory.close();
      });
    threads.clear();
    CHECK(findings.wrong() == "");
  }
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
