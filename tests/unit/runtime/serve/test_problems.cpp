// What launches of a problem get while it is made, stood in for, chosen, missing, by many threads.
#include <array>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "kiln/detail/key_builder.hpp"
#include "kiln_test.hpp"
#include "runtime/serve/problems.hpp"
#include "unit/runtime/allocations.hpp"

using namespace kiln;
using kiln::detail::Launchable;
using kiln::detail::Ready;
using kiln::runtime::Problems;
using kiln::runtime::ProblemState;
using kiln::runtime::Standing;

namespace {

Launchable launchable_of(const Values& problem, std::int64_t config) {
  Launchable ready;
  ready.problem = problem;
  ready.config = {config};
  return ready;
}

Missing missing_of(const std::string& instance) {
  Missing missing;
  missing.instance = instance;
  return missing;
}

const Values kProblem{7, 7};

Problems::Work publishes(std::int64_t config) {
  return [config] { return launchable_of(kProblem, config); };
}
Problems::Work misses() {
  return [] { return missing_of("k"); };
}
Problems::Work fails() {
  return []() -> Problems::Made { throw std::runtime_error("no"); };
}
Problems::Load loads(std::int64_t config) {
  return [config] { return launchable_of(kProblem, config); };
}

Ready kernel_of(const Problems::Outcome& outcome) {
  const auto* ready = std::get_if<Ready>(&outcome);
  return ready ? *ready : nullptr;
}

}  // namespace

TEST_CASE("what was made is found, without an allocation, and not made again",
          "[runtime][problems]") {
  Problems problems;
  CHECK(problems.find(kProblem) == nullptr);
  CHECK(problems.state(kProblem) == ProblemState::unknown);
  const Ready made = kernel_of(problems.make(kProblem, publishes(1)));
  REQUIRE(made);
  CHECK(made->config == Values{1});
  CHECK(problems.state(kProblem) == ProblemState::in_use);
  const std::size_t before = test::allocations();
  bool same = true;
  for (int i = 0; i < 1000; ++i) {
    same = same && problems.find(kProblem) == made;
    same = same && problems.served(kProblem, Standing::meanwhile) == made;
  }
  CHECK(test::allocations() == before);
  CHECK(same);
  CHECK(kernel_of(problems.make(kProblem, fails())) == made);
  CHECK(kernel_of(problems.try_make(kProblem, fails()).value()) == made);
  CHECK(problems.find(Values{7}) == nullptr);

  SECTION("unless it is to be made in any case") {
    const auto outcome = problems.make(kProblem, publishes(2), Problems::If::always);
    CHECK(kernel_of(outcome)->config == Values{2});
    CHECK(problems.find(kProblem) == kernel_of(outcome));
    CHECK(made->config == Values{1});  // is still there
  }
  SECTION("what comes to the same config is the same launchable") {
    CHECK(kernel_of(problems.make(kProblem, publishes(1), Problems::If::always)) == made);
    CHECK(problems.choose(launchable_of(kProblem, 1)) == made);
  }
  SECTION("what is in use outlives a making without a launchable") {
    CHECK_THROWS_AS(problems.make(kProblem, fails(), Problems::If::always), std::runtime_error);
    CHECK(kernel_of(problems.make(kProblem, misses(), Problems::If::always)) == made);
    CHECK_FALSE(problems.missing(kProblem));
    CHECK(problems.find(kProblem) == made);
    CHECK(problems.state(kProblem) == ProblemState::in_use);
  }
}

