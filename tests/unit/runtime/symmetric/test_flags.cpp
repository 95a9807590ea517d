// What kernels do with symmetric memory (kiln/peers.cuh), called by threads instead.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include "findings.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "ranks_on_host.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// A straggler: now and then a rank takes its time.
class Jitter {
 public:
  explicit Jitter(int rank) : random_(static_cast<unsigned>(rank) + 7) {}
  void operator()() {
    if (random_() % 16 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
  }

 private:
  std::minstd_rand random_;
};

/// All ranks get all ranks' values by a ring, chunk by chunk: a chunk goes to the next rank as soon
/// as it has come. @returns whether all values are right
bool ring_all_gather(const Peers& peers, unsigned epoch, int chunk, int chunks, Jitter& jitter) {
  const int next = (peers.rank + 1) % peers.size;
  const int before = (peers.rank + peers.size - 1) % peers.size;
  const int shard = chunk * chunks;
  // Two buffers in turn: a rank that is an epoch ahead writes where nobody reads any more.
  const int buffer = static_cast<int>(epoch % 2) * shard * peers.size;
  int* const own = static_cast<int*>(peer_data(peers, peers.rank)) + buffer;
  int* const theirs = static_cast<int*>(peer_data(peers, next)) + buffer;
  const auto value = [&](int rank, int i) {
    return static_cast<int>(epoch * 31) + rank * 1000 + i;
  };
  for (int i = 0; i < shard; ++i) own[peers.rank * shard + i] = value(peers.rank, i);
  for (int step = 0; step + 1 < peers.size; ++step) {
    const int source = (peers.rank + peers.size - step) % peers.size;
    for (int c = 0; c < chunks; ++c) {
      const auto flag = static_cast<unsigned>((step * chunks + c) + 1);
      jitter();
      if (step > 0 && !wait(peers, before, flag - static_cast<unsigned>(chunks), epoch))
        return false;
      const int at = source * shard + c * chunk;
      std::copy_n(own + at, chunk, theirs + at);
      signal(peers, next, flag, epoch);
    }
  }
  const auto last = static_cast<unsigned>((peers.size - 2) * chunks);
  for (int c = 0; c < chunks && peers.size > 1; ++c)
    if (!wait(peers, before, last + static_cast<unsigned>(c) + 1, epoch)) return false;
  bool right = true;
  for (int r = 0; r < peers.size; ++r)
    for (int i = 0; i < shard; ++i) right &= own[r * shard + i] == value(r, i);
  // Nobody begins the epoch after next before all have read.
  return peer_barrier(peers, 0, epoch) && right;
}

}  // namespace

TEST_CASE("epochs are compared across their wrap", "[symmetric]") {
  CHECK(epoch_reached(5, 5));
  CHECK(epoch_reached(6, 5));
  CHECK_FALSE(epoch_reached(4, 5));
  CHECK(epoch_reached(0, 0xffffffffu));
  CHECK(epoch_reached(3, 0xfffffff0u));
  CHECK_FALSE(epoch_reached(0xffffffffu, 0));
  CHECK(epoch_reached(0x7fffffffu, 0));
  CHECK_FALSE(epoch_reached(0x80000001u, 0));
}

TEST_CASE("a ring with chunks, jitter, and epochs that wrap", "[symmetric]") {
  for (const int ranks : {1, 2, 3, 8}) {
    const Ends ends = ends_of(ranks);
    const int chunk = 37, chunks = 3, rounds = 40;  // nothing divides anything
    check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
      const auto memory =
          symmetric(ends, rank,
                    {.bytes = sizeof(int) * static_cast<std::size_t>(2 * chunk * chunks * ranks),
                     .flags = static_cast<unsigned>(chunks * ranks + 1)});
      Jitter jitter(rank);
      memory->within(deadline_in(120), [&] {
        // The first wait must not be satisfied by the zeros that are there.
        unsigned epoch = 0xffffffffu - static_cast<unsigned>(rounds) / 2;
        // Flags begin at 0, which is later than that.
        for (unsigned f = 0; f < static_cast<unsigned>(chunks * ranks + 1); ++f)
          for (int to = 0; to < ranks; ++to) signal(*memory->peers(), to, f, epoch);
        memory->barrier();
        for (int round = 0; round < rounds; ++round)
          findings.check(ring_all_gather(*memory->peers(), ++epoch, chunk, chunks, jitter));
        findings.check(epoch < 100);
      });
      memory->close();
    });
  }
}

