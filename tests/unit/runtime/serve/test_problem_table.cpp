#include <atomic>
#include <thread>

#include "kiln_test.hpp"
#include "runtime/serve/problem_table.hpp"
#include "unit/runtime/allocations.hpp"

using namespace kiln;
using kiln::detail::Launchable;
using kiln::detail::Ready;
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
  const Ready one = table.publish(entry({1}, 10));
  CHECK(table.find(Values{1}) == one);
  CHECK(table.find(Values{2}) == nullptr);
  CHECK(table.find(Values{1, 0}) == nullptr);
  CHECK(table.find(Values{}) == nullptr);
  table.publish(entry({}, 20));
  REQUIRE(table.find(Values{}) != nullptr);
  CHECK(table.find(Values{})->config == Values{20});
}

TEST_CASE("replacement keeps what readers hold", "[runtime][problem_table]") {
  ProblemTable table;
  const Ready old = table.publish(entry({7, 7}, 1));
  for (int i = 0; i < 100; ++i) table.publish(entry({7, 7}, 2 + i));
  CHECK(table.find(Values{7, 7})->config == Values{101});
  CHECK(old->config == Values{1});
}

TEST_CASE("growth loses nothing", "[runtime][problem_table]") {
  ProblemTable table;
  for (std::int64_t i = 0; i < 5000; ++i) table.publish(entry({i, -i, i << 40}, i));
  for (std::int64_t i = 0; i < 5000; ++i) {
    const Ready found = table.find(Values{i, -i, i << 40});
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
            const Ready found = table.find(Values{mine, mine});
            if (!found) ++lost;
          }
          for (std::int64_t d = 0; d < 3; ++d) {
            const std::int64_t p = (mine + d * 31) % kProblems;
            const Ready found = table.find(Values{p, p});
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

TEST_CASE("what is removed or replaced is freed when no section and no owner has it",
          "[runtime][problem_table]") {
  ProblemTable table(ProblemTable::Replaced::leaves);
  const auto owned = [](std::int64_t problem, std::int64_t config,
                        std::weak_ptr<const void>& watch) {
    Launchable ready = entry({problem}, config);
    ready.owner = std::make_shared<int>(0);
    ready.loaded = ready.owner.get();
    watch = ready.owner;
    return ready;
  };
  std::weak_ptr<const void> first, second, third;
  table.publish(owned(1, 1, first));
  {
    kiln::detail::ReadSection section;
    const Launchable* const found = table.find(Values{1}, section);
    table.publish(owned(1, 2, second));
    CHECK(table.reclaim() == nullptr);
    CHECK(table.waiting());
    CHECK(found->config == Values{1});
  }
  CHECK(table.reclaim() != nullptr);
  CHECK(first.expired());
  CHECK_FALSE(table.waiting());
  {
    const Ready held = table.find(Values{1});
    CHECK(table.use(Values{1}) == ProblemTable::Use::owned);
    table.remove({{1}});
    CHECK(table.find(Values{1}) == nullptr);
    table.reclaim();
    CHECK(held->config == Values{2});
    CHECK_FALSE(second.expired());
  }
  CHECK(second.expired());
  table.publish(owned(3, 3, third));
  CHECK(table.use(Values{3}) == ProblemTable::Use::none);
  CHECK(table.find(Values{3})->config == Values{3});
  CHECK(table.use(Values{3}) == ProblemTable::Use::found);
  CHECK(table.use(Values{3}) == ProblemTable::Use::none);
  CHECK(table.use(Values{4}) == ProblemTable::Use::none);
}

TEST_CASE("look-ups race with what leaves", "[runtime][problem_table]") {
  // An owner says whether it has ended while a section or an owner still had it.
  struct Owner {
    Owner(std::int64_t its_config, std::atomic<std::size_t>& among)
        : config(its_config), ended(among) {}
    ~Owner() {
      config = -1;
      ++ended;
    }
    std::int64_t config;
    std::atomic<std::size_t>& ended;
  };
  constexpr std::int64_t kProblems = 12;
  ProblemTable table(ProblemTable::Replaced::leaves);
  std::atomic<int> wrong{0}, found{0};
  std::atomic<bool> over{false};
  std::atomic<std::size_t> ended = 0;  // on any thread
  {
    std::vector<std::jthread> readers;
    for (int t = 0; t < 4; ++t)
      readers.emplace_back([&, t] {
        for (std::int64_t i = t; !over; ++i) {
          const Values problem{i % kProblems};
          const auto check = [&](const Launchable& ready) {
            ++found;
            wrong += ready.problem != problem ||
                     static_cast<const Owner*>(ready.loaded)->config != ready.config[0];
          };
          if (i % 3 == 0) {
            if (const Ready ready = table.find(problem)) check(*ready);
          } else {
            kiln::detail::ReadSection section;
            if (const Launchable* ready = table.find(problem, section)) check(*ready);
          }
        }
      });
    for (std::int64_t i = 0; i < 20000 || found < 1000; ++i) {
      Launchable ready = entry({i * 7 % kProblems}, i);
      ready.owner = std::make_shared<Owner>(i, ended);
      ready.loaded = ready.owner.get();
      table.publish(std::move(ready));
      if (i % 5 == 0) table.remove({{i % kProblems}, {(i + 1) % kProblems}});
      table.reclaim();
    }
    over = true;
  }
  table.reclaim();
  CHECK(wrong == 0);
  CHECK(ended > 10000);
}

TEST_CASE("all that was published is listed by problem", "[runtime][problem_table]") {
  ProblemTable table;
  for (std::int64_t i = 0; i < 64; ++i) table.publish(entry({i * 37 % 64}, i));
  table.publish(entry({5}, 100));
  table.publish(entry({5}, 101));
  std::vector<std::int64_t> problems, of_five;
  for (const Ready& ready : table.all()) {
    problems.push_back(ready->problem[0]);
    if (ready->problem[0] == 5) of_five.push_back(ready->config[0]);
  }
  CHECK(problems.size() == 66);
  CHECK(std::ranges::is_sorted(problems));
  REQUIRE(of_five.size() == 3);
  CHECK(of_five[1] == 100);
  CHECK(of_five[2] == 101);
}

TEST_CASE("where memory runs out, what can be found stays, and the table goes on",
          "[runtime][problem_table]") {
  constexpr std::int64_t kProblems = 8;  // one more, and the slots grow
  bool done = false;
  int failures = 0;
  for (std::size_t more = 0; !done; ++more) {
    ProblemTable table(ProblemTable::Replaced::leaves);
    std::vector<std::weak_ptr<const void>> first;
    const auto owned = [](std::int64_t problem, std::int64_t config) {
      Launchable ready = entry({problem}, config);
      ready.owner = std::make_shared<int>(0);
      return ready;
    };
    for (std::int64_t i = 0; i < kProblems; ++i) {
      Launchable ready = owned(i, 1);
      first.push_back(ready.owner);
      table.publish(std::move(ready));
    }
    Launchable replacing = owned(0, 2), another = owned(kProblems, 2);
    const std::vector<Values> leaving{{1}, {2}};
    bool replaced = false, removed = false;
    try {
      const kiln::test::OutOfMemory after(more);
      table.publish(std::move(replacing));
      replaced = true;
      table.publish(std::move(another));
      table.remove(leaving);
      removed = true;
      table.reclaim();
      done = true;
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    CHECK(first[0].expired() <= replaced);
    CHECK(first[1].expired() <= removed);
    table.reclaim();
    CHECK_FALSE(table.waiting());
    CHECK(first[0].expired() == replaced);
    CHECK(first[1].expired() == removed);
    std::size_t found = 0;
    for (std::int64_t i = 0; i <= kProblems; ++i)
      if (const Ready ready = table.find(Values{i})) {
        ++found;
        CHECK(ready->config == Values{i == kProblems || (i == 0 && replaced) ? 2 : 1});
      }
    CHECK(table.all().size() == found);
    CHECK((table.find(Values{1}) == nullptr) == removed);
    table.publish(entry({100}, 3));
    CHECK(table.find(Values{100}) != nullptr);
  }
  CHECK(failures > 5);
}
