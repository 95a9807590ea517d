#include <atomic>
#include <thread>

#include "allocations.hpp"
#include "engine_fixture.hpp"
#include "kiln/config.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using kiln::test::Directory;
using kiln::test::doubling;
using kiln::test::Process;

struct DoublingConfig {
  int a, b;
};
KILN_CONFIG(DoublingConfig, a, b)
struct DoublingProblem {
  int n;
};
KILN_PROBLEM(DoublingProblem, n)

namespace {

using Typed = Kernel<DoublingConfig, DoublingProblem, void(float*, const float*, int)>;

Typed typed_doubling() {
  return {.name = "doubling",
          .source = {.text = "..."},
          .entry = "k",
          .config_type = "DoublingConfig",
          .space = Space<DoublingConfig, DoublingProblem>{{2, 0}}.values(&DoublingConfig::a,
                                                                         {1, 2, 4, 8}),
          .geometry =
              [](const DoublingConfig& c, const DoublingProblem& p) {
                return LaunchGeometry{{unsigned((p.n + c.a - 1) / c.a)}, {unsigned(c.a)}, 0};
              },
          .problem = [](float*, const float*, int n) { return DoublingProblem{n}; },
          .workload =
              [](const DoublingProblem& p, Workload& w) {
                const auto n = std::size_t(p.n);
                w.output<float>(n).input<float>(n).scalar<int>(p.n);
              },
          .reference =
              [](float* y, const float* x, int n) {
                for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
              }};
}

std::string typed_entry(int a) { return "k<DoublingConfig{.a=" + std::to_string(a) + ", .b=0}>"; }

struct Buffers {
  explicit Buffers(int n) : x(std::size_t(n), 1.5f), y(std::size_t(n), 0.0f) {}
  bool doubled() const {
    for (std::size_t i = 0; i < x.size(); ++i)
      if (y[i] != 2 * x[i]) return false;
    return true;
  }
  std::vector<float> x, y;
};

}  // namespace

