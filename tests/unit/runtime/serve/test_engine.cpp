// What outlives a process, and what does not survive damage.
#include <atomic>
#include <thread>

#include "kiln_test.hpp"
#include "unit/runtime/allocations.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("the next process compiles and measures nothing", "[runtime][engine]") {
  Directory directory;
  Buffers b(50);
  {
    Process first(directory.path());
    first.of(8).seconds = 0.5e-3;
    const Runtime runtime = first.runtime();
    runtime.tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(runtime.statistics().compiled == 4);
  }
  Process second(directory.path());
  const Runtime runtime = second.runtime();
  const auto handle = runtime.tuned(doubling());
  b.y.assign(50, 0);
  handle({}, Values{50}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
  CHECK(handle.config({50}) == Values{8, 0});
  CHECK(second.compiler->compiles == 0);
  CHECK(second.device->timings == 0);
  CHECK(second.device->launches == 1);
  CHECK(runtime.statistics().tuned == 0);
  const TuneResult told = handle.tune({50});
  CHECK(told.from_store);
  CHECK(told.compiled == 0);
  CHECK(told.winner().config == Values{8, 0});

  SECTION("unless it is told to measure again") {
    second.of(8).seconds = 2e-3;
    TuneOptions options;
    options.retune = true;
    const TuneResult again = handle.tune({50}, options);
    CHECK_FALSE(again.from_store);
    CHECK(again.winner_index == 0);
    CHECK(handle.config({50}) == Values{2, 0});  // in use from now on
    CHECK(second.compiler->compiles == 0);
  }
  SECTION("unless the compiler is another one") {
    Process third(directory.path());
    third.compiler->version = "2";
    const Runtime other = third.runtime();
    other.tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(other.statistics().tuned == 1);
    CHECK(third.compiler->compiles == 4);
  }
  SECTION("but not because of the driver") {
    Process third(directory.path());
    third.device->info().software[0].value = "2.0";
    const Runtime other = third.runtime();
    other.tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(other.statistics().tuned == 0);
  }
  SECTION("unless the space grew: then the new value alone") {
    Process third(directory.path());
    third.of(16).seconds = 0.25e-3;
    const Runtime other = third.runtime();
    const auto grown = other.tuned(doubling({1, 2, 4, 8, 16}));
    grown({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(grown.config({50}) == Values{16, 0});
    CHECK(third.compiler->compiles == 1);
  }
}

TEST_CASE("a first launch reads its record and its binary once", "[runtime][engine]") {
  Directory directory;
  Buffers b(50);
  for (const bool known : {false, true}) {
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    handle({}, Values{50}, b.y.data(), b.x.data(), 50);
    if (!known) continue;
    const StoreStatistics store = runtime.statistics().store;
    CHECK(store.disk_hits + store.memory_hits == 2);
    CHECK(store.misses == 0);
    CHECK(process.device->loads == 1);
  }
}

TEST_CASE("launches go on with the module that the winner was timed with", "[runtime][engine]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  int loads = 0;
  process.device->on_load = [&](const std::string& entry) { loads += entry == "k<8, 0>"; };
  Buffers b(50);
  SECTION("by a launch") {
    process.runtime().tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(loads == 1);
  }
  SECTION("by tune()") {
    const auto handle = process.runtime().tuned(doubling());
    handle.tune({50});
    handle({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(loads == 1);
  }
  SECTION("but not if it has variables, which launches may have changed") {
    process.of(8).variables = {{"counter", std::vector<std::byte>(4)}};
    process.runtime().tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(loads == 2);
  }
  CHECK(b.doubled());
}

TEST_CASE("a record is served to its own kernel alone", "[runtime][engine][slow]") {
  const Directory directory, files;
  const auto write = [&](const std::string& folder, const std::string& text) {
    std::filesystem::create_directories(files.path() / folder);
    test::write_text(files.path() / folder / "size.h", text);
  };
  write("a", "// one");
  write("b", "// two");
  write("c", "// one");
  test::write_text(files.path() / "k.cuh", "#include \"size.h\"\n");
  KernelDefinition kernel = doubling();
  kernel.source.text.clear();
  kernel.source.file = files.path() / "k.cuh";
  kernel.source.include_dirs = {files.path() / "a"};
  const auto tuned = [&](const KernelDefinition& k) {
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    runtime.tuned(k).prepare({50});
    return runtime.statistics().tuned;
  };
  REQUIRE(tuned(kernel) == 1);
  REQUIRE(tuned(kernel) == 0);
  const auto changed = [&](const std::function<void(KernelDefinition&)>& change) {
    KernelDefinition other = kernel;
    change(other);
    return tuned(other) == 1 && tuned(kernel) == 0;  // nor is the first one's overwritten
  };
  CHECK(changed([](auto& k) { k.passing = Passing::constants; }));
  CHECK(changed([](auto& k) { k.passing = Passing::macros; }));
  CHECK(changed([](auto& k) { k.entry = "k2"; }));
  CHECK(changed([](auto& k) { k.types = {"double"}; }));
  CHECK(changed([](auto& k) { k.source.options = {"-DFAST"}; }));
  CHECK(changed([&](auto& k) { k.source.include_dirs = {files.path() / "b"}; }));
  CHECK_FALSE(changed([&](auto& k) { k.source.include_dirs = {files.path() / "c"}; }));
  CHECK(changed([](auto& k) { k.tolerance.relative = 1e-2; }));
  CHECK(changed([](auto& k) { k.tolerance.absolute = 1e-2; }));
  CHECK(changed([](auto& k) { k.data_version = "2"; }));
  CHECK(changed([](auto& k) {
    k.space = {};
    k.space.parameter("a", {1, 2, 4, 8}, 2).parameter("b", {0}, 0, FieldKind::boolean);
  }));
  // Geometry is a function: what it gives is in the record, and one record is there at a time.
  const auto launched = [&](const std::function<void(Launch&)>& change) {
    KernelDefinition other = kernel;
    other.launch = [change](auto config, auto problem) {
      Launch g = doubling().launch(config, problem, {});
      change(g);
      return g;
    };
    return tuned(other) == 1 && tuned(kernel) == 1;
  };
  CHECK(launched([](auto& g) { g.shared_bytes = 64; }));
  CHECK(launched([](auto& g) { g.block.y = 2; }));
}

TEST_CASE("a source that is edited while it is tuned keeps what was measured of it before",
          "[runtime][engine]") {
  const Directory directory, files;
  const fs::path file = files.path() / "k.cuh";
  const std::string before = doubling().source.text, after = before + " // edited";
  test::write_text(file, before);
  KernelDefinition kernel = doubling();
  kernel.source.text.clear();
  kernel.source.file = file;
  Process process(directory.path());
  bool edited = false;
  process.options.tuning.progress = [&](const TuneProgress& now) {
    if (now.evaluated > 0 && !std::exchange(edited, true)) test::write_text(file, after);
  };
  process.runtime().tuned(kernel).tune({64});
  REQUIRE(edited);
  CHECK_FALSE(Process(directory.path()).runtime().tuned(kernel).known({64}));
  test::write_text(file, before);
  CHECK(Process(directory.path()).runtime().tuned(kernel).known({64}));
}

TEST_CASE("what was tuned of an edited source is launched, although its config is the same",
          "[runtime][engine]") {
  const Directory directory, files;
  const fs::path file = files.path() / "k.cuh";
  test::write_text(file, doubling().source.text);
  KernelDefinition kernel = doubling();
  kernel.source.text.clear();
  kernel.source.file = file;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto tuned = runtime.tuned(kernel);
  const Values first = tuned.tune({64}).winner().config;
  const auto before =
      detail::Access::engine(runtime)->serving().handles().front()->find(Values{64});
  test::write_text(file, doubling().source.text + " // edited");
  CHECK(tuned.tune({64}).winner().config == first);
  const auto after = detail::Access::engine(runtime)->serving().handles().front()->find(Values{64});
  CHECK(before != after);
  CHECK(before->loaded != after->loaded);
  CHECK(tuned.tune({64}).from_store);
  CHECK(after == detail::Access::engine(runtime)->serving().handles().front()->find(Values{64}));
}

TEST_CASE("an unfinished search", "[runtime][engine]") {
  Directory directory;
  Buffers b(50);
  Process first(directory.path());
  first.of(8).seconds = 0.5e-3;
  first.options.tuning.max_evaluations = 2;
  first.runtime().tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
  CHECK(first.compiler->compiles == 2);

  SECTION("is enough for a launch") {
    Process second(directory.path());
    const Runtime runtime = second.runtime();
    runtime.tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(runtime.statistics().tuned == 0);
  }
  SECTION("is enough for a tuning that asks no more of it") {
    Process second(directory.path());
    TuneOptions two;
    two.max_evaluations = 2;
    CHECK(second.runtime().tuned(doubling()).tune({50}, two).from_store);
  }
  SECTION("is continued by a tuning that asks for all of it") {
    Process second(directory.path());
    second.of(8).seconds = 0.5e-3;
    const TuneResult r = second.runtime().tuned(doubling()).tune({50}, TuneOptions{});
    CHECK(r.complete);
    CHECK(r.winner().config == Values{8, 0});
    CHECK(second.compiler->compiles == 2);
  }
  SECTION("is continued by a tuning with more time") {
    Process second(directory.path());
    TuneOptions minute;
    minute.max_seconds = 60;
    CHECK(second.runtime().tuned(doubling()).tune({50}, minute).complete);
  }
}

TEST_CASE("damage on disk is repaired by work, never an error", "[runtime][engine]") {
  Directory directory;
  Buffers b(50);
  {
    Process first(directory.path());
    first.of(8).seconds = 0.5e-3;
    first.runtime().tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
  }
  Process second(directory.path());
  second.of(8).seconds = 0.5e-3;
  int tuned = 0, compiled = 0;
  SECTION("of the record: tuned again") {
    for (const auto& path : directory.entries(".json")) test::write_text(path, "{\"torn");
    tuned = 1;
  }
  SECTION("of the record's content") {
    for (const auto& path : directory.entries(".json")) {
      std::string text = test::read_text(path);
      const auto at = text.find("\"winner\"");
      REQUIRE(at != std::string::npos);
      text.replace(at, 8, "\"wimmer\"");
      test::write_text(path, text);
    }
    tuned = 1;
  }
  SECTION("of the binaries: compiled again") {
    REQUIRE(directory.entries(".kiln").size() == 4);
    for (const auto& path : directory.entries(".kiln")) {
      std::string text = test::read_text(path);
      text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 0x40);
      test::write_text(path, text);
    }
    compiled = 1;  // the winner
  }
  SECTION("of everything") {
    for (const auto& path : directory.entries(".kiln")) test::write_text(path, "");
    for (const auto& path : directory.entries(".json")) test::write_text(path, "");
    tuned = 1;
    compiled = 4;
  }
  const Runtime runtime = second.runtime();
  const auto handle = runtime.tuned(doubling());
  b.y.assign(50, 0);
  handle({}, Values{50}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
  CHECK(handle.config({50}) == Values{8, 0});
  CHECK(static_cast<int>(runtime.statistics().tuned) == tuned);
  CHECK(second.compiler->compiles == compiled);

  Process third(directory.path());
  const Runtime after = third.runtime();
  after.tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
  CHECK(after.statistics().tuned == 0);
  CHECK(third.compiler->compiles == 0);
}

TEST_CASE("a remembered winner that no longer loads is replaced", "[runtime][engine]") {
  Directory directory;
  Buffers b(50);
  {
    Process first(directory.path());
    first.of(8).seconds = 0.5e-3;
    first.runtime().tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
  }
  Process second(directory.path());
  second.of(8).load_error = "the driver is too old for this module";
  second.of(4).seconds = 0.7e-3;
  const Runtime runtime = second.runtime();
  const auto handle = runtime.tuned(doubling());
  handle({}, Values{50}, b.y.data(), b.x.data(), 50);
  CHECK(handle.config({50}) == Values{4, 0});
  const auto warnings = second.warnings();
  REQUIRE_FALSE(warnings.empty());
  CHECK(warnings[0].find("too old") != std::string::npos);
}

TEST_CASE("a cache that cannot be used warns once and is done without", "[runtime][engine]") {
  Directory directory;
  const auto unusable = directory.path() / "cache";
  Process process(unusable);
  SECTION("a file is in its place") { test::write_text(unusable, "not a directory"); }
  SECTION("a link is in its place") {
    std::filesystem::create_directory(directory.path() / "real");
    std::filesystem::create_symlink(directory.path() / "real", unusable);
  }
  SECTION("others may write to it") {
    std::filesystem::create_directory(unusable);
    std::filesystem::permissions(unusable, std::filesystem::perms::all);
  }
  SECTION("it may not be written") { process.options.store.directory = "/proc/kiln-test-cache"; }
  Buffers b(50);
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  for (int n : {50, 20, 30}) {
    b.y.assign(50, 0);
    handle({}, Values{n}, b.y.data(), b.x.data(), n);
    CHECK(b.y[19] == 3.0f);
  }
  CHECK(process.compiler->compiles == 4);  // kept in memory
  CHECK(process.warnings().size() == 1);
  CHECK(runtime.statistics().tuned == 3);
}

TEST_CASE("eight threads launch while one of them tunes", "[runtime][engine]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers known(16);
  handle({}, Values{16}, known.y.data(), known.x.data(), 16);

  // The compiler waits until known problems were launched beside it: a launch that waited for the
  // search would wait for ever.
  std::atomic<int> beside{0};
  process.compiler->on_compile = [&](const codegen::Source&) {
    while (beside < 100) std::this_thread::yield();
  };
  process.compiler->version = "2";  // nothing is in the store for the new problem
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        if (t < 4) {  // all want the same new problem
          Buffers b(33);
          handle({}, Values{33}, b.y.data(), b.x.data(), 33);
          wrong += !b.doubled();
        } else {
          for (int i = 0; i < 50; ++i) {
            Buffers b(16);
            handle({}, Values{16}, b.y.data(), b.x.data(), 16);
            wrong += !b.doubled();
            ++beside;
          }
        }
      });
  }
  CHECK(wrong == 0);
  CHECK(runtime.statistics().tuned == 2);  // once, for four threads
  CHECK(handle.config({33}) == Values{8, 0});
}

TEST_CASE("whether there is something to do is asked of the device's own default",
          "[runtime][engine]") {
  const Directory directory;
  Process process(directory.path());
  KernelDefinition kernel = doubling({1, 2, 4}, 2);
  kernel.space.default_on(Target::Kind::host, {4, 0});
  const auto nothing_for = [&](std::int64_t a) {
    kernel.launch = [description = doubling().launch, a](auto config, auto problem) {
      Launch g = description(config, problem, {});
      if (config[0] == a) g.grid.x = 0;
      return g;
    };
  };
  nothing_for(2);  // CUDA's default
  CHECK(process.runtime().tuned(kernel).tune({64}).winner().status == CandidateStatus::measured);
  nothing_for(4);
  CHECK_THROWS_WITH(process.runtime().tuned(kernel).tune({65}),
                    Catch::Contains("the grid is empty"));
}

TEST_CASE("what is asked for is checked before the store answers", "[runtime][engine]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto tuned = runtime.tuned(doubling());
  REQUIRE(tuned.tune({50}).complete);
  TuneOptions options;
  options.strategy = "guess";
  CHECK_THROWS_AS(tuned.tune({50}, options), UserError);
  options.strategy = "random:radius=2";
  CHECK_THROWS_AS(tuned.tune({50}, options), UserError);
  options.strategy.clear();
  options.target_seconds = -1;
  CHECK_THROWS_AS(tuned.tune({50}, options), UserError);
}

TEST_CASE("a retune that is stopped loses nothing", "[runtime][engine]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto tuned = runtime.tuned(doubling({1, 2, 4, 8, 16, 32, 64}));
  REQUIRE(tuned.tune({50}).winner().config == Values{8, 0});
  std::stop_source source;
  TuneOptions again;
  again.retune = true;
  again.stop = source.get_token();

  SECTION("before it began: the config in use stays") {
    source.request_stop();
    const TuneResult r = tuned.tune({50}, again);
    CHECK(r.end == SearchEnd::stopped);
    CHECK(r.winner().config == Values{8, 0});
    CHECK(tuned.config({50}) == Values{8, 0});
  }
  SECTION("on the way: what it did not come to is known from before") {
    again.progress = [&](const TuneProgress& p) {
      if (p.phase == TuneProgress::Phase::time) source.request_stop();
    };
    const TuneResult r = tuned.tune({50}, again);
    CHECK(r.end == SearchEnd::stopped);
    CHECK(r.evaluated < 7);
    CHECK(r.candidates.size() == 7);
  }
  const auto known = tuned.known({50});
  REQUIRE(known);
  CHECK(known->candidates.size() == 7);
}

TEST_CASE("the default counts as tried only if it was", "[runtime][engine]") {
  Directory directory;
  Process process(directory.path());
  KernelDefinition kernel = doubling({1, 2, 4, 8, 16, 32, 64});
  kernel.space.where("not 2", [](auto c, auto, const DeviceLimits&) { return c[0] != 2; });
  const auto tuned = process.runtime().tuned(kernel);
  TuneOptions options;
  options.max_evaluations = 3;
  CHECK(tuned.tune({50}, options).count(CandidateStatus::measured) == 3);
  options.max_evaluations = 4;
  CHECK(tuned.tune({50}, options).count(CandidateStatus::measured) == 4);
}