TEST_CASE("a stand-in is served, and never taken for what is in use", "[runtime][problems]") {
  Problems problems;
  const auto default_of = [&](std::int64_t config) {
    return std::get<Ready>(problems.stand_in(kProblem, Standing::meanwhile, loads(config)));
  };
  const Ready first = default_of(1);
  CHECK(problems.find(kProblem) == nullptr);
  CHECK(problems.served(kProblem, Standing::meanwhile) == first);
  CHECK(problems.served(kProblem, Standing::best_known) == nullptr);
  CHECK(problems.state(kProblem) == ProblemState::on_stand_in);
  CHECK(default_of(2) == first);  // loaded once

  const Ready known = std::get<Ready>(problems.stand_in(kProblem, Standing::best_known, loads(3)));
  CHECK(known->config == Values{3});
  CHECK(problems.find(kProblem) == nullptr);
  CHECK(default_of(4) == known);
  CHECK(first->config == Values{1});

  SECTION("one that is not there changes nothing") {
    Problems others;
    const Problems::Load lacking = [] { return missing_of("k"); };
    CHECK(std::get<Missing>(others.stand_in(kProblem, Standing::best_known, lacking)).instance ==
          "k");
    CHECK(others.state(kProblem) == ProblemState::unknown);
  }
  SECTION("it stays when a making fails, misses or leaves it unmade") {
    CHECK_THROWS_AS(problems.make(kProblem, fails()), std::runtime_error);
    CHECK(problems.state(kProblem) == ProblemState::on_stand_in);
    const auto outcome = problems.make(kProblem, [] { return Problems::Unmade{}; });
    CHECK(std::holds_alternative<Problems::Unmade>(outcome));
    CHECK(problems.state(kProblem) == ProblemState::on_stand_in);
    problems.make(kProblem, misses());
    CHECK(problems.state(kProblem) == ProblemState::missing_on_stand_in);
    CHECK(problems.served(kProblem, Standing::best_known) == known);
    CHECK(problems.find(kProblem) == nullptr);
  }
  SECTION("what is in use takes its place, also while another one is loaded") {
    Ready chosen = nullptr;
    Problems others;
    const auto standing_in = others.stand_in(kProblem, Standing::best_known, [&] {
      chosen = others.choose(launchable_of(kProblem, 8));
      return launchable_of(kProblem, 2);
    });
    CHECK(std::get<Ready>(standing_in) == chosen);
    CHECK(others.find(kProblem) == chosen);
    const Ready made = kernel_of(problems.make(kProblem, publishes(8)));
    REQUIRE(made);
    CHECK(problems.find(kProblem) == made);
    CHECK(default_of(9) == made);
  }
}

TEST_CASE("what is missing is remembered until it is made", "[runtime][problems]") {
  Problems problems;
  const auto outcome = problems.make(kProblem, misses());
  REQUIRE(std::holds_alternative<Missing>(outcome));
  CHECK(problems.state(kProblem) == ProblemState::missing);
  REQUIRE(problems.missing(kProblem));
  CHECK(problems.missing(kProblem)->instance == "k");
  CHECK_FALSE(problems.missing(Values{8}));
  SECTION("made") { CHECK(kernel_of(problems.make(kProblem, publishes(1)))); }
  SECTION("chosen") { problems.choose(launchable_of(kProblem, 1)); }
  SECTION("failed") {
    CHECK_THROWS_AS(problems.make(kProblem, fails()), std::runtime_error);
    CHECK(problems.state(kProblem) == ProblemState::failed);
  }
  CHECK_FALSE(problems.missing(kProblem));
}

TEST_CASE("what was chosen while a problem was made is what its launches get",
          "[runtime][problems]") {
  Problems problems;
  Ready chosen = nullptr;
  const auto choosing = [&](const Problems::Work& then) -> Problems::Work {
    return [&problems, &chosen, then] {
      CHECK(problems.state(kProblem) == ProblemState::being_made);
      chosen = problems.choose(launchable_of(kProblem, 5));
      CHECK(problems.state(kProblem) == ProblemState::being_remade);
      CHECK(problems.find(kProblem) == chosen);
      return then();
    };
  };
  SECTION("and the making misses") {
    CHECK(kernel_of(problems.make(kProblem, choosing(misses()))) == chosen);
    CHECK_FALSE(problems.missing(kProblem));
  }
  SECTION("and the making leaves it unmade") {
    const auto leaves_unmade = []() -> Problems::Made { return Problems::Unmade{}; };
    CHECK(kernel_of(problems.make(kProblem, choosing(leaves_unmade))) == chosen);
  }
  SECTION("and the making fails") {
    CHECK(kernel_of(problems.make(kProblem, choosing(fails()))) == chosen);
  }
  SECTION("and what was asked for whatever is in use fails") {
    CHECK_THROWS_AS(problems.make(kProblem, choosing(fails()), Problems::If::always),
                    std::runtime_error);
  }
  SECTION("and the making comes to something else") {
    CHECK(kernel_of(problems.make(kProblem, choosing(publishes(6)))) == chosen);
  }
  SECTION("and the making comes to the same") {
    CHECK(kernel_of(problems.make(kProblem, choosing(publishes(5)))) == chosen);
  }
  CHECK(problems.find(kProblem) == chosen);
  CHECK(problems.state(kProblem) == ProblemState::in_use);
}