TEST_CASE("a launch tunes a new problem, then only looks it up", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  (*process.script)[typed_entry(8)].seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const Typed kernel = typed_doubling();
  const auto handle = runtime.tuned(kernel);
  CHECK(process.compiler->compiles == 0);  // a handle is cheap

  Buffers b(50);
  handle({}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
  CHECK(runtime.statistics().tuned == 1);
  CHECK(handle.config({50}).a == 8);
  const int launches = process.device->launches;
  handle({}, b.y.data(), b.x.data(), 50);
  CHECK(process.device->launches == launches + 1);
  CHECK(runtime.statistics().tuned == 1);

  Buffers c(7);
  handle({}, c.y.data(), c.x.data(), 7);
  CHECK(c.doubled());
  CHECK(runtime.statistics().tuned == 2);
  CHECK(process.compiler->compiles == 4);  // the same instances

  const auto bound = handle.at({50});
  CHECK(bound.geometry().block.x == 8);
  CHECK(bound.geometry().grid.x == 7);
  b.y.assign(50, 0);
  bound({}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
}

TEST_CASE("a cached launch allocates nothing", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  Buffers b(16);
  const auto counted = [](auto&& launch) {
    launch();
    const std::size_t before = test::allocations();
    for (int i = 0; i < 100; ++i) launch();
    return test::allocations() - before;
  };
  const std::size_t before = test::allocations();
  ::operator delete(::operator new(1));
  REQUIRE(test::allocations() == before + 1);  // the counter counts

  const Typed kernel = typed_doubling();
  const auto typed = runtime.tuned(kernel);
  CHECK(counted([&] { typed({}, b.y.data(), b.x.data(), 16); }) == 0);
  const auto bound = typed.at({16});
  CHECK(counted([&] { bound({}, b.y.data(), b.x.data(), 16); }) == 0);

  const auto dynamic = runtime.tuned(doubling());
  const Values problem{16};
  CHECK(counted([&] { dynamic({}, problem, b.y.data(), b.x.data(), 16); }) == 0);
}

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
  SECTION("is enough for whoever asks no more of it") {
    Process second(directory.path());
    TuneOptions two;
    two.max_evaluations = 2;
    CHECK(second.runtime().tuned(doubling()).tune({50}, two).from_store);
  }
  SECTION("is continued by whoever asks for all of it") {
    Process second(directory.path());
    second.of(8).seconds = 0.5e-3;
    const TuneResult r = second.runtime().tuned(doubling()).tune({50}, TuneOptions{});
    CHECK(r.complete);
    CHECK(r.winner().config == Values{8, 0});
    CHECK(second.compiler->compiles == 2);
  }
  SECTION("is continued by whoever gives it more time") {
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
  SECTION("it is another user's") {
    if (::geteuid() != 0) return;
    std::filesystem::create_directory(unusable);
    REQUIRE(::chown(unusable.c_str(), 12345, 12345) == 0);
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

TEST_CASE("an empty problem launches nothing and is not tuned", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const Typed kernel = typed_doubling();
  const auto handle = runtime.tuned(kernel);
  handle({}, nullptr, nullptr, 0);
  CHECK(process.device->launches == 0);
  CHECK(runtime.statistics().tuned == 0);
  handle.at({0})({}, nullptr, nullptr, 0);
  CHECK(process.device->launches == 0);
}

TEST_CASE("problems of one bucket share a search", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  KernelDefinition k = doubling();
  k.bucket = [](std::span<const std::int64_t> p) { return Values{(p[0] + 63) / 64 * 64}; };
  const auto handle = runtime.tuned(k);
  for (int n : {1, 63, 64}) {
    Buffers b(n);
    handle({}, Values{n}, b.y.data(), b.x.data(), n);
    CHECK(b.doubled());  // the bucket chose the config, not the size
  }
  CHECK(runtime.statistics().tuned == 1);
  CHECK(handle.tune({5}).problem == Values{64});
}

TEST_CASE("untuned: the default, and nothing is measured", "[runtime][handle]") {
  Directory directory;
  Buffers b(50);
  {
    Process process(directory.path());
    process.options.mode = Mode::untuned;
    process.of(8).seconds = 1e-9;
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    handle({}, Values{50}, b.y.data(), b.x.data(), 50);
    CHECK(b.doubled());
    CHECK(handle.config({50}) == Values{2, 0});
    CHECK(process.device->timings == 0);
    CHECK(process.compiler->compiles == 1);
  }
  SECTION("a default that does not compile is an error with the log as data") {
    Process process(directory.path() / "other");
    process.options.mode = Mode::untuned;
    process.of(2).compile_log = "line 3: no";
    const auto handle = process.runtime().tuned(doubling());
    try {
      handle({}, Values{50}, b.y.data(), b.x.data(), 50);
      FAIL("nothing was thrown");
    } catch (const CompileError& error) {
      CHECK(error.failure().log == "line 3: no");
      CHECK(error.failure().kernel == "doubling{a=2,b=0}");
    }
  }
  SECTION("a default over the limits is an error before any compile") {
    Process process(directory.path() / "other");
    process.options.mode = Mode::untuned;
    const auto handle = process.runtime().tuned(doubling({4096}, 4096));
    CHECK_THROWS_AS(handle({}, Values{50}, b.y.data(), b.x.data(), 50), UserError);
    CHECK(process.compiler->compiles == 0);
  }
}

TEST_CASE("a failed search is not remembered", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  for (int a : {1, 2, 4, 8}) process.of(a).launch_error = "down";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(50);
  CHECK_THROWS_AS(handle({}, Values{50}, b.y.data(), b.x.data(), 50), TuningFailedError);
  for (int a : {1, 2, 4, 8}) process.of(a).launch_error.clear();
  handle({}, Values{50}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
}

TEST_CASE("arguments of run-time kernels are checked", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const auto handle = process.runtime().tuned(doubling());
  Buffers b(8);
  const auto text = [&](auto&&... args) -> std::string {
    try {
      handle({}, Values{8}, args...);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(text(b.y.data(), static_cast<const float*>(b.x.data()), 8).empty());
  CHECK(text(b.y.data(), b.x.data(), 8).empty());  // const may be added
  CHECK(text(static_cast<const float*>(b.y.data()), b.x.data(), 8).find("argument 0") !=
        std::string::npos);
  CHECK(text(b.y.data(), b.x.data(), 8L).find("argument 2 is `long`") != std::string::npos);
  CHECK(text(b.y.data(), b.x.data()).find("2 arguments given") != std::string::npos);
  double d = 0;
  CHECK(text(b.y.data(), &d, 8).find("`double*`") != std::string::npos);
  CHECK_THROWS_AS(handle({}, Values{8, 8}, b.y.data(), b.x.data(), 8), UserError);
  CHECK_THROWS_AS(handle({}, Values{}, b.y.data(), b.x.data(), 8), UserError);
}

TEST_CASE("verify launches what is in use on data of its own", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  handle.tune({50});
  const Verification right = handle.verify({50});
  CHECK(right.right);
  CHECK(right.why.empty());
  process.of(2).run = [](void** args) { (*static_cast<float**>(args[0]))[3] = 0; };
  const Verification wrong = handle.verify({50});
  CHECK_FALSE(wrong.right);
  CHECK(wrong.why.find("argument 0") != std::string::npos);
  CHECK(wrong.max_error > 1);
  CHECK(process.device->live_allocations == 0);

  KernelDefinition k = doubling();
  k.reference = nullptr;
  CHECK_THROWS_AS(runtime.tuned(k).verify({50}), UserError);
}

TEST_CASE("handles, bounds and arrays outlive their runtime", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const Typed kernel = typed_doubling();
  Buffers b(24);
  {
    auto made = std::make_unique<Runtime>(process.runtime());
    auto array = made->array(std::vector<float>{1, 2, 3});
    auto handle =
        std::make_unique<Tuned<DoublingConfig, DoublingProblem, void(float*, const float*, int)>>(
            made->tuned(kernel));
    made.reset();
    (*handle)({}, b.y.data(), b.x.data(), 24);
    const auto bound = handle->at({24});
    handle.reset();
    b.y.assign(24, 0);
    bound({}, b.y.data(), b.x.data(), 24);
    CHECK(b.doubled());
    CHECK(array.download() == std::vector<float>{1, 2, 3});
    CHECK_THROWS_AS(array.upload(std::vector<float>(4)), UserError);
  }
  CHECK(process.device->live_kernels == 0);
  CHECK(process.device->live_allocations == 0);
}
