#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <functional>
#include <thread>

#include "kiln/communicators.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using FailureKind = RankFailure::Kind;

namespace {

using Ends = std::vector<std::unique_ptr<Communicator>>;

void on_each(Ends& ends, const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& end : ends)
    threads.emplace_back([&] {
      if (end) body(*end);
    });
  for (auto& t : threads) t.join();
}

}  // namespace

TEST_CASE("threads gather, reduce and broadcast", "[ranks]") {
  for (const int size : {1, 2, 5}) {
    Ends ends = thread_communicators(size);
    std::atomic<int> good{0};
    on_each(ends, [&](Communicator& c) {
      bool ok = true;
      for (int round = 0; round < 50; ++round) {
        const int mine = c.rank() * 100 + round;
        std::vector<int> all(static_cast<std::size_t>(size));
        ok &= !c.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                        deadline_in(30));
        for (int r = 0; r < size; ++r) ok &= all[static_cast<std::size_t>(r)] == r * 100 + round;
        std::vector<float> values{static_cast<float>(c.rank()), 1, HUGE_VALF};
        ok &= !c.reduce(values, Reduction::max, deadline_in(30));
        ok &= values[0] == static_cast<float>(size - 1) && std::isinf(values[2]);
        values = {static_cast<float>(c.rank()), 1};
        ok &= !c.reduce(values, Reduction::mean, deadline_in(30));
        ok &= values[0] == static_cast<float>(size - 1) / 2 && values[1] == 1;
        values = {static_cast<float>(c.rank())};
        ok &= !c.reduce(values, Reduction::sum, deadline_in(30));
        ok &= values[0] == static_cast<float>(size * (size - 1) / 2);
        int told = c.rank() == size - 1 ? 42 + round : 0;
        ok &= !c.broadcast(std::as_writable_bytes(std::span(&told, 1)), size - 1, deadline_in(30));
        ok &= told == 42 + round;
        ok &= !c.gather({}, {}, deadline_in(30));  // nothing is a size, too
      }
      good += ok;
    });
    CHECK(good == size);
  }
  CHECK_THROWS_AS(thread_communicators(0), UserError);
}

TEST_CASE("a late rank is named, and the end is broken from then on", "[ranks]") {
  Ends ends = thread_communicators(3);
  std::atomic<int> named{0};
  std::barrier both(2);
  on_each(ends, [&](Communicator& c) {
    if (c.rank() == 1) return;
    std::vector<float> one{1};
    both.arrive_and_wait();
    const auto failure = c.reduce(one, Reduction::max, deadline_in(kiln::test::patient(0.5)));
    named +=
        failure && failure->kind == FailureKind::timeout && failure->ranks == std::vector<int>{1};
    named += c.reduce(one, Reduction::max, deadline_in(1000)).has_value();
  });
  CHECK(named == 4);
  // It comes later: the others will not be there again.
  std::vector<float> one{1};
  ends[1]->abort({});
  CHECK(ends[1]->reduce(one, Reduction::max, deadline_in(1000)).has_value());
}

TEST_CASE("a call that comes after its deadline joins nothing", "[ranks]") {
  Ends ends = thread_communicators(2);
  std::vector<float> one{1};
  const auto away = ends[1]->reduce(one, Reduction::max, deadline_in(-1));
  CHECK(away->ranks == std::vector<int>{1});
  CHECK(ends[0]->reduce(one, Reduction::max, deadline_in(0.02))->ranks == std::vector<int>{1});
}

TEST_CASE("an abort wakes everyone with its reason", "[ranks]") {
  Ends ends = thread_communicators(4);
  std::atomic<int> told{0};
  on_each(ends, [&](Communicator& c) {
    std::vector<float> one{1};
    if (c.rank() == 2) return c.abort({FailureKind::system, {}, "out of memory"});
    const auto failure = c.reduce(one, Reduction::max, deadline_in(1000));
    told += failure && failure->kind == FailureKind::aborted &&
            failure->ranks == std::vector<int>{2} &&
            failure->describe() == "rank 2 gave up: out of memory";
  });
  CHECK(told == 3);
}

TEST_CASE("an abort on account of another rank says so", "[ranks]") {
  Ends ends = thread_communicators(3);
  ends[2]->abort({FailureKind::timeout, {1}, "gather was not joined in time"});
  std::vector<float> one{1};
  const auto failure = ends[0]->reduce(one, Reduction::max, deadline_in(1000));
  CHECK(failure->describe() == "rank 1 is late: gather was not joined in time");
}

TEST_CASE("an end that is destroyed is gone at once", "[ranks]") {
  Ends ends = thread_communicators(3);
  ends[0].reset();
  std::atomic<int> told{0};
  on_each(ends, [&](Communicator& c) {
    std::vector<float> one{1};
    const auto failure = c.reduce(one, Reduction::max, deadline_in(1000));
    told += failure && failure->kind == FailureKind::lost && failure->ranks == std::vector<int>{0};
  });
  CHECK(told == 2);
}

