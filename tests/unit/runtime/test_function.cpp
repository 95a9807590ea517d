#include <thread>

#include "allocations.hpp"
#include "function_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

const Candidate* find(const TuneResult& result, const Values& config) {
  for (const Candidate& c : result.candidates)
    if (c.config == config) return &c;
  return nullptr;
}

}  // namespace

TEST_CASE("a function gets the knobs that are fastest for its problem", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-4;
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(3, 0.0f);
  CHECK(f.knobs({5}) == SumKnobs{2, Method::ring});
  f({}, x, 5);
  CHECK(f.knobs({5}) == SumKnobs{8, Method::tree});
  CHECK(f.knobs({6}) == SumKnobs{2, Method::ring});  // another problem: not known yet
  const auto known = f.known({5});
  REQUIRE(known);
  CHECK(known->winner().config == Values{8, 1});
  CHECK(known->candidates.size() == 8);
  CHECK(known->speedup() == Approx(10));
  CHECK(known->parameters == std::vector<std::string>{"blocks", "method"});
  // Nothing but a record is kept: what "compiles" in no time is not worth a file.
  CHECK(directory.entries(".json").size() == 1);
  CHECK(directory.entries(".kiln").empty());
}

TEST_CASE("a call of a known problem is one call, and takes nothing from the heap",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(3, 0.0f);
  f({}, x, 5);
  x.assign(3, 0.0f);
  const int before = caller.total();
  const std::size_t allocated = allocations();
  f({}, x, 5);
  CHECK(allocations() == allocated);
  CHECK(caller.total() == before + 1);
  CHECK(x == std::vector<float>(3, 5.0f));
}

TEST_CASE("tuning off: one call, with the default knobs, whatever is known",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-4;
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  f.with({.tune = false})({}, x, 5);
  CHECK(caller.total() == 1);
  CHECK(x[0] == 5);
  f({}, x, 5);
  const int ring2 = caller.calls[{2, Method::ring}];
  f.with({.tune = false})({}, x, 5);
  CHECK(caller.calls[{2, Method::ring}] == ring2 + 1);
  CHECK(directory.entries(".json").size() == 1);
}

TEST_CASE("another runtime on the same store measures nothing", "[runtime][function]") {
  Directory directory;
  Caller first(directory.path());
  first.seconds[{4, Method::ring}] = 1e-4;
  std::vector<float> x(1, 0.0f);
  first.tuned(first.sum())({}, x, 5);

  Caller second(directory.path());
  const auto f = second.tuned(second.sum());
  f({}, x, 5);
  CHECK(second.total() == 1);
  CHECK(second.calls[{4, Method::ring}] == 1);
  const TuneResult result = f.tune({}, x, 5);
  CHECK(result.from_store);
  CHECK(second.total() == 1);
}

TEST_CASE("retune measures again, for one call", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{4, Method::ring}] = 1e-4;
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  f({}, x, 5);
  CHECK(f.knobs({5}).blocks == 4);
  caller.seconds[{1, Method::tree}] = 1e-5;
  f({}, x, 5);
  CHECK(f.knobs({5}).blocks == 4);
  f.with({.retune = true})({}, x, 5);
  CHECK(f.knobs({5}) == SumKnobs{1, Method::tree});
  const int before = caller.total();
  f({}, x, 5);
  CHECK(caller.total() == before + 1);
}

TEST_CASE("knobs with which a function throws are failed candidates, not the end",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-5;  // would win
  caller.seconds[{8, Method::ring}] = 1e-5;
  caller.seconds[{4, Method::tree}] = 2e-4;
  caller.work = [](const SumKnobs& k, std::vector<float>&) {
    if (k.blocks == 8 && k.method == Method::tree) throw std::runtime_error("no tree of eight");
    if (k.blocks == 8) throw 8;
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 5);
  CHECK(f.knobs({5}) == SumKnobs{4, Method::tree});
  const Candidate* failed = find(result, {8, 1});
  REQUIRE(failed);
  CHECK(failed->status == CandidateStatus::launch_failed);
  CHECK(failed->reason == "no tree of eight");
  REQUIRE(find(result, {8, 0}));
  CHECK(find(result, {8, 0})->status == CandidateStatus::launch_failed);
}