TEST_CASE("two operations in flight do not disturb each other", "[symmetric]") {
  const int ranks = 3, chunk = 16, chunks = 2;
  const Ends ends = ends_of(ranks);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const SymmetricOptions options{.bytes = sizeof(int) * 2 * chunk * chunks * ranks,
                                   .flags = chunks * ranks + 1};
    const auto first = symmetric(ends, rank, options), second = symmetric(ends, rank, options);
    const auto run = [&](detail::SymmetricCore& memory, unsigned rounds) {
      Jitter jitter(rank);
      memory.within(deadline_in(120), [&] {
        for (unsigned epoch = 1; epoch <= rounds; ++epoch)
          findings.check(ring_all_gather(*memory.peers(), epoch, chunk, chunks, jitter));
      });
    };
    std::thread other([&] { run(*second, 30); });
    run(*first, 30);
    other.join();
    first->close();
    second->close();
  });
}

TEST_CASE("a signal that does not come ends all waits at the deadline, and is named",
          "[symmetric]") {
  const Ends ends = ends_of(3);
  std::atomic<int> given_up{0};
  std::atomic<bool> waits{false};
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8, .flags = 4});
    // Rank 0 never signals; rank 1 waits for it, rank 2 for rank 1. Only rank 1's host gives up
    // soon.
    const auto work = [&] {
      if (rank == 1) given_up += !wait(*memory->peers(), 0, 3, 17);
      waits = true;
      if (rank == 2) given_up += !wait(*memory->peers(), 1, 2, 5);
    };
    while (rank == 1 && !waits) std::this_thread::yield();  // for rank 2
    if (rank == 0) {
      while (!memory->aborted()) std::this_thread::yield();
      findings.check(!memory->stalled());
      findings.check_throws<EnvironmentError>([&] { memory->within(deadline_in(1), [] {}); });
    } else {
      findings.check_throws<EnvironmentError>(
          [&] { memory->within(deadline_in(rank == 1 ? 0.05 : 1000), work); }, "rank 1 gave up");
      const auto stall = memory->stalled();
      findings.check(stall && stall->rank == rank - 1);
      findings.check(stall && stall->flag == (rank == 1 ? 3u : 2u));
      findings.check(stall && stall->epoch == (rank == 1 ? 17u : 5u));
      if (rank == 1)
        findings.check_throws<EnvironmentError>(
            [&] { memory->barrier(); }, "waiting for rank 0, which has not set flag 3 to epoch 17");
      findings.check(!wait(*memory->peers(), 0, 0, 1));  // now and later
    }
    // All is as it was when it was made.
    memory->reset();
    findings.check(!memory->aborted() && !memory->stalled());
    memory->within(deadline_in(120),
                   [&] { findings.check(peer_barrier(*memory->peers(), 3, 17)); });
    memory->reset();
    memory->within(deadline_in(120), [&] { findings.check(peer_barrier(*memory->peers(), 3, 1)); });
    memory->close();
  });
  CHECK(given_up == 2);
}

TEST_CASE("work that fails on one rank ends the others' waits at once", "[symmetric]") {
  const Ends ends = ends_of(2);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8});
    if (rank == 0)
      findings.check_throws<UserError>(
          [&] { memory->within(deadline_in(1000), [] { throw UserError("no such kernel"); }); },
          "no such kernel");
    else
      findings.check_throws<EnvironmentError>(
          [&] {
            memory->within(deadline_in(1000),
                           [&] { findings.check(!wait(*memory->peers(), 0, 0, 1)); });
          },
          "rank 0 gave up");
    memory->close();
  });
}
