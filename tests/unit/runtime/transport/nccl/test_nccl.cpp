// The NCCL communicator over a fake libnccl: how it asks, waits, fails and cleans up.
#include <atomic>
#include <barrier>
#include <cmath>
#include <functional>
#include <thread>

#include "fake_nccl_tables.hpp"
#include "kiln/communicators.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/ranks/drive.hpp"
#include "runtime/transport/nccl/nccl_communicator.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::runtime::ranks;

namespace {

std::shared_ptr<const CudaContext> context(const std::shared_ptr<const NcclTable>& table) {
  return std::make_shared<const CudaContext>(table->driver, 0);
}

std::unique_ptr<Communicator> make(Communicator& end, Deadline deadline) {
  const auto table = fake::table();
  return make_nccl(table, context(table), end.rank(), end.size(), carry_over(end, deadline),
                   deadline);
}

void on_each_end(int size, const std::function<void(Communicator&)>& body) {
  fake::renew();
  auto ends = thread_communicators(size);
  std::vector<std::thread> threads;
  for (auto& end : ends) threads.emplace_back([&] { body(*end); });
  for (auto& t : threads) t.join();
}

/// No rank begins before NCCL is ready on all.
void on_each(int size, const std::function<void(Communicator&)>& body) {
  std::barrier ready(size);
  on_each_end(size, [&](Communicator& end) {
    const auto comm = make(end, deadline_in(30));
    ready.arrive_and_wait();
    body(*comm);
  });
}

Communicator::Failure gather(Communicator& c, int mine, std::vector<int>& all, Deadline until) {
  all.assign(static_cast<std::size_t>(c.size()), -1);
  return c.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                  until);
}
Communicator::Failure broadcast(Communicator& c, int& told, int root, Deadline until) {
  return c.broadcast(std::as_writable_bytes(std::span(&told, 1)), root, until);
}

void check_nothing_is_left(int size) {
  CHECK(fake::state().allocations == 0);
  CHECK(fake::state().streams == 0);
  CHECK(fake::state().retained == 0);
  CHECK(fake::state().misuse == 0);
  CHECK(fake::state().finalized == size);
  CHECK(fake::state().destroyed == size);
  CHECK(fake::state().aborts == 0);
}

}  // namespace

TEST_CASE("the NCCL communicator gathers, reduces and broadcasts", "[ranks]") {
  std::atomic<int> good{0};
  on_each(3, [&](Communicator& c) {
    bool ok = c.size() == 3;
    std::vector<int> all;
    for (int round = 0; round < 20; ++round) {
      ok &= !gather(c, c.rank() * 10 + round, all, deadline_in(30));
      ok &= all == std::vector<int>{round, 10 + round, 20 + round};
      std::vector<float> v{static_cast<float>(c.rank()), HUGE_VALF};
      ok &= !c.reduce(v, Reduction::mean, deadline_in(30)) && v[0] == 1 && std::isinf(v[1]);
      v = {static_cast<float>(c.rank())};
      ok &= !c.reduce(v, Reduction::max, deadline_in(30)) && v[0] == 2;
      int told = c.rank() == 1 ? 7 : 0;
      ok &= !broadcast(c, told, 1, deadline_in(30)) && told == 7;
    }
    good += ok;
  });
  CHECK(good == 3);
  check_nothing_is_left(3);
}

TEST_CASE("a split of an NCCL communicator is one of its own, in the order of ranks", "[ranks]") {
  std::atomic<int> good{0};
  on_each(5, [&](Communicator& c) {
    std::unique_ptr<Communicator> part;
    bool ok = !c.split(c.rank() % 2, part, deadline_in(30)) && part;
    ok = ok && part->size() == (c.rank() % 2 ? 2 : 3) && part->rank() == c.rank() / 2;
    std::vector<int> all;
    ok = ok && !gather(*part, c.rank(), all, deadline_in(30));
    ok &= all == (c.rank() % 2 ? std::vector<int>{1, 3} : std::vector<int>{0, 2, 4});
    good += ok && !gather(c, 0, all, deadline_in(30));
  });
  CHECK(good == 5);
  check_nothing_is_left(10);
}

