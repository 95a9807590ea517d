// The object itself: what ranks see of each other's memory, and that nothing stays behind.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "findings.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "ranks_on_host.hpp"
#include "runtime/device/host/shared_memory.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

namespace {

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += has(line, "kiln-symmetric");
  return count;
}

}  // namespace

TEST_CASE("all ranks see all data, zero at first and aligned", "[symmetric]") {
  const int ranks = 5;
  const Ends ends = ends_of(ranks);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const std::size_t bytes = 1001;
    const auto memory = symmetric(ends, rank, {.bytes = bytes, .flags = 3});
    findings.check(memory->rank() == rank && memory->size() == ranks);
    const Peers& peers = *memory->peers();
    findings.check(peers.rank == rank && peers.size == ranks && peers.flags == 3);
    for (int r = 0; r < ranks; ++r) {
      findings.check(peer_data(peers, r) == memory->data(r));
      findings.check(reinterpret_cast<std::uintptr_t>(memory->data(r)) % 256 == 0);
      const auto* data = static_cast<const unsigned char*>(memory->data(r));
      for (std::size_t i = 0; i < bytes; ++i) findings.check(data[i] == 0);
    }
    memory->barrier();
    // Each rank writes its own part of every rank's data, from the first byte to the last.
    for (int r = 0; r < ranks; ++r) {
      auto* data = static_cast<unsigned char*>(memory->data(r));
      for (std::size_t i = static_cast<std::size_t>(rank); i < bytes; i += ranks)
        data[i] = static_cast<unsigned char>(rank * 10 + r);
    }
    memory->barrier();
    const auto* own = static_cast<const unsigned char*>(memory->data(rank));
    for (std::size_t i = 0; i < bytes; ++i)
      findings.check(own[i] == static_cast<int>(i % ranks) * 10 + rank);
    memory->close();
  });
}

TEST_CASE("shared memory is found by its handle alone, and leaves nothing behind", "[symmetric]") {
  const std::size_t files = open_files();
  {
    const auto own = create_shared_memory(10000, PeerScope::machine);
    const PeerHandle handle = own->handle();
    const auto theirs = open_shared_memory(handle, 10000);
    CHECK(own->data() != theirs->data());
    static_cast<char*>(own->data())[9999] = 'x';
    CHECK(static_cast<char*>(theirs->data())[9999] == 'x');
    CHECK(static_cast<char*>(theirs->data())[0] == 0);
    CHECK(shared_mappings() == 2);
    CHECK_THROWS_AS(open_shared_memory(handle, 10001), EnvironmentError);
    own->withdraw();
    CHECK(open_files() == files);
    CHECK_THROWS_AS(open_shared_memory(handle, 10000), EnvironmentError);
    static_cast<char*>(theirs->data())[5] = 'y';
    CHECK(static_cast<char*>(own->data())[5] == 'y');
  }
  CHECK(shared_mappings() == 0);
  CHECK(open_files() == files);
}

TEST_CASE("a handle of another file is not taken for memory", "[symmetric]") {
  const auto first = create_shared_memory(4096, PeerScope::machine);
  const PeerHandle handle = first->handle();
  first->withdraw();
  const auto second = create_shared_memory(4096, PeerScope::machine);  // the same descriptor
  CHECK_THROWS_AS(open_shared_memory(handle, 4096), EnvironmentError);
  CHECK_THROWS_AS(open_shared_memory(PeerHandle{}, 4096), EnvironmentError);
}

TEST_CASE("symmetric memory comes and goes many times", "[symmetric]") {
  const std::size_t files = open_files();
  const Ends ends = ends_of(2);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings&) {
    for (std::size_t i = 1; i <= 20; ++i) {
      const auto memory = symmetric(ends, rank, {.bytes = i * 1000});
      std::memset(memory->data(1 - rank), 1, i * 500);
      memory->close();
    }
  });
  CHECK(open_files() == files);
  CHECK(shared_mappings() == 0);
}
