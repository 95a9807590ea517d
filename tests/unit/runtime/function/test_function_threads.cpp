// Functions that are called while they are tuned: by other threads, and by themselves; and kernels in them.
#include <atomic>
#include <mutex>
#include <thread>

#include "function_fixture.hpp"
#include "kiln/communicators.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("threads that call at once tune once and get the same", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{4, Method::ring}] = 1e-4;
  std::mutex device;  // what the fake clock cannot: two calls at once
  caller.work = [&](const SumKnobs&, std::vector<float>&) { std::lock_guard lock(device); };
  std::atomic<int> snapshots = 0;
  Sum sum = caller.sum();
  sum.snapshot = [&](Stream, std::vector<float>& x, int) {
    ++snapshots;
    return [&x, copy = x](Stream) { x = copy; };
  };
  // The clock is not atomic, so only the tuning thread may advance it.
  sum.call = [call = sum.call, &device, &caller](const SumKnobs& k, Stream s, std::vector<float>& x,
                                                 int n) {
    std::lock_guard lock(device);
    const auto work = std::exchange(caller.work, {});
    call(k, s, x, n);
  };
  const auto f = caller.tuned(sum);
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> x(4, std::vector<float>(1, 0.0f));
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3; ++i) f({}, x[static_cast<std::size_t>(t)], 5);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(snapshots == 1);
  for (const auto& v : x) CHECK(v[0] == 15);
  CHECK(f.knobs({5}).blocks == 4);
}

TEST_CASE("while another thread tunes, a call may go on with the default", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.options.while_busy = WhileBusy::use_default;
  std::atomic<bool> tuning = false, called = false;
  Sum sum = caller.sum();
  std::atomic<int> default_calls = 0;
  const std::thread::id main = std::this_thread::get_id();
  sum.call = [&, call = sum.call](const SumKnobs& k, Stream s, std::vector<float>& x, int n) {
    if (std::this_thread::get_id() == main) {
      CHECK(k == SumKnobs{2, Method::ring});
      ++default_calls;
      return;
    }
    tuning = true;
    while (!called) std::this_thread::yield();
    call(k, s, x, n);
  };
  const auto f = caller.tuned(sum);
  std::vector<float> x(1, 0.0f), y(1, 0.0f);
  std::thread other([&] { f({}, x, 5); });
  while (!tuning) std::this_thread::yield();
  f({}, y, 5);
  f({}, y, 6);  // nor is another problem waited for
  called = true;
  other.join();
  CHECK(default_calls == 2);
}

TEST_CASE("a call waits for no tuning that waits for this thread's turn", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  const Runtime runtime = caller.runtime();
  runtime::TuningTurn& turn = detail::Access::engine(runtime)->workshop().turn();
  std::atomic<bool> tuning = false, over = false;
  Sum sum = caller.sum();
  const std::thread::id main = std::this_thread::get_id();
  std::atomic<int> default_calls = 0;
  sum.call = [&, call = sum.call](const SumKnobs& k, Stream s, std::vector<float>& x, int n) {
    if (std::this_thread::get_id() == main && !over) {
      CHECK(k == SumKnobs{2, Method::ring});
      ++default_calls;
      return;
    }
    // As a launch of a kernel that has to be tuned first.
    if (!tuning.exchange(true)) over = bool(turn.take());
    call(k, s, x, n);
  };
  const auto f = tuned(runtime, sum);
  std::vector<float> x(1, 0.0f), y(1, 0.0f);
  auto mine = turn.take();
  std::thread other([&] { f({}, x, 5); });
  while (turn.waiting() == 0) std::this_thread::yield();
  f({}, y, 5);
  f({}, y, 6);  // another problem of the function
  CHECK(default_calls == 2);
  CHECK_FALSE(over);
  mine = {};
  other.join();
  CHECK(over);
  // What could not be waited for is tuned by a later call.
  CHECK_FALSE(f.known({6}));
  f({}, x, 6);
  CHECK(f.known({6}));
}

TEST_CASE("while another thread tunes, a problem that is known keeps its knobs",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.options.while_busy = WhileBusy::use_default;
  caller.seconds[{4, Method::ring}] = 1e-4;
  std::atomic<bool> held = false, tuning = false, called = false;
  Sum sum = caller.sum();
  std::vector<SumKnobs> used;
  const std::thread::id main = std::this_thread::get_id();
  sum.call = [&, call = sum.call](const SumKnobs& k, Stream s, std::vector<float>& x, int n) {
    if (held && std::this_thread::get_id() == main) {
      used.push_back(k);
      return;
    }
    tuning = true;
    while (held && !called) std::this_thread::yield();
    call(k, s, x, n);
  };
  const auto f = caller.tuned(sum);
  std::vector<float> x(1, 0.0f), y(1, 0.0f);
  f({}, x, 5);
  held = true;
  tuning = false;
  std::thread other([&] { f({}, y, 6); });
  while (!tuning) std::this_thread::yield();
  f({}, x, 5);
  f.with({.verbose = true})({}, x, 5);
  f.with({.retune = true})({}, x, 5);
  f({}, x, 7);
  called = true;
  other.join();
  const SumKnobs known{4, Method::ring}, default_knobs{2, Method::ring};
  CHECK(used == std::vector{known, known, known, default_knobs});
}