TEST_CASE("a negative group on one rank is a mismatch on all, and breaks nothing", "[ranks]") {
  std::atomic<int> good{0};
  on_each(3, [&](Communicator& c) {
    std::unique_ptr<Communicator> part;
    const auto failure = c.split(c.rank() == 1 ? -1 : 0, part, deadline_in(30));
    std::vector<int> all;
    good += failure && failure->kind == RankFailure::Kind::mismatch &&
            failure->ranks == std::vector<int>{1} && !part && !gather(c, 0, all, deadline_in(30));
  });
  CHECK(good == 3);
  check_nothing_is_left(3);
}

TEST_CASE("a part that breaks leaves the whole and the other part alone", "[ranks]") {
  std::atomic<int> good{0};
  on_each(4, [&](Communicator& c) {
    std::unique_ptr<Communicator> part;
    std::vector<int> all;
    bool ok = !c.split(c.rank() % 2, part, deadline_in(30));
    if (c.rank() == 1) part->abort({});
    if (c.rank() == 3) ok &= gather(*part, 1, all, deadline_in(0.05)).has_value();
    if (c.rank() % 2 == 0) ok &= !gather(*part, 1, all, deadline_in(30));
    part.reset();
    good += ok && !gather(c, 0, all, deadline_in(30));
  });
  CHECK(good == 4);
  CHECK(fake::state().aborts == 2);
  CHECK(fake::state().misuse == 0);
}

