// The operations of ranks on the host target, ranks as threads: again and again with the same
// arguments, as graphs launch them; two at once; with epochs that wrap round; without a rank.
#include <thread>

#include "kiln_test.hpp"
#include "peer_turns.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;

namespace {

std::vector<std::string> hosts(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks), "host");
}

/// Each kernel is compiled once for all ranks and cases.
Turns<float> kept(Turns<float> work) {
  static const TemporaryDirectory store;
  work.store = store.path() / "store";
  return work;
}
Turns<float> gemms(int ranks) { return kept(gemm_turns<float>({9, 20, 17, ranks})); }
Turns<float> experts(int ranks) {
  return kept(experts_turns<float>({7, 20, 17, 4, 2, ranks}, Routing::skewed));
}

}  // namespace

TEST_CASE("operations of ranks go on for hundreds of rounds with the same arguments",
          "[host][symmetric]") {
  for (const auto& work : {gemms(2), experts(2)}) {
    CAPTURE(work.name);
    Findings findings;
    CHECK(on_peers(
              hosts(2), work.bytes,
              [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                run_turns(runtime, memory, work.make(runtime, memory), 300, 200, findings);
              },
              work.flags, 0, work.store) == "");
    CHECK(findings.wrong() == "");
  }
}

TEST_CASE("two operations of ranks at once, each in a memory of its own", "[host][symmetric]") {
  const Turns<float> one = gemms(2), other = experts(2);
  const int rounds = 300;
  Findings findings;
  CHECK(on_peers(
            hosts(2), one.bytes,
            [&](const Runtime& runtime, SymmetricMemory& memory, auto communicator) {
              SymmetricMemory second(runtime, communicator,
                                     {.bytes = other.bytes, .flags = other.flags, .seconds = 60});
              const auto a = one.make(runtime, memory), b = other.make(runtime, second);
              std::string thrown;
              std::thread beside([&] {
                try {
                  run_turns(runtime, second, b, rounds, 300, findings);
                } catch (const std::exception& error) {
                  thrown = error.what();
                }
              });
              try {
                run_turns(runtime, memory, a, rounds, 300, findings);
              } catch (...) {
                beside.join();
                throw;
              }
              beside.join();
              if (!thrown.empty()) throw EnvironmentError(thrown);
              second.close();
            },
            one.flags, 0, one.store) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("epochs of operations of ranks on the host wrap round", "[host][symmetric]") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    CHECK(check_wrap(hosts(ranks), gemms(ranks), 10, 300) == "");
    CHECK(check_wrap(hosts(ranks), experts(ranks), 10, 300) == "");
  }
}

TEST_CASE("each operation of ranks ends without a rank that does not come", "[host][symmetric]") {
  for (const auto& work : {gemms(2), experts(2)})
    CHECK(check_gives_up(hosts(2), work, 0.2, 5, "rank 0 gave up waiting for rank 1") == "");
}
