// Ranks that meet before each sample of a candidate in step, in memory that a guard watches.
#include <atomic>
#include <stdexcept>

#include "findings.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "ranks_on_host.hpp"
#include "runtime/support/rank_meeting.hpp"

using namespace kiln;
using namespace kiln::test;
using runtime::RankMeeting;

TEST_CASE("under a guard ranks go on when all have come", "[symmetric]") {
  for (const int ranks : {1, 2, 3, 8}) {
    const Ends ends = ends_of(ranks);
    std::atomic<int> come{0};
    check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
      const auto memory = symmetric(ends, rank, {.bytes = 8});
      RankMeeting::hold();  // nobody waits here without a guard
      int meetings = 0;
      for (int candidate = 0; candidate < 4; ++candidate)
        memory->guarded(120, [&] {
          for (int sample = 0; sample < 25; ++sample) {
            if ((sample + rank) % 7 == 0)
              std::this_thread::sleep_for(std::chrono::microseconds(200));
            ++come;
            RankMeeting::hold();
            findings.check(come >= ++meetings * ranks);
          }
        });
      findings.check(!RankMeeting::here());
      memory->close();
    });
    CHECK(come == 4 * 25 * ranks);
  }
}

TEST_CASE("ranks that meet do not wait for one that fails", "[symmetric]") {
  const Ends ends = ends_of(3);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8});
    const auto candidate = [&] {
      if (rank == 1) throw std::runtime_error("no such kernel");
      for (int sample = 0; sample < 5; ++sample) RankMeeting::hold();
    };
    if (rank == 1)
      findings.check_throws<std::runtime_error>([&] { memory->guarded(1000, candidate); },
                                                "no such kernel");
    else
      findings.check_throws<EnvironmentError>([&] { memory->guarded(1000, candidate); },
                                              "rank 1 gave up");
    findings.check(!memory->aborted());  // that was the candidate's
    int samples = 0;
    memory->guarded(120, [&] {
      for (; samples < 5; ++samples) RankMeeting::hold();
    });
    findings.check(samples == 5);
    memory->within(deadline_in(120), [] {});
    memory->close();
  });
}

TEST_CASE("ranks that meet do not wait longer than a candidate has", "[symmetric]") {
  const Ends ends = ends_of(2);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8});
    const auto candidate = [&] {
      if (rank == 0) RankMeeting::hold();  // the other one does not come
    };
    if (rank == 0)
      findings.check_throws<EnvironmentError>([&] { memory->guarded(0.05, candidate); },
                                              "rank 0 gave up");
    else
      try {
        memory->guarded(1000, candidate);
      } catch (const EnvironmentError&) {  // it heard of it in time
      }
    memory->within(deadline_in(120), [] {});
    memory->close();
  });
}