TEST_CASE("knobs that begin to fail while they are timed are failed candidates",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-5;
  caller.work = [&](const SumKnobs& k, std::vector<float>&) {
    if (k == SumKnobs{8, Method::tree} && caller.device->timing)
      throw std::runtime_error("not twice");
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 5);
  REQUIRE(find(result, {8, 1}));
  CHECK(find(result, {8, 1})->status == CandidateStatus::launch_failed);
  CHECK(find(result, {8, 1})->reason == "not twice");
  CHECK(result.winner().config != Values{8, 1});
}

TEST_CASE("what the stream reports later fails the candidate as well", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.work = [&](const SumKnobs& k, std::vector<float>&) {
    if (k.blocks == 4) caller.device->sync_error = "an access out of bounds";
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 5);
  REQUIRE(find(result, {4, 0}));
  CHECK(find(result, {4, 0})->reason == "an access out of bounds");
}

TEST_CASE("a lost device ends the tuning and is told", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.work = [&](const SumKnobs& k, std::vector<float>&) {
    if (k.blocks != 4) return;
    caller.device->is_lost = true;
    throw std::runtime_error("illegal address");
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  CHECK_THROWS_AS(f({}, x, 5), runtime::DeviceLost);
}

TEST_CASE("when all knobs fail, the reasons are told and the function is not called",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.work = [](const SumKnobs&, std::vector<float>&) { throw std::runtime_error("no"); };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  try {
    f({}, x, 5);
    FAIL("it should have thrown");
  } catch (const TuningFailedError& error) {
    CHECK(error.reasons().size() == 8);
    CHECK(std::string(error.what()).find("function sum") == 0);
    CHECK(std::string(error.what()).find("no") != std::string::npos);
  }
  CHECK(caller.total() == 8);
  CHECK(directory.entries(".json").empty());
}

TEST_CASE("wrong knobs are disqualified, however fast", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-6;
  caller.seconds[{8, Method::ring}] = 1e-6;
  caller.seconds[{4, Method::tree}] = 2e-4;
  caller.work = [](const SumKnobs& k, std::vector<float>& x) {
    if (k.blocks == 8) x[0] -= 1;
  };
  Sum sum = caller.sum();
  sum.snapshot = [](Stream, std::vector<float>& x, int) {
    return [&x, copy = x](Stream) { x = copy; };
  };
  sum.verify = [](std::vector<float>& x, int n) {
    if (x[0] == static_cast<float>(n)) return true;
    if (n == 5) throw std::runtime_error("x[0] is " + std::to_string(x[0]));
    return false;
  };
  const auto f = caller.tuned(sum);
  for (const int n : {5, 6}) {
    std::vector<float> x(1, 0.0f);
    const TuneResult result = f.tune({}, x, n);
    CHECK(f.knobs({n}) == SumKnobs{4, Method::tree});
    REQUIRE(find(result, {8, 1}));
    CHECK(find(result, {8, 1})->status == CandidateStatus::wrong_result);
    CHECK(find(result, {8, 1})->reason.find(n == 5 ? "x[0] is 4" : "`verify`") !=
          std::string::npos);
  }
}

TEST_CASE("what a call changes is put back: before each call of a tuning and after it",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  bool fresh = true;
  caller.work = [&](const SumKnobs&, std::vector<float>& x) { fresh = fresh && x[0] == 100; };
  int snapshots = 0;
  bool outside = true;
  Sum sum = caller.sum();
  sum.snapshot = [&](Stream, std::vector<float>& x, int) {
    ++snapshots;
    return [&, copy = x](Stream) {
      x = copy;
      outside = outside && !caller.device->timing;
    };
  };
  const auto f = caller.tuned(sum);
  std::vector<float> x(2, 100.0f);
  f({}, x, 5);
  CHECK(caller.total() > 20);
  CHECK(fresh);
  CHECK(outside);
  CHECK(snapshots == 1);
  CHECK(x == std::vector<float>(2, 105.0f));  // as if it had been called once
  f({}, x, 5);
  CHECK(snapshots == 1);  // nothing is kept for a plain call
  CHECK(x == std::vector<float>(2, 110.0f));

  std::vector<float> y(1, 100.0f);
  f.tune({}, y, 7);
  CHECK(y[0] == 100);

  caller.work = [](const SumKnobs&, std::vector<float>&) { throw std::runtime_error("no"); };
  CHECK_THROWS_AS(f.tune({}, y, 8), TuningFailedError);
  CHECK(y[0] == 100);
}

TEST_CASE("a snapshot that cannot be taken fails the tuning, not the process",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  Sum sum = caller.sum();
  sum.snapshot = [](Stream, std::vector<float>&, int) -> std::function<void(Stream)> { return {}; };
  std::vector<float> x(1, 0.0f);
  CHECK_THROWS_WITH(caller.tuned(sum)({}, x, 5), Catch::Contains("`snapshot`"));
  CHECK(caller.total() == 0);
}

TEST_CASE("pruned knobs and those outside the constraints are never called",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.device->info().limits.multiprocessors = 4;
  caller.device->info().limits.l2_bytes = 1 << 16;
  bool limits_are_real = true;
  Sum sum = caller.sum();
  sum.space = sum.space.where("a tree has at least two blocks",
                              [](const SumKnobs& k, const SumProblem&, const DeviceLimits&) {
                                return k.method == Method::ring || k.blocks >= 2;
                              });
  sum.prune = [&](const SumKnobs& k, const SumProblem& p, const DeviceLimits& limits) {
    limits_are_real = limits_are_real && limits.l2_bytes == 1 << 16;
    return k.blocks <= limits.multiprocessors && k.blocks <= p.n;
  };
  const auto f = caller.tuned(sum);
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 2);
  CHECK(limits_are_real);
  CHECK(result.space.allowed == 3);
  CHECK(caller.calls.count({1, Method::ring}) == 1);
  CHECK(caller.calls.count({2, Method::tree}) == 1);
  CHECK(caller.calls.count({1, Method::tree}) == 0);
  CHECK(caller.calls.count({4, Method::ring}) == 0);
  CHECK(caller.calls.count({8, Method::ring}) == 0);
}