TEST_CASE("one thread makes, others wait or go on", "[runtime][problems]") {
  Problems problems;
  const Ready old = problems.choose(launchable_of(kProblem, 1));
  std::atomic<bool> inside{false}, go{false};
  std::atomic<int> works{0};
  const Problems::Work slow = [&] {
    ++works;
    inside = true;
    while (!go) std::this_thread::yield();
    return launchable_of(kProblem, 2);
  };
  Problems::Outcome made, waited;
  std::thread maker([&] { made = problems.make(kProblem, slow, Problems::If::always); });
  while (!inside) std::this_thread::yield();
  CHECK(problems.state(kProblem) == ProblemState::being_remade);
  CHECK(problems.find(kProblem) == old);
  CHECK_FALSE(problems.try_make(kProblem, slow, Problems::If::always));
  const Values other{1};
  CHECK(kernel_of(problems.make(other, [&] { return launchable_of(other, 3); })));
  std::thread waiter([&] { waited = problems.make(kProblem, slow); });
  go = true;
  maker.join();
  waiter.join();
  CHECK(works == 1);
  CHECK(kernel_of(made) == problems.find(kProblem));
  CHECK(kernel_of(waited) == problems.find(kProblem));
  CHECK(problems.find(kProblem)->config == Values{2});
}

TEST_CASE("failures are remembered by request, agreements by problem", "[runtime][problems]") {
  Problems problems;
  const Digest one = detail::KeyBuilder("test", 1).add("n", std::int64_t{1}).finish().digest;
  const Digest two = detail::KeyBuilder("test", 1).add("n", std::int64_t{2}).finish().digest;
  problems.remember_failure(one, TuningFailedError("first", {}));
  problems.remember_failure(one, TuningFailedError("second", {{"a=1", "no", {}}}));
  REQUIRE(problems.failure(one));
  CHECK(problems.failure(one)->what() == std::string("second"));
  CHECK(problems.failure(one)->reasons().size() == 1);
  CHECK_FALSE(problems.failure(two));
  CHECK_FALSE(problems.agreed(kProblem));
  problems.agree(kProblem, {4});
  CHECK(problems.agreed(kProblem) == Values{4});
  CHECK_FALSE(problems.agreed(Values{1}));
  CHECK(problems.state(kProblem) == ProblemState::unknown);
}

TEST_CASE("agreements are bounded, and none is forgotten", "[runtime][problems]") {
  Problems problems;
  constexpr auto kMost = static_cast<std::int64_t>(Problems::kMostAgreed);
  // What one rank has decided does not count: the others do not know of it.
  CHECK(problems.agree(Values{-1}, {3}, Problems::By::this_rank));
  for (std::int64_t n = 0; n < 100'000; ++n) {
    const bool may = problems.may_agree(Values{n});
    if (may != (n < kMost) || problems.agree(Values{n}, {n}) != may) FAIL(n);
  }
  for (const std::int64_t n : {std::int64_t{0}, kMost - 1}) {
    CHECK(problems.agreed(Values{n}) == Values{n});
    CHECK(problems.agree(Values{n}, {n + 1}));
    CHECK(problems.agreed(Values{n}) == Values{n + 1});
  }
  CHECK_FALSE(problems.agreed(Values{kMost}));
  CHECK_FALSE(problems.agree(Values{-1}, {4}));
  CHECK(problems.agreed(Values{-1}) == Values{3});
}

namespace {

/// Hammers problems from several threads. Nothing is asserted in them: what is wrong is counted.
class Hammer {
 public:
  static constexpr int kThreads = 8, kOperations = 6000, kProblemCount = 120;

  void run() {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back([this, t] { hammer(t); });
    for (std::thread& thread : threads) thread.join();
  }

  Problems problems;
  std::mutex mutex;
  std::map<std::string, int> wrong;        ///< what and how often
  std::array<std::atomic<int>, 4> ends{};  ///< makings by how they ended
  std::array<std::atomic<int>, runtime::kProblemStates.size()> seen{};

 private:
  /// A stand-in has a negative config.
  struct Held {
    Ready ready;
    Values problem, config;
  };

  /// Holds nothing: threads that waited get the same object, and the thread sanitizer does not see
  /// how its last owner is found.
  struct ByChance {};

  void count(const std::string& what) {
    std::lock_guard lock(mutex);
    ++wrong[what];
  }

