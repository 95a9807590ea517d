// Runtimes that may not compile, and what they say of what they lack.
#include <algorithm>
#include <atomic>
#include <thread>

#include "cache/store.hpp"
#include "kiln_test.hpp"
#include "modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// A runtime where every compiler is missing.
Runtime without_compiler(Process& process) {
  return detail::Access::runtime(std::make_shared<detail::Engine>(
      process.options, process.device, [](Target::Kind) -> std::shared_ptr<codegen::Compiler> {
        throw EnvironmentError("no compiler is installed");
      }));
}

}  // namespace

TEST_CASE("look-up only: what is there is launched, what is not is a value", "[runtime][modes]") {
  Directory directory;
  tune_into(directory.path(), 50, 8);
  Process process(directory.path());
  process.options.mode = Mode::lookup_only;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK_FALSE(handle.prepare({50}));
  CHECK(launch(handle, 50));
  CHECK(handle.config({50}) == Values{8, 0});
  // No record: the default, whose binary is there.
  CHECK(launch(handle, 70));
  CHECK(handle.config({70}) == Values{2, 0});
  CHECK(runtime.wanted().wanted.empty());

  KernelDefinition other = doubling({16}, 16);
  const auto lacking = runtime.tuned(other);
  const auto missing = lacking.prepare({50});
  REQUIRE(missing);
  CHECK(missing->instance == "doubling{a=16,b=0}");
  REQUIRE(missing->closest);
  REQUIRE(missing->differences.size() == 2);  // the config, and the entry that spells it
  CHECK(missing->differences[0].field == "config");
  CHECK(missing->differences[0].wanted == "a=16,b=0");
  CHECK(missing->explain().find("a=16,b=0") != std::string::npos);
  Buffers b(50);
  try {
    lacking({}, Values{50}, b.y.data(), b.x.data(), 50);
    FAIL("it was launched");
  } catch (const MissingError& error) {
    CHECK(error.missing().instance == missing->instance);
  }
  CHECK(process.warnings().size() == 1);  // said once
  const Manifest wanted = runtime.wanted();
  REQUIRE(wanted.wanted.size() == 1);
  CHECK(wanted.wanted[0] ==
        WantedInstance{"doubling", {}, "generic", {{"n", 50}}, {{"a", 16}, {"b", 0}}});
  CHECK(process.compiler->compiles == 0);
  CHECK(process.device->timings == 0);
  CHECK_THROWS_AS(lacking.tune({50}), UserError);
  CHECK(handle.tune({50}).winner().config == Values{8, 0});

  SECTION("somebody made it meanwhile") {
    Process maker(directory.path());
    maker.options.mode = Mode::untuned;
    CHECK(launch(maker.runtime().tuned(other), 50));
    CHECK_FALSE(lacking.prepare({50}));
    CHECK(launch(lacking, 50));
  }
}

TEST_CASE("frozen: a root and nothing else", "[runtime][modes]") {
  Directory shipped, own;
  tune_into(shipped.path(), 50, 8);
  tune_into(own.path(), 60, 4);
  Process process(own.path());
  process.options.mode = Mode::frozen;
  process.options.store.roots = {shipped.path()};
  const auto before = own.entries(".kiln");
  {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    CHECK(launch(handle, 50));
    CHECK(handle.config({50}) == Values{8, 0});
    CHECK(handle.config({60}) == Values{2, 0});  // the writable store knows better; it is not asked
  }
  CHECK(own.entries(".kiln") == before);
  CHECK(process.compiler->compiles == 0);

  SECTION("without roots it has nothing") {
    process.options.store.roots.clear();
    CHECK_THROWS_AS(process.runtime(), UserError);
  }
  SECTION("a root that cannot be used is told at once") {
    process.options.store.roots.push_back(own.path() / "none.kiln");
    CHECK_THROWS_AS(process.runtime(), EnvironmentError);
  }
}

TEST_CASE("no compiler: what was shipped is launched in any mode", "[runtime][modes]") {
  Directory shipped, own;
  tune_into(shipped.path(), 50, 8);
  for (const Mode mode : {Mode::tune_now, Mode::untuned, Mode::lookup_only, Mode::frozen}) {
    Process process(own.path());
    process.options.mode = mode;
    process.options.store.roots = {shipped.path()};
    const Runtime runtime = without_compiler(process);
    const auto handle = runtime.tuned(doubling());
    CHECK(launch(handle, 50));
    CHECK(handle.config({50}) == Values{8, 0});
    CHECK(process.device->timings == 0);
    if (mode == Mode::tune_now || mode == Mode::untuned)
      CHECK_THROWS_AS(runtime.tuned(doubling({32}, 32)).prepare({50}), EnvironmentError);
  }
}

