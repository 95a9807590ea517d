// The agreement on real threads, a real clock, and the communicator of threads.
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "job.hpp"
#include "kiln/communicators.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/ranks/drive.hpp"
#include "unit/runtime/waiting.hpp"

using namespace job;
using kiln::Communicator;
using kiln::RankOptions;
using kiln::RankStrategy;

namespace {

Worked even(const Work& work) {
  Worked done;
  for (const Work::Item& item : work.items) {
    done.times.emplace_back();
    for (const std::size_t c : item.candidates)
      done.times.back().push_back(10 - static_cast<float>(c));
  }
  return done;
}

struct Result {
  std::optional<Conclusion> conclusion;
  std::string log;
};

/// One thread per rank; each has its own input and work.
std::vector<Result> together(
    const std::vector<AgreementInput>& all,
    const std::function<Worked(int rank, const Work&, kiln::Deadline)>& work,
    const std::function<void(int rank)>& save = [](int) {}, std::atomic<int>* ended = nullptr) {
  auto ends = kiln::thread_communicators(static_cast<int>(all.size()));
  std::vector<Result> results(all.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < all.size(); ++r)
    threads.emplace_back([&, r] {
      const int rank = static_cast<int>(r);
      Tasks tasks;
      tasks.work = [&](const Work& w, kiln::Deadline d) { return work(rank, w, d); };
      tasks.save = [&](auto, const Plan&) { save(rank); };
      tasks.log = [&](kiln::LogLevel, std::string_view text) { results[r].log = text; };
      try {
        results[r].conclusion = agree(*ends[r], all[r], tasks);
      } catch (const kiln::UserError& e) {
        results[r].log = e.what();
      }
      if (ended) ++*ended;
    });
  for (auto& t : threads) t.join();
  return results;
}

}  // namespace

TEST_CASE("threads agree, whatever the strategy", "[ranks]") {
  for (const RankStrategy strategy :
       {RankStrategy::replicate, RankStrategy::shard, RankStrategy::leader})
    for (const bool lockstep : {false, true}) {
      RankOptions options;
      options.strategy = strategy;
      options.lockstep = lockstep && strategy == RankStrategy::replicate;
      auto all = inputs(4, 6, options, 3);
      for (auto& in : all) in.store = 9;
      std::atomic<int> saves{0};
      const auto results =
          together(all, [](int, const Work& w, auto) { return even(w); }, [&](int) { ++saves; });
      for (const Result& r : results) {
        REQUIRE(r.conclusion);
        CHECK(r.conclusion->kind == Conclusion::Kind::plan);
        CHECK(r.conclusion->digest == results[0].conclusion->digest);
        CHECK(r.conclusion->plan.picks[2].candidate == 5);
      }
      CHECK(saves == 1);
    }
}

TEST_CASE("what a rank throws while tuning reaches all as its reason", "[ranks]") {
  const auto results = together(inputs(3, 4), [](int rank, const Work& w, auto) {
    if (rank == 1) throw kiln::EnvironmentError("cuLaunchKernel: 719");
    return even(w);
  });
  for (const Result& r : results) {
    CHECK(r.conclusion->kind == Conclusion::Kind::defaults);
    CHECK(r.log.find("rank 1 failed: cuLaunchKernel: 719") != std::string::npos);
  }
}

TEST_CASE("a disk that is full costs the record, not the plan", "[ranks]") {
  auto all = inputs(3, 4);
  for (auto& in : all) in.store = 9;
  const auto results = together(
      all, [](int, const Work& w, auto) { return even(w); },
      [](int) { throw kiln::EnvironmentError("write: no space left on device (28)"); });
  for (const Result& r : results) CHECK(r.conclusion->kind == Conclusion::Kind::plan);
  CHECK(results[0].log.find("no space left") != std::string::npos);
}

TEST_CASE("a rank that stalls while tuning is named by all within the deadline", "[ranks]") {
  RankOptions options;
  options.first_seconds = 30;
  options.step_seconds = options.tune_seconds = kiln::test::patient(1);
  std::atomic<int> ended{0};
  const auto results = together(
      inputs(3, 4, options),
      [&](int rank, const Work& w, auto) {
        while (rank == 2 && ended < 2) std::this_thread::yield();  // until all others gave up
        return even(w);
      },
      [](int) {}, &ended);
  for (const Result& r : results) {
    CHECK(r.conclusion->kind == Conclusion::Kind::defaults);
    CHECK(r.conclusion->broken);
    CHECK(r.conclusion->why.ranks == std::vector<int>{2});
  }
}

TEST_CASE("a rank that refuses its input leaves nobody waiting", "[ranks]") {
  auto all = inputs(3, 4);
  all[1].options.step_seconds = -1;
  const auto results = together(all, [](int, const Work& w, auto) { return even(w); });
  CHECK_FALSE(results[1].conclusion);
  for (const std::size_t r : {0U, 2U}) {
    CHECK(results[r].conclusion->kind == Conclusion::Kind::defaults);
    CHECK(results[r].log.find("rank 1 gave up: tuning together: a limit is not") !=
          std::string::npos);
  }
}

namespace {

/// A caller's own, which is not written with care.
class Throwing : public Communicator {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 2; }
  Failure gather(std::span<const std::byte>, std::span<std::byte>, kiln::Deadline) override {
    throw 42;
  }
  Failure reduce(std::span<float>, kiln::Reduction, kiln::Deadline) override { throw 42; }
  Failure broadcast(std::span<std::byte>, int, kiln::Deadline) override { throw 42; }
  Failure split(int, std::unique_ptr<Communicator>&, kiln::Deadline) override { throw 42; }
  void abort(const kiln::RankFailure&) noexcept override { ++aborts; }

  int aborts = 0;
};

}  // namespace

TEST_CASE("whatever a communicator throws is a failure, and ends in the defaults", "[ranks]") {
  Throwing end;
  const Conclusion conclusion = agree(end, inputs(1, 2).front(), Tasks{});
  CHECK(conclusion.kind == Conclusion::Kind::defaults);
  CHECK(conclusion.broken);
  CHECK(conclusion.why.describe().find("the communicator failed") != std::string::npos);
  CHECK(end.aborts == 1);
}