TEST_CASE("problems of one bucket share their knobs", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  Sum sum = caller.sum();
  sum.bucket = [](const SumProblem& p) { return SumProblem{(p.n + 9) / 10 * 10}; };
  const auto f = caller.tuned(sum);
  std::vector<float> x(1, 0.0f);
  f({}, x, 3);
  int before = caller.total();
  f({}, x, 10);
  CHECK(caller.total() == before + 1);
  before = caller.total();
  f({}, x, 11);
  CHECK(caller.total() > before + 1);
  CHECK(f.known({7})->problem == Values{10});
  CHECK(directory.entries(".json").size() == 2);
}

TEST_CASE("another version of a function is another record", "[runtime][function]") {
  Directory directory;
  std::vector<float> x(1, 0.0f);
  const auto calls_of = [&](const std::string& version) {
    Caller caller(directory.path());
    Sum sum = caller.sum();
    sum.version = version;
    caller.tuned(sum)({}, x, 5);
    return caller.total();
  };
  CHECK(calls_of("1") > 1);
  CHECK(calls_of("1") == 1);
  CHECK(calls_of("2") > 1);
  CHECK(calls_of("1") == 1);  // going back finds what was there
}

TEST_CASE("versions of software: recorded, told when they differ, and strict if asked",
          "[runtime][function]") {
  Directory directory;
  std::vector<float> x(1, 0.0f);
  const auto run = [&](const std::string& library, const std::string& driver, bool strict) {
    Caller caller(directory.path());
    caller.device->info().software = {{"driver", driver}};
    caller.function_options.strict_versions = strict;
    Sum sum = caller.sum();
    sum.versions = {{"library", library}};
    caller.tuned(sum)({}, x, 5);
    return std::pair(caller.total() > 1, caller.said(LogLevel::warning, "other versions"));
  };
  CHECK(run("1", "1.0", true) == std::pair(true, 0));
  CHECK(run("1", "1.0", true) == std::pair(false, 0));
  CHECK(run("2", "1.0", false) == std::pair(false, 1));  // used, but not without a word
  CHECK(run("2", "1.0", true) == std::pair(true, 0));
  CHECK(run("2", "1.0", true) == std::pair(false, 0));
  CHECK(run("2", "1.1", true) == std::pair(true, 0));

  Caller caller(directory.path());
  const auto known = caller.tuned(caller.sum()).known({5});
  REQUIRE(known);
  const auto value = [&](const std::string& name) {
    for (const KeyField& v : known->versions)
      if (v.name == name) return v.value;
    return std::string();
  };
  CHECK(value("library") == "2");
  CHECK(value("driver") == "1.1");
  CHECK(value("device") == "Clock 1");
  CHECK_FALSE(value("kiln").empty());
}

