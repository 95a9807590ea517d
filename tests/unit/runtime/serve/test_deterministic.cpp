// Runtimes whose tunings change no bit of a result.
#include <map>
#include <string>
#include <vector>

#include "environment_variable.hpp"
#include "kiln/communicators.hpp"
#include "kiln/function.hpp"
#include "kiln_test.hpp"
#include "modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// doubling() whose `b` is the order of its sums. The default is a = 2, b = 0.
KernelDefinition ordered() {
  KernelDefinition kernel = doubling({1, 2, 4, 8}, 2, {0, 1});
  kernel.numerics = [](std::span<const std::int64_t> c, std::span<const std::int64_t>) {
    return "order " + std::to_string(c[1]);
  };
  return kernel;
}

/// The same with a cost model that picks a = 4, b = 1.
KernelDefinition picked() {
  KernelDefinition kernel = ordered();
  kernel.cost = [](auto c, auto, const auto&) { return c[0] == 4 && c[1] == 1 ? 1e-6 : 1e-3; };
  kernel.untuned_by_cost = [](const DeviceLimits&) { return true; };
  return kernel;
}

/// The fastest configs are a = 8 of b = 1, then a = 1 of b = 0.
struct Machine {
  Process process;
  std::map<std::string, int> launches;

  explicit Machine(const fs::path& directory, std::optional<bool> deterministic = true)
      : process(directory) {
    process.options.deterministic = deterministic;
    for (const int a : {1, 2, 4, 8})
      for (const int b : {0, 1}) process.of(a, b).seconds = 2e-3;
    process.of(8, 1).seconds = 0.5e-3;
    process.of(1, 0).seconds = 1e-3;
    process.device->on_launch = [this](const std::string& entry, void**) { ++launches[entry]; };
  }
  int launched_of(int b) const {
    int count = 0;
    for (const auto& [entry, times] : launches)
      if (entry.ends_with(" " + std::to_string(b) + ">")) count += times;
    return count;
  }
};

}  // namespace

TEST_CASE("only configs with the bits of the untuned config are tried",
          "[runtime][deterministic]") {
  const Directory directory;
  SECTION("those of the default") {
    Machine machine(directory.path());
    const Runtime runtime = machine.process.runtime();
    CHECK(runtime.tuned(ordered()).tune({50}).winner().config == Values{1, 0});
    CHECK(machine.launched_of(1) == 0);
  }
  SECTION("those of the cost model's pick, which is the default then") {
    Machine machine(directory.path());
    const Runtime runtime = machine.process.runtime();
    const TuneResult result = runtime.tuned(picked()).tune({50});
    CHECK(result.winner().config == Values{8, 1});
    CHECK(result.default_candidate().config == Values{4, 1});
    CHECK(machine.launched_of(0) == 0);
  }
  SECTION("none but the untuned config where the kernel does not tell") {
    KernelDefinition kernel = picked();
    kernel.numerics = nullptr;
    Machine machine(directory.path());
    const TuneResult result = machine.process.runtime().tuned(kernel).tune({50});
    CHECK(result.winner().config == Values{4, 1});
    CHECK(result.evaluated == 1);
    CHECK(machine.launches.size() == 1);
  }
  SECTION("none but the untuned config where bits differ from launch to launch") {
    KernelDefinition kernel = ordered();
    kernel.numerics = [](auto, auto) { return std::string(); };
    Machine machine(directory.path());
    CHECK(machine.process.runtime().tuned(kernel).tune({50}).evaluated == 1);
    CHECK(machine.launches.size() == 1);
  }
  SECTION("all otherwise") {
    Machine machine(directory.path(), false);
    CHECK(machine.process.runtime().tuned(picked()).tune({50}).winner().config == Values{8, 1});
    CHECK(machine.launched_of(0) > 0);
  }
  SECTION("of one kernel alone") {
    KernelDefinition kernel = ordered();
    kernel.deterministic = true;
    Machine machine(directory.path(), false);
    const Runtime runtime = machine.process.runtime();
    CHECK(runtime.tuned(kernel).tune({50}).winner().config == Values{1, 0});
    CHECK(runtime.tuned(ordered()).tune({50}).winner().config == Values{8, 1});
  }
  SECTION("of a typed kernel") {
    Machine machine(directory.path());
    Typed typed = typed_doubling();
    typed.numerics = [](const DoublingConfig& c, const DoublingProblem&) {
      return c.a <= 2 ? "small" : "large";
    };
    for (const int a : {1, 2, 4, 8}) (*machine.process.script)[typed_entry(a)].seconds = 1e-3 / a;
    const TuneResult result = machine.process.runtime().tuned(typed).tune({50});
    CHECK(result.winner().config == Values{2, 0});
    CHECK(result.count(CandidateStatus::measured) == 2);
  }
}