TEST_CASE("a call of another kind or size breaks the ends of all, which hear of it at once",
          "[ranks]") {
  Ends ends = thread_communicators(3);
  std::vector<Communicator::Failure> told(3), later(3);
  on_each(ends, [&](Communicator& c) {
    const auto rank = static_cast<std::size_t>(c.rank());
    std::vector<float> values(rank == 2 ? 2 : 1);
    told[rank] = c.reduce(values, Reduction::max, deadline_in(20));
    later[rank] = c.reduce(values, Reduction::max, deadline_in(20));
  });
  for (const auto* failures : {&told, &later})
    for (const Communicator::Failure& failure : *failures) {
      REQUIRE(failure);
      CHECK(failure->kind == FailureKind::mismatch);
      CHECK(failure->ranks == told[0]->ranks);
    }
}

TEST_CASE("groups of a split fail on their own", "[ranks]") {
  Ends ends = thread_communicators(5);
  std::atomic<int> good{0};
  on_each(ends, [&](Communicator& c) {
    std::unique_ptr<Communicator> part;
    if (c.split(c.rank() % 2, part, deadline_in(30))) return;
    good += part->size() == (c.rank() % 2 ? 2 : 3) && part->rank() == c.rank() / 2;
    std::vector<float> value{static_cast<float>(c.rank())};
    if (c.rank() % 2) {  // 1 and 3: one gives up
      if (c.rank() == 3)
        part->abort({FailureKind::system, {}, "enough"});
      else
        good += part->reduce(value, Reduction::max, deadline_in(1000)).has_value();
    } else {
      good += !part->reduce(value, Reduction::sum, deadline_in(30)) && value[0] == 6;
    }
    std::vector<float> again{1};  // the whole is not affected
    good += !c.reduce(again, Reduction::sum, deadline_in(30)) && again[0] == 5;
  });
  CHECK(good == 5 + 1 + 3 + 5);
}

TEST_CASE("the first proposal is everyone's answer, on broken ends, too", "[ranks]") {
  for (int round = 0; round < 50; ++round) {
    Ends ends = thread_communicators(4);
    const Digest question = sha256("q");
    std::atomic<int> yes{0};
    on_each(ends, [&](Communicator& c) {
      if (c.rank() == 0) c.abort({});
      yes += *c.settle(question, c.rank() % 2 == 0, deadline_in(30));
    });
    CHECK((yes == 0 || yes == 4));
    CHECK(*ends[1]->settle(question, yes == 0, deadline_in(1)) == (yes == 4));
    CHECK(*ends[1]->settle(sha256("other"), yes == 0, deadline_in(1)) == (yes == 0));
  }
}

TEST_CASE("answers that all ranks have had are not remembered for ever", "[ranks]") {
  auto ends = thread_communicators(2);
  const auto ask = [&](int rank, const std::string& what, bool proposal) {
    return *ends[static_cast<std::size_t>(rank)]->settle(sha256(what), proposal, deadline_in(1));
  };
  CHECK(ask(0, "awaited", true));
  CHECK(ask(0, "first", true));
  CHECK(ask(1, "first", false));
  for (int i = 0; i < 1000; ++i)
    for (const int rank : {0, 1}) ask(rank, std::to_string(i), true);
  CHECK_FALSE(ask(1, "first", false));
  // One rank is yet to ask for this one.
  CHECK(ask(1, "awaited", false));
}

TEST_CASE("failures read well", "[ranks]") {
  CHECK(RankFailure{FailureKind::timeout, {3}, "x"}.describe() == "rank 3 is late: x");
  CHECK(RankFailure{FailureKind::lost, {1, 2}, ""}.describe() == "ranks 1 and 2 are gone");
  CHECK(RankFailure{FailureKind::mismatch, {1, 2, 4}, "y"}.describe() ==
        "ranks 1, 2 and 4 differ: y");
  CHECK(RankFailure{FailureKind::timeout, {}, "z"}.describe() == "a rank is late: z");
  std::vector<int> many(100);
  CHECK(RankFailure{FailureKind::aborted, many, ""}.describe() ==
        "ranks 0, 0, 0, 0, 0, 0, 0, 0 and 92 more gave up");
}

TEST_CASE("a negative group on one rank is a mismatch on all threads", "[ranks]") {
  Ends ends = thread_communicators(3);
  std::atomic<int> good{0};
  on_each(ends, [&](Communicator& c) {
    std::unique_ptr<Communicator> part;
    const auto failure = c.split(c.rank() == 1 ? -1 : 0, part, deadline_in(30));
    good += failure && failure->kind == FailureKind::mismatch &&
            failure->ranks == std::vector<int>{1} && !part && !c.split(0, part, deadline_in(30)) &&
            part->size() == 3;
  });
  CHECK(good == 3);
}