TEST_CASE("environment variables: read when the tuned function is made", "[runtime][function]") {
  Directory directory;
  std::vector<float> x(1, 0.0f);
  const auto calls = [&](const char* variable, const char* value) {
    Caller caller(directory.path());
    if (variable) ::setenv(variable, value, 1);
    Sum sum = caller.sum();
    sum.versions = {{"library", "2"}};
    const auto f = caller.tuned(sum);
    if (variable) ::unsetenv(variable);
    f({}, x, 5);
    const int first = caller.total();
    f({}, x, 5);
    CHECK(caller.total() == first + 1);  // once per process, not per call
    return first;
  };
  CHECK(calls(nullptr, "") > 1);
  CHECK(calls(nullptr, "") == 1);
  CHECK(calls("KILN_ALWAYS_RETUNE", "1") > 1);
  CHECK(calls("KILN_ALWAYS_RETUNE", "0") == 1);
  CHECK(calls("KILN_STRICT_VERSIONS", "1") == 1);
  Caller other(directory.path());  // without the library: its record has another version
  ::setenv("KILN_STRICT_VERSIONS", "1", 1);
  const auto f = other.tuned(other.sum());
  ::unsetenv("KILN_STRICT_VERSIONS");
  f({}, x, 5);
  CHECK(other.total() > 1);
}

TEST_CASE("a space with one more value costs only the new candidates", "[runtime][function]") {
  Directory directory;
  std::vector<float> x(1, 0.0f);
  Caller first(directory.path());
  first.tuned(first.sum())({}, x, 5);
  Caller second(directory.path());
  Sum wider = second.sum();
  wider.space = Space<SumKnobs, SumProblem>{{2, Method::ring}}
                    .values(&SumKnobs::blocks, {1, 2, 4, 8, 16})
                    .values(&SumKnobs::method, {Method::ring, Method::tree});
  second.seconds[{16, Method::ring}] = 1e-4;
  const auto f = second.tuned(wider);
  const TuneResult result = f.tune({}, x, 5);
  CHECK(result.candidates.size() == 10);
  CHECK(result.evaluated <= 4);
  CHECK(f.knobs({5}).blocks == 16);
}

TEST_CASE("in modes that do not tune a function gets its record, else its default",
          "[runtime][function]") {
  Directory directory;
  std::vector<float> x(1, 0.0f);
  for (const Mode mode : {Mode::untuned, Mode::lookup_only}) {
    Caller untuned(directory.path());
    untuned.options.mode = mode;
    untuned.tuned(untuned.sum())({}, x, 5);
    CHECK(untuned.total() == 1);
    CHECK(untuned.calls[{2, Method::ring}] == 1);
  }
  Caller tunes(directory.path());
  tunes.seconds[{1, Method::tree}] = 1e-4;
  tunes.tuned(tunes.sum())({}, x, 5);
  for (const Mode mode : {Mode::untuned, Mode::lookup_only}) {
    Caller untuned(directory.path());
    untuned.options.mode = mode;
    untuned.tuned(untuned.sum())({}, x, 5);
    CHECK(untuned.total() == 1);
    CHECK(untuned.calls[{1, Method::tree}] == 1);
  }
}