TEST_CASE("launches are served with the same bits before, while and after they are tuned",
          "[runtime][deterministic]") {
  const Directory directory;
  for (const Mode mode : {Mode::untuned, Mode::tune_now, Mode::untuned, Mode::lookup_only}) {
    Machine machine(directory.path());
    machine.process.options.mode = mode;
    const Runtime runtime = machine.process.runtime();
    CHECK(launch(runtime.tuned(picked()), 50));
    CHECK(machine.launched_of(1) > 0);
    CHECK(machine.launched_of(0) == 0);
  }
}

TEST_CASE("records are kept apart from those that any config may win", "[runtime][deterministic]") {
  const Directory directory;
  const auto winner = [&](bool deterministic, std::size_t tuned) {
    Machine machine(directory.path(), deterministic);
    const Runtime runtime = machine.process.runtime();
    const auto handle = runtime.tuned(ordered());
    CHECK(launch(handle, 50));
    CHECK(runtime.statistics().tuned == tuned);
    return handle.config({50});
  };
  CHECK(winner(false, 1) == Values{8, 1});
  CHECK(winner(true, 1) == Values{1, 0});
  CHECK(winner(false, 0) == Values{8, 1});
  CHECK(winner(true, 0) == Values{1, 0});
}

TEST_CASE("a missing untuned config is not replaced by one with other bits",
          "[runtime][deterministic]") {
  Directory shipped, own;
  {
    Machine machine(shipped.path());
    machine.process.options.mode = Mode::untuned;
    const Runtime runtime = machine.process.runtime();
    CHECK(launch(runtime.tuned(picked()), 50));
    CHECK(launch(runtime.tuned(ordered()), 50));  // its default, k<2, 0>, is there
  }
  fs::remove(entry_of(shipped, "k<4, 1>"));
  Machine machine(own.path());
  machine.process.options.mode = Mode::frozen;
  machine.process.options.store.roots = {shipped.path()};
  const Runtime runtime = machine.process.runtime();
  CHECK(launch(runtime.tuned(ordered()), 50));
  CHECK_THROWS_AS(launch(runtime.tuned(picked()), 50), MissingError);
}

TEST_CASE("a config that the program chooses must have the same bits, too",
          "[runtime][deterministic]") {
  const Directory directory;
  Machine machine(directory.path());
  const Runtime runtime = machine.process.runtime();
  const auto handle = runtime.tuned(picked());
  CHECK(launch(handle.with_config({8, 1}), 50));
  CHECK_THROWS_WITH(launch(handle.with_config({2, 0}), 50), Catch::Contains("deterministic mode"));
}

TEST_CASE("what says what is right may compute other bits", "[runtime][deterministic]") {
  const Directory directory;
  KernelDefinition kernel = picked();
  kernel.flops = [](std::span<const std::int64_t> p) { return static_cast<double>(p[0]); };
  kernel.device_reference = DeviceReference{.config = "a=2,b=0", .problem = {{"n", 3}}};
  Machine machine(directory.path());
  const TuneResult result = machine.process.runtime().tuned(kernel).tune({50});
  CHECK(result.warnings.empty());
  CHECK(result.winner().config == Values{8, 1});
  CHECK(machine.launched_of(0) > 0);  // the reference
}