TEST_CASE("another compiler's binaries and records are taken from a root", "[runtime][modes]") {
  Directory shipped, own;
  tune_into(shipped.path(), 50, 8);
  Process process(own.path());
  process.compiler->version = "2";
  process.options.store.roots = {shipped.path()};
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch(handle, 50));
  CHECK(handle.config({50}) == Values{8, 0});
  CHECK(process.compiler->compiles == 0);
  CHECK(runtime.statistics().tuned == 0);
}

TEST_CASE("binaries that make no sense are passed over for those of the next root",
          "[runtime][modes]") {
  Directory first, second, own;
  tune_into(first.path(), 50, 8);
  tune_into(second.path(), 50, 8);
  {
    StoreOptions options;
    options.directory = first.path();
    cache::Store store(options);
    for (const StoreEntry& entry : store.list())
      if (entry.kind == EntryKind::binary)
        store.put(entry.key, detail::Bytes(std::vector<std::byte>(100)));
  }
  Process process(own.path());
  process.options.mode = Mode::frozen;
  process.options.store.roots = {first.path(), second.path()};
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch(handle, 50));
  CHECK(handle.config({50}) == Values{8, 0});
}

TEST_CASE("an edited kernel is not served from a root", "[runtime][modes]") {
  Directory shipped, own;
  tune_into(shipped.path(), 50, 8);
  KernelDefinition edited = doubling();
  edited.source.text += " // edited";
  Process process(own.path());
  process.options.store.roots = {shipped.path()};
  SECTION("it is compiled anew") {
    const Runtime runtime = process.runtime();
    CHECK(launch(runtime.tuned(edited), 50));
    CHECK(process.compiler->compiles == 4);
  }
  SECTION("frozen: the source is named") {
    process.options.mode = Mode::frozen;
    const auto missing = process.runtime().tuned(edited).prepare({50});
    REQUIRE(missing);
    REQUIRE(missing->differences.size() == 1);
    CHECK(missing->differences[0].field == "kernel source");
  }
}

TEST_CASE("a program shipped without its kernels' sources", "[runtime][modes]") {
  Directory shipped, own;
  const fs::path source = own.path() / "doubling.cuh";
  KernelDefinition kernel = doubling();
  write_text(source, std::exchange(kernel.source.text, {}));
  kernel.source.file = source;
  tune_into(shipped.path(), 50, 8, kernel);
  fs::remove(source);
  Process process(own.path() / "store");
  process.options.store.roots = {shipped.path()};
  const auto check = [&](const Runtime& runtime) {
    const auto handle = runtime.tuned(kernel);
    CHECK(launch(handle, 50));
    CHECK(handle.config({50}) == Values{8, 0});
  };
  SECTION("frozen, without a compiler") {
    process.options.mode = Mode::frozen;
    check(without_compiler(process));
  }
  SECTION("with a compiler, in any mode") {
    for (const Mode mode : {Mode::tune_now, Mode::untuned, Mode::lookup_only, Mode::frozen}) {
      process.options.mode = mode;
      const Runtime runtime = process.runtime();
      check(runtime);
      CHECK(runtime.statistics().tuned == 0);
    }
    CHECK(process.compiler->compiles == 0);
    process.options.mode = Mode::tune_now;
    KernelDefinition other = kernel;
    other.name = "other";
    CHECK_THROWS_WITH(launch(process.runtime().tuned(other), 50), Catch::Contains("doubling.cuh"));
  }
}

TEST_CASE("without the winner's binary the default is launched", "[runtime][modes]") {
  Directory shipped, own;
  tune_into(shipped.path(), 50, 8);
  fs::remove(entry_of(shipped, "k<8, 0>"));
  Process process(own.path());
  process.options.mode = Mode::frozen;
  process.options.store.roots = {shipped.path()};
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(launch(handle, 50));
  CHECK(handle.config({50}) == Values{2, 0});
  REQUIRE(process.warnings().size() == 1);
  CHECK(process.warnings()[0].find("doubling n=50: the winner is missing, the default is used") ==
        0);
  REQUIRE(runtime.wanted().wanted.size() == 1);
  CHECK(runtime.wanted().wanted[0].config.at("a") == 8);
}

TEST_CASE("a missing instance is warned of once, with the problem that asked for it",
          "[runtime][modes]") {
  Directory directory;
  tune_into(directory.path(), 50, 8);
  Process process(directory.path());
  process.options.mode = Mode::lookup_only;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling({16}, 16));
  for (const int n : {50, 60, 70}) CHECK(handle.prepare({n}));
  REQUIRE(process.warnings().size() == 1);
  CHECK(process.warnings()[0].find("doubling n=50: nothing can be launched: doubling{a=16,b=0}") ==
        0);
  CHECK(runtime.wanted().wanted.size() == 3);
}