  void hammer(int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    std::vector<Held> held;
    std::set<Values> in_use;
    for (int i = 0; i < kOperations; ++i) {
      // All threads go through the problems at about the same pace, so that they meet.
      const int place = i * kProblemCount / kOperations + static_cast<int>(random() % 3);
      const Values problem{place, 1};
      try {
        const Ready got = operate(problem, random);
        if (got) held.push_back({got, problem, got->config});
      } catch (const ByChance&) {
      } catch (const std::exception& error) {
        count(error.what());
      }
      const Ready found = problems.find(problem);
      if (found && found->config[0] < 0) count("a stand-in was found");
      if (found && found->problem != problem) count("another problem was found");
      if (!found && in_use.count(problem)) count("what was in use is gone");
      if (found) in_use.insert(problem);
      const ProblemState state = problems.state(problem);
      ++seen[static_cast<std::size_t>(state)];
      if (found && state != ProblemState::in_use && state != ProblemState::being_remade)
        count("a launchable in the state " + std::string(to_string(state)));
    }
    for (const Held& h : held)
      if (h.ready->problem != h.problem || h.ready->config != h.config) count("it was changed");
  }

  Ready operate(const Values& problem, std::mt19937& random) {
    const auto when = random() % 4 ? Problems::If::not_in_use : Problems::If::always;
    const unsigned chance = random(), what = random() % 16;
    const Problems::Work work = [&, chance] { return make(problem, chance); };
    if (what == 0) return problems.choose(launchable_of(problem, 1 + chance % 5));
    if (what < 6) {
      const Standing standing = what < 3 ? Standing::meanwhile : Standing::best_known;
      const auto got =
          problems.stand_in(problem, standing, [&] { return load(problem, standing); });
      return std::get<Ready>(got);
    }
    if (what < 11) return kernel_of(problems.make(problem, work, when));
    const auto made = problems.try_make(problem, work, when);
    return made ? kernel_of(*made) : nullptr;
  }

  Problems::Made make(const Values& problem, unsigned chance) {
    std::atomic<int>& makers = makers_[static_cast<std::size_t>(problem[0])];
    if (++makers != 1) count("two make one problem");
    const ProblemState state = problems.state(problem);
    if (state != ProblemState::being_made && state != ProblemState::being_made_on_stand_in &&
        state != ProblemState::being_remade)
      count("made in the state " + std::string(to_string(state)));
    ++seen[static_cast<std::size_t>(state)];
    for (unsigned i = chance % 7; i > 0; --i) std::this_thread::yield();
    --makers;
    ++ends[chance / 7 % 4];
    switch (chance / 7 % 4) {
      case 0:
        return launchable_of(problem, 1 + chance % 5);
      case 1:
        return missing_of("k");
      case 2:
        return Problems::Unmade{};
      default:
        throw ByChance();
    }
  }

  Problems::Loaded load(const Values& problem, Standing standing) {
    const bool known = standing == Standing::best_known;
    std::atomic<int>& loaders = loaders_[known][static_cast<std::size_t>(problem[0])];
    if (++loaders != 1) count("two load one stand-in");
    std::this_thread::yield();
    --loaders;
    return launchable_of(problem, known ? -2 : -1);
  }

  std::array<std::atomic<int>, kProblemCount + 3> makers_{};
  std::array<std::array<std::atomic<int>, kProblemCount + 3>, 2> loaders_{};
};

}  // namespace

TEST_CASE("eight threads live through many problems", "[runtime][problems]") {
  Hammer hammer;
  hammer.run();
  for (const auto& [what, times] : hammer.wrong) {
    INFO(what << ", " << times << " times");
    CHECK(what.empty());
  }
  for (const auto& ended : hammer.ends) CHECK(ended > 0);
  for (std::size_t s = 0; s < runtime::kProblemStates.size(); ++s) {
    INFO(to_string(runtime::kProblemStates[s]));
    CHECK(hammer.seen[s] > 0);
  }
  // What is in the table is what the state says.
  for (std::int64_t place = 0; place < Hammer::kProblemCount; ++place) {
    const Values problem{place, 1};
    const ProblemState state = hammer.problems.state(problem);
    const bool launchable = state == ProblemState::in_use,
               stand_in =
                   state == ProblemState::on_stand_in || state == ProblemState::missing_on_stand_in,
               missing =
                   state == ProblemState::missing || state == ProblemState::missing_on_stand_in,
               nothing = state == ProblemState::unknown || state == ProblemState::missing ||
                         state == ProblemState::failed;
    INFO(place << " is " << to_string(state));
    CHECK((launchable || stand_in || nothing));
    CHECK((hammer.problems.find(problem) != nullptr) == launchable);
    CHECK((hammer.problems.served(problem, Standing::meanwhile) == nullptr) == nothing);
    CHECK(hammer.problems.missing(problem).has_value() == missing);
  }
}

