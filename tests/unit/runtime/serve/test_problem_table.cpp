#include <atomic>
#include <thread>

#include "kiln_test.hpp"
#include "runtime/serve/problem_table.hpp"

using namespace kiln;
using kiln::detail::Launchable;
using kiln::runtime::ProblemTable;

namespace {

Launchable entry(Values problem, std::int64_t config) {
  Launchable ready;
  ready.problem = std::move(problem);
  ready.config = {config};
  return ready;
}

}  // namespace

TEST_CASE("what is published is found, and nothing else", "[runtime][problem_table]") {
  ProblemTable table;
  CHECK(table.find(Values{1}) == nullptr);
  const Launchable& one = table.publish(entry({1}, 10));
  CHECK(table.find(Values{1}) == &one);
  CHECK(table.find(Values{2}) == nullptr);
  CHECK(table.find(Values{1, 0}) == nullptr);
  CHECK(table.find(Values{}) == nullptr);
  table.publish(entry({}, 20));
  REQUIRE(table.find(Values{}) != nullptr);
  CHECK(table.find(Values{})->config == Values{20});
}

TEST_CASE("replacement keeps what readers hold", "[runtime][problem_table]") {
  ProblemTable table;
  const Launchable& old = table.publish(entry({7, 7}, 1));
  for (int i = 0; i < 100; ++i) table.publish(entry({7, 7}, 2 + i));
  CHECK(table.find(Values{7, 7})->config == Values{101});
  CHECK(old.config == Values{1});
}

TEST_CASE("growth loses nothing", "[runtime][problem_table]") {
  ProblemTable table;
  for (std::int64_t i = 0; i < 5000; ++i) table.publish(entry({i, -i, i << 40}, i));
  for (std::int64_t i = 0; i < 5000; ++i) {
    const Launchable* found = table.find(Values{i, -i, i << 40});
    REQUIRE(found != nullptr);
    REQUIRE(found->config == Values{i});
  }
  CHECK(table.find(Values{5000, -5000, std::int64_t{5000} << 40}) == nullptr);
}

TEST_CASE("a problem that is not there is never mistaken for a new one",
          "[runtime][problem_table]") {
  // Readers ask for problems that nobody publishes, while the slots where these would be are taken.
  constexpr int kTables = 3000;
  std::vector<ProblemTable> tables(kTables);
  std::atomic<const ProblemTable*> current{&tables[0]};
  std::atomic<bool> done{false};
  std::atomic<int> mistaken{0};
  {
    std::vector<std::jthread> readers;
    for (int t = 0; t < 3; ++t)
      readers.emplace_back([&, t] {
        for (std::int64_t p = 1000 + t; !done; p = 1000 + (p + 3) % 64) {
          const Values absent{p};
          for (int i = 0; i < 20; ++i) mistaken += current.load()->find(absent) != nullptr;
        }
      });
    for (ProblemTable& table : tables) {
      current = &table;
      for (std::int64_t i = 0; i < 8; ++i) table.publish(entry({i}, i));
    }
    done = true;
  }
  CHECK(mistaken == 0);
}

TEST_CASE("eight threads find and publish", "[runtime][problem_table]") {
  constexpr std::int64_t kProblems = 2000;
  ProblemTable table;
  std::atomic<int> wrong{0}, lost{0};
  std::atomic<bool> go{false};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        while (!go) std::this_thread::yield();
        for (std::int64_t i = 0; i < kProblems; ++i) {
          const std::int64_t mine = (i * 7919 + t * 13) % kProblems;
          if (t < 3) {
            table.publish(entry({mine, mine}, mine));
            // What this thread published is there from now on.
            const Launchable* found = table.find(Values{mine, mine});
            if (!found) ++lost;
          }
          for (std::int64_t d = 0; d < 3; ++d) {
            const std::int64_t p = (mine + d * 31) % kProblems;
            const Launchable* found = table.find(Values{p, p});
            if (found && (found->problem != Values{p, p} || found->config != Values{p})) ++wrong;
          }
        }
      });
    go = true;
  }
  CHECK(wrong == 0);
  CHECK(lost == 0);
  for (std::int64_t i = 0; i < kProblems; ++i) CHECK(table.find(Values{i, i}) != nullptr);
}
