// Global variables of kernels: what the workload has for them while candidates are tried, and what
// a program has for them in its handles.
#include <limits>

#include "runtime/device/module_data.hpp"
#include "unit/runtime/tune/tuner_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Variables = std::map<std::string, std::vector<std::byte>>;

template <class T>
std::vector<std::byte> as_bytes(const T& value) {
  const auto bytes = kiln::detail::bytes_of(value);
  return {bytes.begin(), bytes.end()};
}

float& number(Variables& variables, const std::string& name) {
  return *reinterpret_cast<float*>(variables.at(name).data());
}

/// y = factor * x with the module's own factor.
void multiply(void** args, Variables& variables) {
  auto* y = *static_cast<float**>(args[0]);
  const auto* x = *static_cast<const float**>(args[1]);
  for (int i = 0; i < *static_cast<int*>(args[2]); ++i) y[i] = number(variables, "factor") * x[i];
}

void give_factor(Behaviour& behaviour) {
  behaviour.variables = {{"factor", as_bytes(0.0f)}};
  behaviour.run_with = multiply;
}

/// doubling(), whose factor is a variable that the workload fills with `data`.
template <class Data>
KernelDefinition with_factor(Bench& bench, Data data) {
  for (const int a : {1, 2, 4, 8}) give_factor(bench.of(a));
  KernelDefinition kernel = doubling();
  kernel.workload = [inner = kernel.workload, data](std::span<const std::int64_t> p, Workload& w) {
    inner(p, w);
    w.symbol("factor", data);
  };
  return kernel;
}

/// What a program sees of a kernel's factor.
float factor_in(const Symbol& symbol) { return *static_cast<const float*>(symbol.address()); }

Typed typed_with_factor(Process& process) {
  for (const int a : {1, 2, 4, 8}) give_factor((*process.script)[typed_entry(a)]);
  (*process.script)[typed_entry(8)].seconds = 0.5e-3;
  Typed kernel = typed_doubling();
  kernel.workload = [inner = kernel.workload](const DoublingProblem& p, Workload& w) {
    inner(p, w);
    w.symbol("factor", 2.0f);
  };
  return kernel;
}

}  // namespace

TEST_CASE("candidates are verified and timed with the workload's variables",
          "[runtime][variables]") {
  Bench bench;
  const KernelDefinition kernel = with_factor(bench, 2.0f);
  float least = std::numeric_limits<float>::infinity(), most = -least;
  int timed = 0;
  for (const int a : {1, 2, 4, 8})
    bench.of(a).run_with = [&](void** args, Variables& variables) {
      least = std::min(least, number(variables, "factor"));
      most = std::max(most, number(variables, "factor"));
      timed += bench.device->timing;
      multiply(args, variables);
    };
  bench.seconds(4, 0.5 * kMs);
  const TuneResult result = tune(bench, kernel);
  for (const Candidate& c : result.candidates) CHECK(c.status == CandidateStatus::measured);
  CHECK(result.winner().config == Values{4, 0});
  CHECK(least == 2);
  CHECK(most == 2);
  CHECK(timed > 4);
}

TEST_CASE("without data a variable holds what the source gives it", "[runtime][variables]") {
  Bench bench;
  KernelDefinition kernel = with_factor(bench, 2.0f);
  kernel.workload = doubling().workload;
  bench.of(4).variables["factor"] = as_bytes(2.0f);
  const TuneResult result = tune(bench, kernel);
  CHECK(result.winner().config == Values{4, 0});
  CHECK(find(result, {8, 0}).status == CandidateStatus::wrong_result);
}

TEST_CASE("a variable's data may depend on the config", "[runtime][variables]") {
  Bench bench;
  const KernelDefinition kernel = with_factor(bench, [](std::span<const std::int64_t> config) {
    return std::vector<float>(static_cast<std::size_t>(config[0]), 2.0f / float(config[0]));
  });
  for (const int a : {1, 2, 4, 8}) {
    bench.of(a).variables["factor"].assign(static_cast<std::size_t>(a) * sizeof(float), {});
    bench.of(a).run_with = [a](void** args, Variables& variables) {
      number(variables, "factor") *= float(a);
      multiply(args, variables);
      number(variables, "factor") /= float(a);
    };
  }
  const TuneResult result = tune(bench, kernel);
  for (const Candidate& c : result.candidates) CHECK(c.status == CandidateStatus::measured);
}

