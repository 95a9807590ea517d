#include <atomic>
#include <thread>

#include "kiln_test.hpp"
#include "runtime/device/entry_arguments.hpp"
#include "unit/runtime/allocations.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

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
  CHECK(bound.description().block.x == 8);
  CHECK(bound.description().grid.x == 7);
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

  Typed kernel = typed_doubling();
  kernel.relations = {{2, "n"}};
  const auto typed = runtime.tuned(kernel);
  CHECK(counted([&] { typed({}, b.y.data(), b.x.data(), 16); }) == 0);
  const auto bound = typed.at({16});
  CHECK(counted([&] { bound({}, b.y.data(), b.x.data(), 16); }) == 0);

  const auto dynamic = runtime.tuned(doubling());
  const Values problem{16};
  CHECK(counted([&] { dynamic({}, problem, b.y.data(), b.x.data(), 16); }) == 0);

  kernel.bucket = [](const DoublingProblem& p) { return DoublingProblem{(p.n + 63) / 64 * 64}; };
  const auto described = runtime.tuned(kernel.definition());
  const float* x = b.x.data();
  CHECK(counted([&] { described({}, {16}, b.y.data(), x, 16); }) == 0);
  CHECK(counted([&] { described({}, {16}, b.y.data(), b.x.data(), 16); }) == 0);
  CHECK(counted([&] { described.at({16})({}, b.y.data(), x, 16); }) == 0);
  int n = 16;
  float* y = b.y.data();
  void* args[] = {&y, &x, &n};
  CHECK(counted([&] { described.launch({}, {16}, args); }) == 0);
}