TEST_CASE("the cache is flushed before each sample, outside the timed region",
          "[runtime][function]") {
  Directory directory;
  std::vector<float> x(1, 0.0f);
  for (const bool cold : {true, false}) {
    Caller caller(directory.path());
    caller.device->info().limits.l2_bytes = 4096;
    caller.options.tuning.cold_cache = cold;
    caller.options.tuning.retune = true;
    const auto f = caller.tuned(caller.sum());
    f({}, x, 5);
    CHECK_FALSE(caller.device->filled_while_timed);
    // All calls but those that verify (8) and the one that was asked for.
    CHECK((cold ? caller.device->fills >= caller.total() - 8 - 1 - 16 : caller.device->fills == 0));
    CHECK(caller.device->live == 0);  // the scratch is not kept
  }
}

TEST_CASE("a function is recorded in a graph only if it says so", "[runtime][function]") {
  Directory directory;
  std::vector<float> x(1, 0.0f);
  for (const bool replay : {false, true}) {
    Caller caller(directory.path());
    caller.options.tuning.retune = true;
    for (const int blocks : {1, 2, 4, 8})
      for (const Method m : {Method::ring, Method::tree}) caller.seconds[{blocks, m}] = 1e-6;
    Sum sum = caller.sum();
    sum.graph_replay = replay;
    caller.tuned(sum)({}, x, 5);
    CHECK((caller.device->captures > 0) == replay);
  }
}

TEST_CASE("verbose tells each candidate, and what is called with", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{4, Method::tree}] = 1e-4;
  caller.work = [](const SumKnobs& k, std::vector<float>&) {
    if (k.blocks == 8) throw std::runtime_error("too many blocks");
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  f({}, x, 4);
  CHECK(caller.said(LogLevel::info, "too many blocks") == 0);
  f.with({.verbose = true})({}, x, 5);
  CHECK(caller.said(LogLevel::info, "launch_failed: too many blocks") == 2);
  CHECK(caller.said(LogLevel::info, "blocks=4,method=1 takes 0.1 ms, and is chosen") == 1);
  CHECK(caller.said(LogLevel::info, "calls with blocks=4,method=1") == 1);
}

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

TEST_CASE("mistakes in a function are named", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  Sum sum = caller.sum();
  sum.call = {};
  CHECK_THROWS_WITH(caller.tuned(sum), Catch::Contains("`call`"));
  sum = caller.sum();
  sum.problem = {};
  CHECK_THROWS_WITH(caller.tuned(sum), Catch::Contains("`problem`"));
  sum = caller.sum();
  sum.name = "a sum";
  CHECK_THROWS_WITH(caller.tuned(sum), Catch::Contains("a sum") && Catch::Contains("`name`"));
  sum = caller.sum();
  sum.space = Space<SumKnobs, SumProblem>{{3, Method::ring}}.values(&SumKnobs::blocks, {1, 2});
  CHECK_THROWS_AS(caller.tuned(sum), UserError);
  sum = caller.sum();
  sum.communicates = true;
  std::vector<float> x(1, 0.0f);
  CHECK_THROWS_WITH(caller.tuned(sum)({}, x, 5), Catch::Contains("TuneOptions::ranks"));
  CHECK(caller.total() == 0);
  caller.tuned(sum).with({.tune = false})({}, x, 5);
  CHECK(caller.total() == 1);
}

TEST_CASE("budgets and searches are those of kernels", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.options.tuning.max_evaluations = 3;
  caller.options.tuning.strategy = "random";
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 5);
  CHECK(result.candidates.size() == 3);
  CHECK(result.end == SearchEnd::evaluations);
  TuneOptions wrong;
  wrong.strategy = "no such";
  caller.function_options.tuning = wrong;
  const auto g = caller.tuned(caller.sum());
  CHECK_THROWS_AS(g({}, x, 6), UserError);
}