TEST_CASE("a variable that does not fit fails that candidate and says why",
          "[runtime][variables]") {
  Bench bench;
  const KernelDefinition kernel = with_factor(bench, 2.0f);
  bench.of(1).variables = {{"image::scale", as_bytes(1.0f)}, {"count", as_bytes(7)}};
  bench.of(4).variables["factor"].resize(12);
  bench.of(8).variables = {{"a::factor", as_bytes(0.0f)}, {"b::factor", as_bytes(0.0f)}};
  const TuneResult result = tune(bench, kernel);
  CHECK(result.winner().config == Values{2, 0});
  const auto reason = [&](int a) {
    const Candidate& c = find(result, {a, 0});
    CHECK(c.status == CandidateStatus::launch_failed);
    return c.reason;
  };
  CHECK(reason(1) ==
        "the kernel has no global variable `factor`; it has `count` (4 bytes), `image::scale` (4 "
        "bytes)");
  CHECK(reason(4) ==
        "the kernel's global variable `factor` has 12 bytes, but the data for it has 4");
  CHECK(reason(8) ==
        "`factor` is ambiguous, it may be any of `a::factor` (4 bytes), `b::factor` (4 bytes): "
        "give its namespace");

  for (const int a : {1, 2, 4, 8}) bench.of(a).variables.clear();
  try {
    tune(bench, kernel);
    FAIL("nothing was thrown");
  } catch (const TuningFailedError& error) {
    CHECK(contains(error.what(),
                   "the kernel has no global variable `factor`, nor does it have any other"));
  }
}

TEST_CASE("the end of a variable's name is enough if it is the only one", "[runtime][variables]") {
  Bench bench;
  const KernelDefinition kernel = with_factor(bench, 2.0f);
  for (const int a : {1, 2, 4, 8}) {
    bench.of(a).variables = {{"image::factor", as_bytes(0.0f)}, {"image::my_factor", as_bytes(3)}};
    bench.of(a).run_with = [](void** args, Variables& variables) {
      Variables found{{"factor", variables.at("image::factor")}};
      multiply(args, found);
    };
  }
  for (const Candidate& c : tune(bench, kernel).candidates)
    CHECK(c.status == CandidateStatus::measured);
}

TEST_CASE("a kernel that changes its variable finds it as it was before each launch",
          "[runtime][variables]") {
  for (const bool reference : {true, false}) {
    Bench bench;
    KernelDefinition kernel = with_factor(bench, 2.0f);
    if (!reference) kernel.reference = nullptr;
    bench.device->records = true;
    int others = 0;
    bench.device->on_launch = [&](const std::string& entry, void**) {
      if (bench.device->timing && entry != "k<4, 0>") ++others;
    };
    // A kernel that counts down to nothing would look faster with every launch.
    int launches = 0, used_up = 0;
    bench.of(4).run_with = [&](void** args, Variables& variables) {
      ++launches;
      used_up += number(variables, "factor") != 2;
      multiply(args, variables);
      number(variables, "factor") = 0;
    };
    for (const int a : {1, 2, 4, 8}) bench.seconds(a, 1e-6);
    const TuneResult result = tune(bench, kernel);
    for (const Candidate& c : result.candidates) CHECK(c.status == CandidateStatus::measured);
    CHECK(launches > 10);
    CHECK(used_up == 0);
    CHECK(others > 10 * launches);  // whose samples are of many launches, as ever
  }
}

TEST_CASE("a variable has data once", "[runtime][variables]") {
  Workload workload;
  workload.symbol("filter", std::vector<float>{1, 2}).symbol("other", std::array{1, 2});
  REQUIRE(workload.variables().size() == 2);
  CHECK(workload.variables()[0].make({}) == as_bytes(std::vector<float>{1, 2}));
  CHECK(message([&] { workload.symbol("filter", 1); }) ==
        "workload: the variable `filter` is given data twice");
}