TEST_CASE("a choice that was made over something else is not undone", "[runtime][problems]") {
  Problems problems;
  Launchable provisional = launchable_of(kProblem, 1);
  provisional.provisional = true;
  const detail::Ready seen = problems.choose(provisional);
  problems.choose(launchable_of(kProblem, 2));
  CHECK_FALSE(problems.choose_over(seen, launchable_of(kProblem, 3)));
  CHECK(problems.find(kProblem)->config == Values{2});
  CHECK(problems.choose_over(problems.find(kProblem), launchable_of(kProblem, 3)));
  CHECK(problems.find(kProblem)->config == Values{3});
  const Values other{8, 8};
  CHECK(problems.choose_over(nullptr, launchable_of(other, 4)));
  CHECK_FALSE(problems.choose_over(nullptr, launchable_of(other, 5)));
  CHECK(problems.state(other) == ProblemState::in_use);
}

TEST_CASE("a choice that was kept stays so when it is confirmed, not when it is replaced",
          "[runtime][problems]") {
  Problems problems;
  problems.choose(launchable_of(kProblem, 1));
  problems.keep_choice(kProblem);
  const Ready in_use = problems.find(kProblem);
  CHECK(problems.choose(*in_use) == in_use);
  CHECK(problems.kept_choice(kProblem) == in_use);
  problems.choose(launchable_of(kProblem, 2));
  CHECK_FALSE(problems.kept_choice(kProblem));
}

TEST_CASE("what cannot be made is bounded as well", "[runtime][problems][bounds]") {
  Problems problems({}, {4});
  const Problems::Work fails = []() -> Problems::Made { throw std::runtime_error("no"); };
  for (std::int64_t i = 0; i < 100; ++i) CHECK_THROWS(problems.make(Values{i}, fails));
  int held = 0;
  for (std::int64_t i = 0; i < 100; ++i) held += problems.state(Values{i}) != ProblemState::unknown;
  CHECK(held <= 4);
  CHECK(problems.state(Values{99}) == ProblemState::failed);
}

TEST_CASE("a problem that is pinned before it is held stays", "[runtime][problems][bounds]") {
  Problems problems({}, {4});
  problems.pin(Values{7});
  for (std::int64_t i = 0; i < 100; ++i) problems.choose(launchable_of({i}, 1));
  CHECK(problems.find(Values{7}) != nullptr);
  CHECK(problems.find(Values{8}) == nullptr);
}

TEST_CASE("a choice for which there is no memory ends with an error, and the next one works",
          "[runtime][problems][bounds]") {
  bool done = false;
  int failures = 0;
  for (std::size_t more = 0; !done; ++more) {
    Problems problems({}, {2});
    for (std::int64_t i = 0; i < 2; ++i) problems.choose(launchable_of({i}, 1));
    Launchable replacing = launchable_of({0}, 2), another = launchable_of({2}, 2);
    try {
      const std::size_t before = kiln::test::allocations();
      const kiln::test::OutOfMemory after(more);
      problems.choose(std::move(replacing));
      problems.choose(std::move(another));
      done = kiln::test::allocations() - before <= more;
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    problems.choose(launchable_of({3}, 3));
    REQUIRE(problems.find(Values{3}) != nullptr);
    CHECK(problems.find(Values{3})->config == Values{3});
    problems.reclaim();
    CHECK_FALSE(problems.waiting());
  }
  CHECK(failures > 5);
}

TEST_CASE("an agreement does not undo one that was made meanwhile", "[runtime][problems]") {
  Problems problems;
  problems.agree_over(kProblem, {}, {1});
  CHECK(problems.agreed(kProblem) == Values{1});
  problems.agree_over(kProblem, {}, {2});
  CHECK(problems.agreed(kProblem) == Values{1});
  problems.agree_over(kProblem, Values{1}, {2});
  CHECK(problems.agreed(kProblem) == Values{2});
}
