// When nothing that a reader may have found is in use any more.
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "findings.hpp"
#include "kiln_test.hpp"
#include "runtime/support/grace_period.hpp"

using namespace kiln;
using kiln::detail::ReadSection;
using kiln::runtime::GracePeriod;

TEST_CASE("a grace period waits for the sections that it finds, and for no later ones",
          "[runtime][grace_period]") {
  std::latch within(1), leave(1), left(1), within_again(1), end(1);
  std::jthread reader([&] {
    {
      ReadSection section;
      runtime::begin(section);
      {
        ReadSection nested;
        runtime::begin(nested);
      }
      within.count_down();
      leave.wait();
    }
    left.count_down();
    ReadSection later;
    runtime::begin(later);
    within_again.count_down();
    end.wait();
  });
  within.wait();
  GracePeriod first = GracePeriod::begin();
  CHECK_FALSE(first.over());
  CHECK_FALSE(first.over());
  leave.count_down();
  left.wait();
  within_again.wait();
  CHECK(first.over());
  GracePeriod second = GracePeriod::begin();
  CHECK_FALSE(second.over());
  end.count_down();
  reader.join();
  CHECK(second.over());
  CHECK(GracePeriod::begin().over());
}

TEST_CASE("a thread's own section counts, and a section may end early", "[runtime][grace_period]") {
  ReadSection section;
  runtime::begin(section);
  GracePeriod grace = GracePeriod::begin();
  CHECK_FALSE(grace.over());
  section.end();
  CHECK(grace.over());
  section.end();
  runtime::begin(section);
  CHECK_FALSE(GracePeriod::begin().over());
}

TEST_CASE("in a child only the sections of the thread that forked go on",
          "[runtime][grace_period]") {
  std::latch within(1), leave(1);
  std::jthread reader([&] {
    ReadSection section;
    runtime::begin(section);
    within.count_down();
    leave.wait();
  });
  within.wait();
  ReadSection own;
  runtime::begin(own);
  const pid_t child = fork();
  if (child == 0) {
    GracePeriod grace = GracePeriod::begin();
    const bool during = grace.over();
    own.end();
    _exit(during ? 2 : grace.over() ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) ? WEXITSTATUS(status) : -1) == 0);
  own.end();
  CHECK_FALSE(GracePeriod::begin().over());  // the parent's reader is still within
  leave.count_down();
}

TEST_CASE("readers never see what a writer has freed", "[runtime][grace_period][threads]") {
  constexpr int kValues = 20000;
  struct Value {
    explicit Value(int n) : number(n) {}
    ~Value() { number = -1; }
    int number;
  };
  std::atomic<Value*> current{new Value(0)};
  std::atomic<int> freed_seen{0};
  std::atomic<bool> over{false};
  int freed = 0;
  {
    std::vector<std::jthread> readers;
    for (int t = 0; t < 3; ++t)
      readers.emplace_back([&] {
        while (!over) {
          ReadSection section;
          runtime::begin(section);
          freed_seen += current.load(std::memory_order_seq_cst)->number < 0;
        }
      });
    std::vector<std::pair<GracePeriod, Value*>> waiting;
    for (int i = 1; i <= kValues; ++i) {
      Value* const old = current.exchange(new Value(i), std::memory_order_seq_cst);
      waiting.emplace_back(GracePeriod::begin(), old);
      std::erase_if(waiting, [&](auto& one) {
        if (!one.first.over()) return false;
        delete one.second;
        ++freed;
        return true;
      });
    }
    over = true;
    for (std::jthread& reader : readers) reader.join();
    for (auto& [grace, old] : waiting) {
      CHECK(grace.over());
      delete old;
    }
  }
  delete current.load();
  CHECK(freed_seen == 0);
  CHECK(freed > 0);
}