TEST_CASE("a bound kernel's variables are the program's", "[runtime][variables][handle]") {
  Directory directory;
  Process process(directory.path());
  const Typed kernel = typed_with_factor(process);
  const auto handle = process.runtime().tuned(kernel);
  Buffers b(50);
  const auto bound = handle.at({50});
  const Symbol factor = bound.symbol("factor");
  CHECK(factor.name() == "factor");
  CHECK(factor.bytes() == sizeof(float));
  CHECK(factor_in(factor) == 0);  // what it was tuned with is not left behind
  factor.write(2.0f);
  bound({}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
  CHECK(message([&] { bound.symbol("fcator"); }) ==
        "kernel doubling: the kernel has no global variable `fcator`; it has `factor` (4 bytes)");
  CHECK(message([&] { factor.write(std::array{1.0f, 2.0f}); }) ==
        "the kernel's global variable `factor` has 4 bytes, but the data for it has 8");
  // Another problem's kernel has its own.
  CHECK(factor_in(handle.at({7}).symbol("factor")) == 0);
  // Verification uses the workload's data, and leaves the program's alone.
  factor.write(5.0f);
  CHECK(handle.verify({50}).right);
  CHECK(factor_in(factor) == 5);
}

TEST_CASE("a kernel described at run time has its variables where it is bound, too",
          "[runtime][variables][handle]") {
  Directory directory;
  Process process(directory.path());
  for (const int a : {1, 2, 4, 8}) give_factor(process.of(a));
  process.options.mode = Mode::untuned;
  const DynamicBound bound = process.runtime().tuned(doubling()).at({50});
  bound.symbol("factor").write(2.0f);
  Buffers b(50);
  bound({}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
}

TEST_CASE("a handle's variables are in all of its kernels", "[runtime][variables][handle]") {
  Directory directory;
  Process process(directory.path());
  const Typed kernel = typed_with_factor(process);
  const auto handle = process.runtime().tuned(kernel);
  handle.symbol("factor", 2.0f);  // before any is there
  Buffers b(50), c(7);
  handle({}, b.y.data(), b.x.data(), 50);
  CHECK(b.doubled());
  handle({}, c.y.data(), c.x.data(), 7);
  CHECK(c.doubled());
  handle.symbol("factor", 3.0f);  // in those that are there
  const auto before = handle.at({50});
  CHECK(factor_in(before.symbol("factor")) == 3);
  CHECK(factor_in(handle.at({7}).symbol("factor")) == 3);
  // Tuned anew, with another winner.
  (*process.script)[typed_entry(8)].seconds = 5e-3;
  TuneOptions again;
  again.retune = true;
  handle.tune({50}, again);
  const auto after = handle.at({50});
  CHECK(after.symbol("factor").address() != before.symbol("factor").address());
  CHECK(factor_in(after.symbol("factor")) == 3);

  CHECK(message([&] { handle.symbol("factor", 1.0); }) ==
        "kernel doubling: the kernel's global variable `factor` has 4 bytes, but the data for it "
        "has 8");
  CHECK(factor_in(after.symbol("factor")) == 3);
}

TEST_CASE("data that one kernel of a handle has no room for is written to none",
          "[runtime][variables][handle]") {
  Directory directory;
  Process process(directory.path());
  const Typed kernel = typed_with_factor(process);
  auto& script = *process.script;
  for (const int a : {1, 2, 4, 8}) script[typed_entry(a)].variables["table"] = as_bytes(0.0);
  script[typed_entry(1)].variables["table"] = as_bytes(0.0f);
  const auto handle = process.runtime().tuned(kernel);
  handle.tune({50});  // a = 8
  script[typed_entry(8)].seconds = 5e-3;
  script[typed_entry(1)].seconds = 0.1e-3;
  handle.tune({7});
  const auto wide = handle.at({50}), narrow = handle.at({7});
  REQUIRE(wide.symbol("table").bytes() == 8);
  REQUIRE(narrow.symbol("table").bytes() == 4);
  CHECK(message([&] { handle.symbol("table", 1.0); }) ==
        "kernel doubling: the kernel's global variable `table` has 4 bytes, but the data for it "
        "has 8");
  CHECK(*static_cast<const double*>(wide.symbol("table").address()) == 0);
}

TEST_CASE("a name that no kernel has is an error when one is made ready",
          "[runtime][variables][handle]") {
  Directory directory;
  Process process(directory.path());
  const Typed kernel = typed_with_factor(process);
  process.runtime().tuned(kernel).tune({50});
  const auto handle = process.runtime().tuned(kernel);
  handle.symbol("factr", 1.0f);
  const int compiles = process.compiler->compiles;
  CHECK(message([&] { handle.at({50}); }) ==
        "kernel doubling: the kernel has no global variable `factr`; it has `factor` (4 bytes)");
  CHECK(process.compiler->compiles == compiles);  // nor is it tuned anew for that
  CHECK(process.warnings().empty());
}

TEST_CASE("a symbol keeps its kernel", "[runtime][variables][handle]") {
  Directory directory;
  Process process(directory.path());
  const Typed kernel = typed_with_factor(process);
  std::optional<Symbol> factor;
  {
    const auto handle = process.runtime().tuned(kernel);
    factor = handle.at({50}).symbol("factor");
  }
  CHECK(process.device->live_kernels == 1);
  factor->write(1.5f);
  CHECK(factor_in(*factor) == 1.5f);
  factor.reset();
  CHECK(process.device->live_kernels == 0);
}
