// Functions whose knobs are tuned: what is called, what is remembered, and what may be asked for.
#include "function_fixture.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/allocations.hpp"

using namespace kiln;
using namespace kiln::test;

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

TEST_CASE("a sealed runtime calls what is not known with the default knobs, or not at all",
          "[runtime][function][seal]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-4;
  const Runtime runtime = caller.runtime();
  const auto f = kiln::tuned(runtime, caller.sum());
  std::vector<float> x(1, 0.0f);
  f({}, x, 5);
  runtime.seal();
  const int before = caller.total();
  const int ring2 = caller.calls[{2, Method::ring}];
  f({}, x, 6);
  CHECK(caller.total() == before + 1);
  CHECK(caller.calls[{2, Method::ring}] == ring2 + 1);
  f({}, x, 5);
  CHECK(f.knobs({5}) == SumKnobs{8, Method::tree});
  CHECK(runtime.statistics().unprepared_served == 1);
  runtime.seal(OnUnprepared::warn);
  for (int i = 0; i < 2; ++i) f({}, x, 7);
  CHECK(caller.said(LogLevel::warning, "function sum for n=7: it was not called before") == 1);
  CHECK(runtime.statistics().unprepared_served == 3);
  runtime.seal(OnUnprepared::error);
  try {
    f({}, x, 6);
    FAIL("it was called");
  } catch (const UnpreparedError& error) {
    CHECK(error.wanted().problem == std::map<std::string, std::int64_t>{{"n", 6}});
  }
  CHECK(caller.total() == before + 4);
  CHECK(runtime.statistics().unprepared_refused == 1);
  runtime.unseal();
  f({}, x, 6);
  CHECK(f.knobs({6}) == SumKnobs{8, Method::tree});
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
  CHECK(caller.said(LogLevel::info, "blocks=4,method=tree takes 0.1 ms, and is chosen") == 1);
  CHECK(caller.said(LogLevel::info, "calls with blocks=4,method=tree") == 1);
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
