// The turn to tune where it is lent to threads that a stalled tuning may wait for.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "kiln_test.hpp"
#include "runtime/tune/tuning_turn.hpp"

using namespace std::chrono_literals;
using kiln::runtime::Clock;
using kiln::runtime::TimeLimit;
using kiln::runtime::TuningTurn;

namespace {

constexpr auto kLent = TuningTurn::Kind::lent;

/// Whether another thread gets the turn within `seconds`, and what it does then.
bool gets(TuningTurn& turn, double seconds, const std::function<void()>& then = [] {}) {
  bool has = false;
  std::jthread([&] {
    const auto hold = turn.take(TimeLimit(seconds, Clock::now()));
    has = static_cast<bool>(hold);
    if (has) then();
  }).join();
  return has;
}

double patience() { return std::chrono::duration<double>(TuningTurn::kPatience).count(); }

}  // namespace

TEST_CASE("a turn is lent where its work takes too long, and comes back", "[runtime][turn]") {
  TuningTurn turn;
  const auto mine = turn.take({}, {}, kLent);
  CHECK(turn.begin_work());
  CHECK_FALSE(gets(turn, patience() / 4));
  CHECK(turn.end_work());
  CHECK(turn.begin_work());
  CHECK(gets(turn, 10 * patience()));
  CHECK(turn.mine());
  CHECK_FALSE(turn.end_work());
  CHECK(turn.begin_work());
  CHECK(turn.end_work());
}

TEST_CASE("a turn that is kept is never lent, not even inside of one that is", "[runtime][turn]") {
  TuningTurn turn;
  {
    const auto lent = turn.take({}, {}, kLent);
    const auto kept = turn.take();
    CHECK_FALSE(gets(turn, 1.2 * patience()));
    CHECK(turn.begin_work());  // none of its business
    CHECK(turn.end_work());
  }
  const auto kept = turn.take();
  CHECK_FALSE(gets(turn, 1.2 * patience()));
}

TEST_CASE("work waits until the turn is back, or the deadline", "[runtime][turn]") {
  TuningTurn turn;
  auto mine = turn.take({}, {}, kLent);
  std::atomic<bool> has = false, give = false, gave = false;
  std::jthread other([&] {
    const auto hold = turn.take();
    has = true;
    while (!give) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    gave = true;
  });
  while (!has) std::this_thread::yield();
  CHECK_FALSE(turn.mine());
  CHECK_FALSE(turn.begin_work(TimeLimit(1e-3, Clock::now())));
  std::stop_source stop;
  stop.request_stop();
  CHECK_FALSE(turn.begin_work({}, stop.get_token()));
  SECTION("back") {
    give = true;
    CHECK(turn.begin_work());
    CHECK(gave);
    CHECK(turn.end_work());
  }
  SECTION("given up while it is lent") {
    mine = {};
    give = true;
    other.join();
    CHECK(gets(turn, 1e-3));
  }
}

TEST_CASE("a turn whose holder wants it back is not lent again", "[runtime][turn]") {
  TuningTurn turn;
  const auto mine = turn.take({}, {}, kLent);
  std::atomic<int> others = 0;
  std::atomic<bool> is_asked_for = false;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      const auto hold = turn.take();
      ++others;
      while (!is_asked_for) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(300ms);
    });
  while (others == 0) std::this_thread::yield();
  is_asked_for = true;
  CHECK(turn.begin_work());
  CHECK(others == 1);
  CHECK(turn.end_work());
}

#ifndef __SANITIZE_THREAD__  // TSan ends a fork of many threads that starts one
TEST_CASE("a fork has the turn that other threads of its parent hold", "[runtime][turn]") {
  TuningTurn turn;
  std::atomic<bool> has = false, over = false;
  std::jthread other([&] {
    const auto hold = turn.take();
    has = true;
    while (!over) std::this_thread::yield();
  });
  while (!has) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    bool right = !turn.is_anothers();
    // The system may give it the id of a thread that is not here.
    std::thread([&] { right = right && turn.take(); }).join();
    right = right && turn.take();
    right = right && !turn.is_anothers();
    {
      const auto mine = turn.take();
      right = right && turn.mine();
      std::thread([&] { right = right && !turn.try_take(); }).join();
    }
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(turn.is_anothers());
  over = true;
}
#endif