TEST_CASE("a sealed runtime serves no other bits for what was not prepared",
          "[runtime][deterministic]") {
  const Directory directory;
  for (const bool deterministic : {false, true}) {
    Machine machine(directory.path(), deterministic);
    const Runtime runtime = machine.process.runtime();
    const auto handle = runtime.tuned(ordered());
    CHECK(launch(handle, 50));
    runtime.seal(OnUnprepared::serve);
    CHECK(launch(handle, 50));
    if (deterministic)
      CHECK_THROWS_AS(launch(handle, 60), UnpreparedError);
    else
      CHECK(launch(handle, 60));
  }
}

TEST_CASE("a default of a problem is where its search begins, and lies in the space",
          "[runtime][deterministic]") {
  const Directory directory;
  KernelDefinition kernel = ordered();
  kernel.default_for = [](std::span<const std::int64_t> p, const DeviceLimits&) {
    return p[0] == 50   ? Values{4, 1}
           : p[0] == 60 ? Values{}
           : p[0] == 70 ? Values{3, 0}
                        : Values{4};
  };
  Machine machine(directory.path(), false);
  const Runtime runtime = machine.process.runtime();
  const auto handle = runtime.tuned(kernel);
  CHECK(handle.tune({50}).default_candidate().config == Values{4, 1});
  CHECK(handle.tune({60}).default_candidate().config == Values{2, 0});
  for (const std::int64_t n : {70, 80})
    CHECK_THROWS_WITH(handle.tune({n}), Catch::Contains("does not lie in the space"));
  // On record.
  const Runtime later = machine.process.runtime();
  CHECK(launch(later.tuned(kernel), 50));
  CHECK(later.statistics().tuned == 0);
}

TEST_CASE("tuned functions keep to the bits of their default knobs", "[runtime][deterministic]") {
  const Directory directory;
  std::map<int, int> calls;
  Function<DoublingConfig, DoublingProblem, void(int)> function{
      .name = "call",
      .space =
          Space<DoublingConfig, DoublingProblem>{{2, 0}}.values(&DoublingConfig::a, {1, 2, 4, 8}),
      .problem = [](int n) { return DoublingProblem{n}; },
      .numerics = [](const DoublingConfig& c,
                     const DoublingProblem&) { return c.a == 8 ? "other" : "one"; }};
  Machine machine(directory.path());
  function.call = [&](const DoublingConfig& c, Stream, int) {
    ++calls[c.a];
    machine.process.device->pass(1e-2 / c.a);
  };
  const Runtime runtime = machine.process.runtime();
  const auto told = tuned(runtime, function);
  told({}, 50);
  CHECK(told.knobs({50}).a == 4);
  CHECK(calls[8] == 0);
  calls.clear();
  function.name = "silent";
  function.numerics = nullptr;
  tuned(runtime, function)({}, 50);
  CHECK(calls.size() == 1);
  CHECK(calls[2] > 0);
}

TEST_CASE("$KILN_DETERMINISTIC decides where the program does not", "[runtime][deterministic]") {
  const Directory directory;
  const auto winner = [&](std::optional<bool> option) {
    Machine machine(directory.path(), option);
    return machine.process.runtime().tuned(ordered()).tune({50}).winner().config;
  };
  const EnvironmentVariable on("KILN_DETERMINISTIC", "1");
  CHECK(winner({}) == Values{1, 0});
  CHECK(winner(false) == Values{8, 1});
  const EnvironmentVariable off("KILN_DETERMINISTIC", "0");
  CHECK(winner({}) == Values{8, 1});
  CHECK(winner(true) == Values{1, 0});
  const EnvironmentVariable wrong("KILN_DETERMINISTIC", "yes");
  CHECK_THROWS_WITH(winner({}), Catch::Contains("it must be 0 or 1"));
}