TEST_CASE("a described kernel is held for one problem", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  KernelDefinition k = doubling();
  k.bucket = [](std::span<const std::int64_t> p) { return Values{(p[0] + 63) / 64 * 64}; };
  const auto handle = runtime.tuned(k);
  const auto bound = handle.at({50});
  CHECK(runtime.statistics().tuned == 1);
  CHECK(bound.description().block.x == 8);
  CHECK(bound.description().grid.x == 7);  // of the problem, not of its bucket
  Buffers b(50);
  bound({}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
  CHECK_THROWS_AS(bound({}, b.y.data(), b.x.data(), 50L), UserError);
  CHECK_THROWS_AS(bound({}, b.y.data(), b.x.data()), UserError);
  CHECK_THROWS_AS(handle.at({50, 1}), UserError);

  const int launches = process.device->launches;
  handle.at({0})({}, b.y.data(), b.x.data(), 0);
  CHECK(process.device->launches == launches);
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

TEST_CASE("what was found is told, also where nothing can be launched any more",
          "[runtime][handle]") {
  Directory directory;
  {
    Process process(directory.path());
    (*process.script)[typed_entry(8)].seconds = 0.5e-3;
    process.runtime().tuned(typed_doubling()).tune({50});
  }
  Process process(directory.path());
  process.device->is_lost = true;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(typed_doubling());
  const TuneResult result = handle.tune({50});
  CHECK(result.from_store);
  CHECK(result.winner().config.front() == 8);
  Buffers b(50);
  CHECK_THROWS_AS(handle({}, b.y.data(), b.x.data(), 50), Error);
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

TEST_CASE("another process does not remember a failed search", "[runtime][handle]") {
  Directory directory;
  Process first(directory.path()), second(directory.path());
  for (int a : {1, 2, 4, 8}) first.of(a).launch_error = "down";
  Buffers b(50);
  CHECK_THROWS_AS(first.runtime().tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50),
                  TuningFailedError);
  second.runtime().tuned(doubling())({}, Values{50}, b.y.data(), b.x.data(), 50);
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

TEST_CASE("argument types may be spelled as sources spell them", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  KernelDefinition kernel = doubling();
  kernel.arguments = {"float *", "float const* __restrict__", "int32_t"};
  const auto handle = process.runtime().tuned(kernel);
  Buffers b(8);
  handle({}, Values{8}, b.y.data(), b.x.data(), 8);
  CHECK(b.doubled());
  CHECK_THROWS_AS(handle({}, Values{8}, b.y.data(), b.x.data(), 8u), UserError);
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

TEST_CASE("a config of one's own is launched and timed, and nothing remembers it",
          "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  (*process.script)[typed_entry(8)].seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const Typed kernel = typed_doubling();
  const auto handle = runtime.tuned(kernel);
  const auto four = handle.with_config({4, 0});
  Buffers b(50);
  four({}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
  CHECK(four.config({50}).a == 4);
  CHECK(four.at({50}).description().block.x == 4);
  CHECK(four.verify({50}).right);
  CHECK(process.compiler->compiles == 1);
  CHECK(process.device->timings == 0);  // not tuned

  const TuneResult timed = four.tune({50});
  REQUIRE(timed.candidates.size() == 1);
  CHECK(timed.winner().config == Values{4, 0});
  CHECK(timed.winner().status == CandidateStatus::measured);
  CHECK(timed.winner().seconds == Approx(1e-3));
  CHECK(timed.winner().samples.size() >= 3);
  CHECK(process.compiler->compiles == 1);
  CHECK(directory.entries(".json").empty());
  CHECK_FALSE(four.known({50}));
  CHECK(runtime.statistics().tuned == 0);

  // The handle that it comes from tunes as ever, and what is on record moves none.
  CHECK(handle.config({50}).a == 8);
  CHECK(handle.known({50}));
  CHECK_FALSE(four.known({50}));
  CHECK(four.config({50}).a == 4);
  CHECK(handle.with_config({2, 0}).config({50}).a == 2);
}

TEST_CASE("a config of one's own is not held to other targets' constraints", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  KernelDefinition k = doubling();
  k.space.where_on(Target::Kind::cuda, "never on GPUs",
                   [](auto, auto, const DeviceLimits&) { return false; });
  Buffers b(50);
  runtime.tuned(k).with_config({4, 0})({}, Values{50}, b.y.data(),
                                       static_cast<const float*>(b.x.data()), 50);
  CHECK(b.doubled());
}

namespace {

/// doubling() with a tensor map of x.
KernelDefinition doubling_of_a_map() {
  KernelDefinition k = doubling();
  MapRule rule;
  rule.argument = 1;
  rule.map = [](auto, auto p) { return TensorMap::tiled<float>({.size = {p[0]}, .box = {4}}); };
  k.maps = {rule};
  return k;
}

}  // namespace

TEST_CASE("an empty problem has no tensor maps", "[runtime][handle][maps]") {
  Directory directory;
  Process process(directory.path());
  process.device->info().limits.tensor_maps = true;  // but it cannot encode any
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(doubling_of_a_map()).with_config({4, 0});
  const auto launch = [&](int n) {
    handle.at({n})({}, static_cast<float*>(nullptr), static_cast<const float*>(nullptr), n);
  };
  CHECK_NOTHROW(launch(0));
  CHECK_THROWS_AS(launch(50), EnvironmentError);  // encodes
}

namespace {

/// Counts whose arrays of arguments a launch may change, and spoils those.
class SpoilingDevice final : public FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  std::shared_ptr<const detail::BoundLaunch> fixed(const runtime::Module&, const Launch&,
                                                   runtime::EntryArguments) const override {
    struct Spoiling final : detail::BoundLaunch {
      explicit Spoiling(const SpoilingDevice& counting) : device(counting) {}
      void operator()(const Launch&, Stream, void**) const override { ++device.left; }
      void take(const Launch&, Stream, void** args) const override {
        ++device.taken;
        args[0] = nullptr;
      }
      const SpoilingDevice& device;
    };
    return std::make_shared<const Spoiling>(*this);
  }

  mutable int left = 0, taken = 0;
};

}  // namespace

TEST_CASE("a held launch gives away its own array of arguments, never the program's",
          "[runtime][handle][maps]") {
  Directory directory;
  Process process(directory.path());
  const auto device = std::make_shared<SpoilingDevice>(process.script);
  device->info().limits.tensor_maps = true;
  process.device = device;
  const Runtime runtime = process.runtime();
  const auto bound = runtime.tuned(doubling_of_a_map()).with_config({4, 0}).at({50});
  Buffers b(50);
  float* y = b.y.data();
  const float* x = b.x.data();
  int n = 50;
  bound({}, y, x, n);
  CHECK((device->taken == 1 && device->left == 0));
  void* args[] = {&y, &x, &n};
  bound.launch({}, args);
  CHECK((device->taken == 1 && device->left == 1));
  CHECK((args[0] == &y && args[1] == &x && args[2] == &n));
}

TEST_CASE("a config that cannot be used says why", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  KernelDefinition k = doubling();
  k.space.where("a is at most 4", [](auto c, auto, const DeviceLimits&) { return c[0] <= 4; });
  const DynamicTuned handle = runtime.tuned(k);
  Buffers b(50);
  const auto said = [&](const auto& f) -> std::string {
    try {
      f();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const auto launch = [&](const DynamicTuned& h) {
    h({}, Values{50}, b.y.data(), static_cast<const float*>(b.x.data()), 50);
  };
  CHECK(said([&] { launch(handle.with_config({8, 0})); }) ==
        "kernel doubling with a=8,b=0 for n=50 breaks a constraint: a is at most 4");
  CHECK(said([&] { handle.with_config({8}); }) ==
        "kernel doubling: a config of 1 values was given, it has 2 parameters");
  launch(handle.with_config({3, 0}));  // is in no list
  CHECK(b.doubled());
  process.of(2).run = [](void** args) { (*static_cast<float**>(args[0]))[0] = 17; };
  try {
    handle.with_config({2, 0}).tune({50});
    FAIL("nothing was thrown");
  } catch (const TuningFailedError& error) {
    REQUIRE(error.reasons().size() == 1);
    CHECK(error.reasons()[0].config == "a=2,b=0");
    CHECK(error.reasons()[0].reason.find("wrong_result") == 0);
  }
}

TEST_CASE("an empty problem is refused alike by both kinds of handles", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto said = [](const auto& tune) -> std::string {
    try {
      tune();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing";
  };
  const std::string why = "kernel doubling for n=0: the grid is empty, there is nothing to tune";
  Typed kernel = typed_doubling();
  // Others in its bucket would have something to do.
  kernel.bucket = [](const DoublingProblem& p) { return DoublingProblem{std::max(p.n, 64)}; };
  const auto typed = runtime.tuned(kernel);
  const auto dynamic = runtime.tuned(kernel.definition());
  CHECK(said([&] { typed.tune({0}); }) == why);
  CHECK(said([&] { typed.tune({0}, TuneOptions{}); }) == why);
  CHECK(said([&] { dynamic.tune({0}); }) == why);
  CHECK(said([&] { dynamic.tune({0}, TuneOptions{}); }) == why);
  CHECK(process.device->timings == 0);
}

TEST_CASE("launches that are asked to measure again do so once for each problem",
          "[runtime][handle]") {
  Directory directory;
  Process(directory.path()).runtime().tuned(doubling()).tune({50});
  Process process(directory.path());
  process.options.tuning.retune = true;
  process.options.max_problems = 1;
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(handle.config({50}) == Values{8, 0});
  CHECK(runtime.statistics().tuned == 1);
  handle.config({60});
  CHECK(runtime.statistics().tuned == 2);
  CHECK(handle.config({50}) == Values{8, 0});  // it had left
  CHECK(runtime.statistics().tuned == 2);
}