TEST_CASE("each call of NCCL that fails breaks the end, and it is aborted once", "[ranks]") {
  const std::string call =
      GENERATE("ncclAllGather", "ncclAllReduce", "ncclBroadcast", "ncclCommSplit",
               "ncclCommGetAsyncError", "cuMemAlloc", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
               "cuStreamQuery", "cuThreadExchangeStreamCaptureMode");
  CAPTURE(call);
  std::atomic<int> failed{0}, said{0}, again{0};
  std::atomic<bool> ready{false};
  on_each(2, [&](Communicator& c) {
    std::vector<int> all;
    if (c.rank() == 1) {  // there, until the other has failed
      if (call == "ncclCommSplit") (void)gather(c, 0, all, deadline_in(30));  // the groups
      while (!ready) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    {
      std::lock_guard lock(fake::state().mutex);
      fake::state().fail = call;
      fake::state().of_rank = 0;
    }
    std::vector<float> v{1};
    int told = 0;
    std::unique_ptr<Communicator> part;
    // The calls that need the other rank come to their deadlines, unless this is what fails.
    const Deadline soon = deadline_in(call == "cuMemcpyDtoHAsync" ? 0.1 : 30);
    Communicator::Failure failure;
    if (call == "ncclAllReduce")
      failure = c.reduce(v, Reduction::max, soon);
    else if (call == "ncclBroadcast")
      failure = broadcast(c, told, 0, soon);
    else if (call == "ncclCommSplit")
      failure = c.split(0, part, soon);
    else
      failure = gather(c, 1, all, soon);
    failed += failure.has_value();
    said += failure && (failure->kind == RankFailure::Kind::system || call == "cuMemcpyDtoHAsync");
    again += c.reduce(v, Reduction::max, deadline_in(1000)).has_value();
    std::lock_guard lock(fake::state().mutex);
    if (call != "cuMemcpyDtoHAsync") said += fake::state().last == call ? 0 : 100;
    fake::state().fail.clear();
    ready = true;
  });
  CHECK(failed == 1);
  CHECK(said == 1);
  CHECK(again == 1);
  CHECK(fake::state().aborts == 1);
  CHECK(fake::state().destroyed == 1);
  CHECK(fake::state().misuse == 0);
  CHECK(fake::state().streams == 0);
  CHECK(fake::state().allocations == 0);
}

TEST_CASE("a copy back that fails breaks the end", "[ranks]") {
  std::atomic<int> failed{0};
  on_each(1, [&](Communicator& c) {
    fake::state().fail = "cuMemcpyDtoHAsync";
    std::vector<float> v{1};
    const auto failure = c.reduce(v, Reduction::max, deadline_in(30));
    failed += failure && failure->kind == RankFailure::Kind::system;
    fake::state().fail.clear();
  });
  CHECK(failed == 1);
  CHECK(fake::state().aborts == 1);
}

TEST_CASE("each call of NCCL that stays in progress ends at the deadline", "[ranks]") {
  const std::string call =
      GENERATE("ncclAllGather", "ncclAllReduce", "ncclBroadcast", "ncclCommSplit");
  CAPTURE(call);
  std::atomic<int> failed{0};
  on_each(1, [&](Communicator& c) {
    fake::state().forever = call;
    std::vector<int> all;
    std::vector<float> v{1};
    int told = 0;
    std::unique_ptr<Communicator> part;
    const Deadline soon = deadline_in(0.05);
    const auto failure = call == "ncclAllGather"   ? gather(c, 1, all, soon)
                         : call == "ncclAllReduce" ? c.reduce(v, Reduction::max, soon)
                         : call == "ncclBroadcast" ? broadcast(c, told, 0, soon)
                                                   : c.split(0, part, soon);
    failed += failure && failure->kind == RankFailure::Kind::timeout &&
              failure->text.find(call) != std::string::npos;
  });
  CHECK(failed == 1);
  CHECK(fake::state().last == call);
  CHECK(fake::state().aborts == (call == "ncclCommSplit" ? 2 : 1));  // the part, too
  CHECK(fake::state().misuse == 0);
}

TEST_CASE("an NCCL communicator that cannot be made is aborted, and it is said why", "[ranks]") {
  const auto [call, forever] =
      GENERATE(std::pair{"ncclGetUniqueId", false}, std::pair{"ncclCommInitRankConfig", false},
               std::pair{"ncclCommInitRankConfig", true}, std::pair{"ncclCommGetAsyncError", false},
               std::pair{"cuStreamCreate", false});
  CAPTURE(call, forever);
  fake::renew();
  (forever ? fake::state().forever : fake::state().fail) = call;
  const auto table = fake::table();
  std::string said;
  try {
    make_nccl(table, context(table), 0, 1, [](auto) {}, deadline_in(forever ? 0.05 : 30));
  } catch (const EnvironmentError& error) {
    said = error.what();
  }
  CHECK_FALSE(said.empty());
  const bool made = std::string(call) == "ncclCommGetAsyncError" || forever ||
                    std::string(call) == "cuStreamCreate";
  CHECK(fake::state().aborts == (made ? 1 : 0));
  CHECK(fake::state().destroyed == 0);
  CHECK(fake::state().retained == 0);
}

TEST_CASE("rank 0's failure to make an id is everyone's, at once", "[ranks]") {
  std::atomic<int> said{0};
  on_each_end(3, [&](Communicator& end) {
    {
      std::lock_guard lock(fake::state().mutex);
      fake::state().fail = "ncclGetUniqueId";
    }
    try {
      make(end, deadline_in(1000));
    } catch (const EnvironmentError& error) {
      said += std::string(error.what()).find("rank 0") != std::string::npos;
    }
  });
  CHECK(said == 3);
}

TEST_CASE("a communicator whose others do not leave with it is aborted", "[ranks]") {
  const std::string how = GENERATE("forever", "fail");
  fake::renew();
  const auto table = fake::table();
  auto comm = make_nccl(table, context(table), 0, 1, [](auto) {}, deadline_in(30));
  if (how == "fail") {
    fake::state().fail = "ncclCommFinalize";
  } else {
    fake::state().forever = "ncclCommFinalize";
  }
  comm.reset();  // after 5 seconds, where it is in progress for ever
  CHECK(fake::state().last == "ncclCommFinalize");
  CHECK(fake::state().aborts == 1);
  CHECK(fake::state().destroyed == 0);
}

TEST_CASE("a rank that does not join costs the deadline, an abort, and nothing more", "[ranks]") {
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
  CHECK(fake::state().misuse == 0);
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
}

TEST_CASE("an abort from another thread ends a wait, and NCCL is not used after it", "[ranks]") {
  const bool waits_in_split = GENERATE(false, true);
  std::atomic<int> failed{0};
  on_each(2, [&](Communicator& c) {
    if (c.rank() == 1) return;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      c.abort({});
    });
    std::vector<float> v{1};
    std::unique_ptr<Communicator> part;
    const auto failure = waits_in_split ? c.split(0, part, deadline_in(1000))
                                        : c.reduce(v, Reduction::max, deadline_in(1000));
    failed += failure && failure->kind == RankFailure::Kind::aborted;
    other.join();
  });
  CHECK(failed == 1);
  CHECK(fake::state().aborts == 1);
  CHECK(fake::state().misuse == 0);
}

