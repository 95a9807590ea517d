// The NCCL communicator over a fake libnccl: how it asks, waits, fails and cleans up.
#include <atomic>
#include <functional>
#include <thread>

#include "fake_nccl.hpp"
#include "kiln/communicators.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/ranks/drive.hpp"
#include "runtime/ranks/nccl/nccl_communicator.hpp"

using namespace kiln;
using namespace kiln::runtime::ranks;

namespace {

void on_each(int size, const std::function<void(Communicator&)>& body) {
  auto ends = thread_communicators(size);
  std::vector<std::thread> threads;
  for (auto& end : ends)
    threads.emplace_back([&] {
      const auto nccl = make_nccl(fake::table(), *end, deadline_in(30));
      body(*nccl);
    });
  for (auto& t : threads) t.join();
}

}  // namespace

TEST_CASE("the NCCL communicator gathers, reduces and broadcasts", "[ranks]") {
  std::atomic<int> good{0};
  on_each(3, [&](Communicator& c) {
    bool ok = c.size() == 3;
    for (int round = 0; round < 20; ++round) {
      const int mine = c.rank() * 10 + round;
      std::vector<int> all(3);
      ok &= !c.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                      deadline_in(30));
      ok &= all == std::vector<int>{round, 10 + round, 20 + round};
      std::vector<float> v{static_cast<float>(c.rank()), HUGE_VALF};
      ok &= !c.reduce(v, Reduction::mean, deadline_in(30)) && v[0] == 1 && std::isinf(v[1]);
      v = {static_cast<float>(c.rank())};
      ok &= !c.reduce(v, Reduction::max, deadline_in(30)) && v[0] == 2;
      int told = c.rank() == 1 ? 7 : 0;
      ok &= !c.broadcast(std::as_writable_bytes(std::span(&told, 1)), 1, deadline_in(30));
      ok &= told == 7;
    }
    good += ok;
  });
  CHECK(good == 3);
  CHECK(fake::state().allocations == 0);
  CHECK(fake::state().finalized == 3);
  CHECK(fake::state().aborts == 0);
}

TEST_CASE("a rank that does not join costs the deadline, an abort, and nothing more", "[ranks]") {
  fake::state().aborts = 0;
  std::atomic<int> failed{0};
  on_each(2, [&](Communicator& c) {
    if (c.rank() == 1) return;
    std::vector<float> v{1};
    const auto failure = c.reduce(v, Reduction::max, deadline_in(0.05));
    failed += failure && failure->kind == RankFailure::Kind::timeout;
    failed += c.reduce(v, Reduction::max, deadline_in(1000)).has_value();
  });
  CHECK(failed == 2);
  CHECK(fake::state().aborts == 1);
}

TEST_CASE("an asynchronous error ends a wait at once", "[ranks]") {
  std::atomic<int> failed{0};
  on_each(2, [&](Communicator& c) {
    std::vector<float> v{1};
    if (c.rank() == 1) {
      std::lock_guard lock(fake::state().mutex);
      for (auto& [id, group] : fake::state().groups) group->lost = true;
      return;
    }
    const auto failure = c.reduce(v, Reduction::max, deadline_in(1000));
    failed += failure && failure->kind == RankFailure::Kind::lost;
  });
  CHECK(failed == 1);
  std::lock_guard lock(fake::state().mutex);
  fake::state().groups.clear();
}

TEST_CASE("ranks agree over NCCL", "[ranks]") {
  std::atomic<int> plans{0};
  on_each(3, [&](Communicator& c) {
    AgreementInput in;
    in.options.strategy = RankStrategy::shard;
    in.problems.resize(2);
    for (ProblemInput& p : in.problems) p.candidates = 7;
    Tasks tasks;
    tasks.work = [](const Work& work, Deadline) {
      Worked done;
      for (const Work::Item& item : work.items) {
        done.times.emplace_back();
        for (const std::size_t k : item.candidates)
          done.times.back().push_back(9 - static_cast<float>(k));
      }
      return done;
    };
    const Decision d = agree(c, in, tasks);
    plans += d.kind == Decision::Kind::plan && d.plan.choices[1].candidate == 6;
  });
  CHECK(plans == 3);
}

TEST_CASE("where there is no NCCL or no driver, it is said", "[ranks]") {
  const NcclProbe probe = open_nccl();
  CHECK((probe.table != nullptr) == probe.reason.empty());
}