TEST_CASE("one run collects everything that is missing", "[runtime][modes]") {
  Directory directory;
  tune_into(directory.path(), 50, 8);
  Process process(directory.path());
  process.options.mode = Mode::collect;
  const Runtime runtime = process.runtime();
  CHECK(launch(runtime.tuned(doubling()), 50));  // what is there runs
  KernelDefinition first = doubling({16}, 16), second = doubling({32}, 32);
  second.name = "twice";
  const auto one = runtime.tuned(first), other = runtime.tuned(second);
  const int before = process.device->launches;
  for (int round = 0; round < 2; ++round)
    for (const int n : {50, 60}) {
      CHECK_FALSE(launch(one, n));
      CHECK_FALSE(launch(other, n));
    }
  CHECK_FALSE(launch(runtime.tuned(doubling({4, 64}, 4)).with_config({64, 0}), 50));
  CHECK(process.device->launches == before);
  CHECK(process.compiler->compiles == 0);
  CHECK(process.warnings().size() == 3);  // an instance each
  const Manifest wanted = runtime.wanted();
  CHECK(wanted.wanted.size() == 5);
  CHECK(std::ranges::count(wanted.wanted, "twice", &WantedInstance::kernel) == 2);
}

TEST_CASE("a run that collects answers whatever is asked of a kernel that is missing",
          "[runtime][modes]") {
  Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::collect;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const auto said = [](const auto& ask) -> std::string {
    try {
      ask();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing";
  };
  const int before = process.device->launches;
  for (int round = 0; round < 2; ++round) {  // unknown at first, then known to be missing
    const auto bound = handle.at({50});
    Buffers b(50);
    bound(Stream{}, b.y.data(), b.x.data(), 50);
    CHECK(handle.config({50}) == Values{2, 0});
    CHECK(said([&] { bound.symbol("filter"); }).find("missing") != std::string::npos);
    CHECK_THROWS_AS(handle.verify({50}), MissingError);
    CHECK(said([&] { handle.tune({50}); }) != "nothing");
    CHECK_FALSE(handle.known({50}));
    const auto missing = handle.prepare({50});
    REQUIRE(missing);
    CHECK_FALSE(missing->explain().empty());
  }
  const auto typed = runtime.tuned(typed_doubling());
  Buffers b(60);
  typed({}, b.y.data(), b.x.data(), 60);
  typed.at({60})({}, b.y.data(), b.x.data(), 60);
  CHECK(typed.config({60}).a == 2);
  CHECK(typed.prepare({60}));
  handle.symbol("filter", 1.0f);  // for kernels to come: there is none
  CHECK(process.device->launches == before);
}

TEST_CASE("the nearest entry is one of the same kernel, or none", "[runtime][modes]") {
  Directory directory;
  tune_into(directory.path(), 50, 8);
  Process process(directory.path());
  process.options.mode = Mode::lookup_only;
  const Runtime runtime = process.runtime();
  KernelDefinition stranger = doubling();
  stranger.name = "halving";
  const auto missing = runtime.tuned(stranger).prepare({50});
  REQUIRE(missing);
  CHECK_FALSE(missing->closest);
  CHECK(missing->explain().find("no other binary of this kernel") != std::string::npos);
}

TEST_CASE("binaries for a narrower CPU run where there are no others", "[runtime][modes]") {
  Directory shipped, own;
  {
    Process maker(shipped.path());
    maker.device->info().target = {Target::Kind::host, "x86-64-v2"};
    maker.options.mode = Mode::untuned;
    CHECK(launch(maker.runtime().tuned(doubling()), 50));
  }
  Process process(own.path());
  process.options.mode = Mode::frozen;
  process.options.store.roots = {shipped.path()};
  SECTION("the machine is wider") {
    process.device->info().target = {Target::Kind::host, "x86-64-v4"};
    CHECK(launch(process.runtime().tuned(doubling()), 50));
    CHECK(process.compiler->compiles == 0);
  }
  SECTION("the machine is wider, and there is a compiler") {
    process.options.mode = Mode::untuned;
    process.device->info().target = {Target::Kind::host, "x86-64-v4"};
    CHECK(launch(process.runtime().tuned(doubling()), 50));
    CHECK(process.compiler->compiles == 1);
  }
  SECTION("the machine is narrower") {
    process.device->info().target = {Target::Kind::host, "x86-64"};
    CHECK(process.runtime().tuned(doubling()).prepare({50}));
  }
}

TEST_CASE("nobody waits for another problem's tuning", "[runtime][modes]") {
  Directory directory;
  tune_into(directory.path(), 60, 8, doubling({1, 2, 8}));
  Process process(directory.path());
  std::atomic<bool> inside{false}, go{false};
  process.compiler->on_compile = [&](const codegen::Source&) {
    inside = true;
    while (!go) std::this_thread::yield();
  };
  const WhileBusy choice = GENERATE(WhileBusy::wait, WhileBusy::use_default);
  process.options.while_busy = choice;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling({1, 2, 8, 16}));  // 16 is new: it must be compiled
  std::atomic<bool> tuned{false}, right{false};
  std::jthread tuning([&] {
    right = launch(handle, 50);
    tuned = true;
  });
  while (!inside) std::this_thread::yield();
  // Another handle: its problem is known.
  CHECK(launch(runtime.tuned(doubling({1, 2, 8})), 60));
  if (choice == WhileBusy::use_default) {
    CHECK(launch(handle, 50));
    CHECK(process.device->launches > 0);
  }
  CHECK_FALSE(tuned);
  go = true;
  tuning.join();
  CHECK(tuned);
  CHECK(right);
  CHECK(handle.config({50}).size() == 2);
}

