// Kernels that signal each other and wait, launched on the host target by ranks that are threads.
#include <functional>
#include <thread>

#include "findings.hpp"
#include "host_test.hpp"
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

/// Ranks signal the next one and wait for the one before. With `silent`, rank 0 does not signal.
constexpr const char* kTurn = R"(
#include <kiln/peers.cuh>
template <int threads, int silent>
__global__ void turn(int* out, const kiln::Peers* peers) {
  const kiln::Peers& p = *peers;
  if (threadIdx.x != 0) return;
  const unsigned epoch = ++*p.counters;
  if (!silent || p.rank != 0) kiln::signal(p, (p.rank + 1) % p.size, 1, epoch);
  if (kiln::wait(p, (p.rank + p.size - 1) % p.size, 1, epoch)) *out = 7;
}
)";

/// Its one other argument, `peers`, is the same in all launches.
KernelDefinition turns(const Peers* peers) {
  KernelDefinition k;
  k.name = "turn";
  k.source.text = kTurn;
  k.entry = "turn";
  k.arguments = {"int*", "const kiln::Peers*"};
  k.space.parameter("threads", {32, 64}, 32).parameter("silent", {0, 1}, 0);
  k.problem_fields = {"n"};
  k.launch = [](std::span<const std::int64_t> config, auto) {
    return Launch{{1}, {static_cast<unsigned>(config[0])}};
  };
  k.workload = [peers](auto, Workload& w) { w.output<int>(1).address(peers); };
  k.reference = [](auto, std::span<void* const> args) { *static_cast<int*>(args[0]) = 7; };
  return k;
}

}  // namespace

TEST_CASE("a candidate that makes ranks wait in vain is ended on all of them, and the others count",
          "[host][symmetric]") {
  for (const int ranks : {2, 3}) {
    Findings findings;
    auto ends = thread_communicators(ranks);
    std::vector<std::string> thrown(ends.size());
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back(
          [&, r, communicator = std::shared_ptr(std::move(ends[static_cast<std::size_t>(r)]))] {
            try {
              RuntimeOptions at_launch = host_in_memory();
              at_launch.mode = Mode::untuned;
              const Runtime runtime(at_launch);
              SymmetricMemory memory(runtime, communicator, {.bytes = 64, .flags = 2});
              const DynamicTuned turn = runtime.tuned(turns(memory.peers()));
              TuneOptions options;
              options.ranks = communicator;
              options.together.lockstep = true;
              const auto guard = memory.guard(0.3);
              int ended = 0;
              options.together.guard = [&](const std::function<void()>& launches) {
                try {
                  guard(launches);
                } catch (...) {
                  ++ended;
                  throw;
                }
              };
              // The first search ends early. What it has seen to hang is not tried by the second.
              options.max_evaluations = 3;
              const TuneResult first = turn.tune({1}, options);
              findings.check(first.count(CandidateStatus::hung) == static_cast<std::size_t>(ended));
              findings.check(ended > 0);
              options.max_evaluations = 0;
              const TuneResult result = turn.tune({1}, options);
              findings.check(ended == 2);
              findings.check(result.agreed && result.agreed->outcome == RankReport::Outcome::plan);
              findings.check(result.candidates.size() == 4);
              for (const Candidate& c : result.candidates) {
                const bool silent = c.config[1] != 0;
                findings.check(c.status ==
                               (silent ? CandidateStatus::hung : CandidateStatus::measured));
                if (silent) findings.check(c.reason.find("gave up") != std::string::npos);
              }
              findings.check(result.winner().config[1] == 0);
              int out = 0;
              memory.within(deadline_in(60), [&] {
                turn({}, {1}, &out, memory.peers());
                runtime.synchronize();
              });
              findings.check(out == 7);
              memory.close();
            } catch (const std::exception& error) {
              thrown[static_cast<std::size_t>(r)] = error.what();
            }
          });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& text : thrown) CHECK(text == "");
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