TEST_CASE("an engine's communicator is never destroyed, and aborted only when it is broken",
          "[ranks]") {
  const bool breaks = GENERATE(false, true);
  fake::renew();
  const auto table = fake::table();
  ncclUniqueId id{};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t engines = nullptr;
  fake::context = reinterpret_cast<CUcontext>(1);
  REQUIRE(table->GetUniqueId(&id) == ncclSuccess);
  REQUIRE(table->CommInitRankConfig(&engines, breaks ? 2 : 1, id, 0, &config) == ncclInProgress);
  {
    const auto c = adopt_nccl(table, context(table), engines, reinterpret_cast<CUstream>(5));
    std::vector<float> v{3};
    CHECK(c->reduce(v, Reduction::max, deadline_in(breaks ? 0.02 : 30)).has_value() == breaks);
  }
  fake::context = nullptr;
  CHECK(fake::state().destroyed == 0);
  CHECK(fake::state().finalized == 0);
  CHECK(fake::state().aborts == (breaks ? 1 : 0));
  CHECK(fake::state().streams == 0);
  CHECK(fake::state().retained == 0);  // the engine's context, not the primary one
}

TEST_CASE("a communicator outlives the driver", "[ranks]") {
  const bool broken = GENERATE(false, true);
  fake::renew();
  const auto table = fake::table();
  auto comm = make_nccl(table, context(table), 0, 1, [](auto) {}, deadline_in(30));
  std::vector<float> v{1};
  CHECK_FALSE(comm->reduce(v, Reduction::max, deadline_in(30)));
  fake::state().shut_down = true;
  if (broken) CHECK(comm->reduce(v, Reduction::max, deadline_in(30)).has_value());
  comm.reset();
  CHECK(fake::state().aborts == 0);  // NCCL would use a runtime that is no more
  CHECK(fake::state().finalized == 0);
}

TEST_CASE("sizes and groups that make no sense are refused without a call of NCCL", "[ranks]") {
  Communicator::Failure gathered, split, reduced;
  on_each(1, [&](Communicator& c) {
    std::vector<std::byte> mine(4), all(5);
    gathered = c.gather(mine, all, deadline_in(30));
    std::unique_ptr<Communicator> part;
    split = c.split(-1, part, deadline_in(30));
    std::vector<float> v;
    reduced = c.reduce(v, Reduction::max, deadline_in(30));
  });
  REQUIRE(gathered);
  CHECK(gathered->kind == RankFailure::Kind::mismatch);
  REQUIRE(split);
  CHECK(split->kind == RankFailure::Kind::mismatch);
  CHECK_FALSE(reduced);
  check_nothing_is_left(1);
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

TEST_CASE("where there is no NCCL or no driver, it is said on every rank", "[ranks]") {
  const NcclProbe probe = open_nccl();
  CHECK((probe.table != nullptr) == probe.reason.empty());
  if (probe.table) return;
  std::atomic<int> said{0};
  on_each_end(2, [&](Communicator& end) {
    try {
      nccl_communicator(end, deadline_in(30), 0);
    } catch (const EnvironmentError& error) {
      said += std::string(error.what()).find("rank 0") != std::string::npos;
    }
  });
  CHECK(said == 2);
  CHECK_THROWS_AS(nccl_communicator(reinterpret_cast<void*>(8), {}), EnvironmentError);
  CHECK_THROWS_AS(nccl_communicator("/tmp/no-such-meeting", 0, 1, deadline_in(30)),
                  EnvironmentError);
}

TEST_CASE("NCCL's factories refuse what makes no sense", "[ranks]") {
  CHECK_THROWS_AS(nccl_communicator(nullptr, {}), UserError);
  CHECK_THROWS_AS(nccl_communicator("file", 2, 2, deadline_in(30)), UserError);
  CHECK_THROWS_AS(nccl_communicator("file", -1, 2, deadline_in(30)), UserError);
  CHECK_THROWS_AS(nccl_communicator("file", 0, 0, deadline_in(30)), UserError);
  CHECK_THROWS_AS(nccl_communicator("", 0, 1, deadline_in(30)), UserError);
}

TEST_CASE("NCCL's version is told without a GPU", "[ranks]") {
  CHECK(nccl_version_text(22809) == "2.28.9");
  CHECK(nccl_version_text(23000) == "2.30.0");
  CHECK(nccl_version_text(2708) == "2.7.8");
  const auto version = nccl_version();
  if (version) CHECK(version->substr(0, 2) == "2.");
}