TEST_CASE("a function that calls itself while it is tuned gets the default",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  Sum sum = caller.sum();
  std::function<void(std::vector<float>&, int)> again;
  int inner = 0;
  sum.call = [&, call = sum.call](const SumKnobs& k, Stream s, std::vector<float>& x, int n) {
    if (n > 1) {
      again(x, n / 2);
    } else {
      ++inner;
      CHECK(k == SumKnobs{2, Method::ring});
    }
    call(k, s, x, n);
  };
  const auto f = caller.tuned(sum);
  again = [&](std::vector<float>& x, int n) { f({}, x, n); };
  std::vector<float> x(1, 0.0f);
  f.tune({}, x, 4);
  CHECK(inner > 0);
  CHECK_FALSE(f.known({2}));
}

TEST_CASE("a kernel that a function launches while ranks measure it is tuned by its next launch",
          "[runtime][function][ranks]") {
  const RankStrategy strategy = GENERATE(RankStrategy::leader, RankStrategy::shard);
  struct Seen {
    TuneResult function;
    std::vector<Values> inside;  ///< the kernel's configs while the function was measured
    Values after;
    std::string thrown;
  };
  Directory directory;
  auto ends = thread_communicators(2);
  std::vector<Seen> seen(2);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      try {
        Process process(directory.path() / std::to_string(r));
        TuneOptions& tuning = process.options.tuning;
        tuning.ranks = std::move(ends[r]);
        tuning.together.strategy = strategy;
        tuning.together.first_seconds = tuning.together.step_seconds = 10;
        process.of(8).seconds = 2e-4;
        const Runtime runtime = process.runtime();
        const DynamicTuned kernel = runtime.tuned(doubling());
        std::vector<float> y(64), x(64, 1.0F);
        bool measuring = true;
        const Sum sum{.name = "sum",
                      .space = Space<SumKnobs, SumProblem>{{2, Method::ring}}.values(
                          &SumKnobs::blocks, {1, 2, 4, 8}),
                      .call =
                          [&](const SumKnobs& k, Stream stream, std::vector<float>& out, int n) {
                            const float* in = x.data();
                            kernel(stream, Values{n}, out.data(), in, n);
                            if (measuring) seen[r].inside.push_back(kernel.config({n}));
                            process.device->pass(k.blocks == 4 ? 1e-3 : 2e-3);
                          },
                      .problem = [](const std::vector<float>&, int n) { return SumProblem{n}; }};
        seen[r].function = kiln::tuned(runtime, sum).tune({}, y, 64);
        measuring = false;
        seen[r].after = kernel.config({64});
      } catch (const std::exception& error) {
        seen[r].thrown = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Seen& rank : seen) {
    REQUIRE(rank.thrown == "");
    REQUIRE(rank.function.agreed);
    CHECK(rank.function.agreed->why == "");
    CHECK(rank.function.agreed->outcome == RankReport::Outcome::plan);
    CHECK(rank.function.winner().config == Values{4, 0});
    for (const Values& config : rank.inside) CHECK(config == Values{2, 0});
    CHECK(rank.after == Values{8, 0});
  }
  CHECK_FALSE(seen[0].inside.empty());
}

TEST_CASE("a call that another process's tuning leaves no time decides nothing",
          "[runtime][function]") {
  Directory directory;
  std::vector<float> x(1, 0.0f), y(1, 0.0f);
  {
    Caller before(directory.path());
    before.seconds[{1, Method::ring}] = 1e-4;
    before.tuned(before.sum())({}, x, 5);
  }
  Caller first(directory.path()), second(directory.path());
  first.function_options.always_retune = true;
  std::atomic<bool> inside{false}, go{false};
  first.work = [&](const SumKnobs&, std::vector<float>&) {
    inside = true;
    go.wait(false);
  };
  second.options.tuning.retune = true;
  second.options.tuning.max_seconds = patient(3);
  second.seconds[{4, Method::ring}] = 1e-5;
  const auto held = first.tuned(first.sum());
  const auto waits = second.tuned(second.sum());
  std::thread other([&] { held({}, x, 5); });
  while (!inside) std::this_thread::yield();
  waits({}, y, 5);
  CHECK(second.calls == std::map<std::pair<int, Method>, int>{{{1, Method::ring}, 1}});
  go = true;
  go.notify_all();
  other.join();
  waits({}, y, 5);
  CHECK(waits.knobs({5}).blocks == 4);
}