TEST_CASE("two processes do not tune one problem at the same time", "[runtime][modes]") {
  Directory directory;
  Process first(directory.path()), second(directory.path());
  std::atomic<bool> inside{false}, go{false};
  first.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry != "k<8, 0>") return;
    inside = true;
    while (!go) std::this_thread::yield();
  };
  const Runtime one = first.runtime(), other = second.runtime();
  std::jthread tuning([&] { one.tuned(doubling()).tune({50}); });
  while (!inside) std::this_thread::yield();
  std::atomic<bool> done{false};
  TuneResult told;
  std::jthread waiting([&] {
    told = other.tuned(doubling()).tune({50});
    done = true;
  });
  // However long the first one takes, the second does not begin to measure.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK_FALSE(done);
  CHECK(second.device->timings == 0);
  go = true;
  tuning.join();
  waiting.join();
  CHECK(told.from_store);
  CHECK(told.complete);
  CHECK(second.device->timings == 0);
  CHECK(other.statistics().store.waits >= 1);
}

TEST_CASE("less does not replace more", "[runtime][modes]") {
  Directory directory;
  Process first(directory.path()), second(directory.path());
  first.options.store.lock_deadline = second.options.store.lock_deadline = 0;
  const Runtime one = first.runtime(), other = second.runtime();
  TuneOptions little;
  little.max_evaluations = 2;
  bool between = false;
  // While the first one works on its two candidates, the second one finishes all.
  first.device->on_launch = [&](const std::string&, void**) {
    if (std::exchange(between, true)) return;
    CHECK(other.tuned(doubling()).tune({50}).complete);
  };
  const TuneResult told = one.tuned(doubling()).tune({50}, little);
  CHECK(between);
  CHECK_FALSE(told.complete);
  const auto kept = other.tuned(doubling()).known({50});
  REQUIRE(kept);
  CHECK(kept->complete);
  CHECK(kept->candidates.size() == 4);
}

TEST_CASE("a launch that waits for another tuning can be stopped", "[runtime][modes]") {
  Directory directory;
  Process first(directory.path()), second(directory.path());
  std::atomic<bool> inside{false}, go{false};
  first.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry != "k<2, 0>") return;  // the default: nothing is saved before it
    inside = true;
    while (!go) std::this_thread::yield();
  };
  const Runtime one = first.runtime(), other = second.runtime();
  std::jthread tuning([&] { one.tuned(doubling()).tune({50}); });
  while (!inside) std::this_thread::yield();
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  TuneOptions options;
  options.stop = stop.get_token();
  const TuneResult stopped = other.tuned(doubling({1, 2, 4, 8}, 4)).tune({50}, options);
  CHECK(stopped.end == SearchEnd::stopped);
  go = true;
}

TEST_CASE("of several sources none is guessed", "[runtime][modes]") {
  Directory shipped, own;
  const fs::path source = own.path() / "doubling.cuh";
  KernelDefinition kernel = doubling();
  const std::string text = std::exchange(kernel.source.text, {});
  kernel.source.file = source;
  for (const char* edit : {"", " // edited"}) {
    write_text(source, text + edit);
    tune_into(shipped.path(), 50, 8, kernel);
  }
  fs::remove(source);
  Process process(own.path() / "store");
  process.options.mode = Mode::frozen;
  process.options.store.roots = {shipped.path()};
  const auto missing = without_compiler(process).tuned(kernel).prepare({50});
  REQUIRE(missing);
  CHECK(missing->explain().find("2 sources") != std::string::npos);
}
