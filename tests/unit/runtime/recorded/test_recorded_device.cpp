#include <algorithm>
#include <set>

#include "kiln/runtime.hpp"
#include "kiln_test.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/recorded/recorded_device.hpp"
#include "runtime/recorded/recorded_kernel.hpp"
#include "t4_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using runtime::RecordedDevice;

namespace {

/// A space on its device, and what launches write.
struct Lab {
  explicit Lab(const RecordedSpace& recorded, std::uint64_t seed = 1)
      : space(recorded), kernel(recorded_kernel(space)), device(space, seed) {}

  codegen::CompileResult compile(const Values& config) {
    codegen::Source source;
    source.text = kernel.source.text;
    source.entry = "recorded<";
    for (std::size_t i = 0; i < config.size(); ++i)
      source.entry += (i ? ", " : "") + std::to_string(config[i]);
    source.entry += ">";
    return device.compiler()->compile(source, device.info().target);
  }
  std::shared_ptr<runtime::Module> load(const Values& config) {
    return device.load(std::get<codegen::Binary>(compile(config)), {});
  }
  double time(const runtime::Module& loaded) {
    void* data = out;
    int count = 4;
    void* args[] = {&data, &count};
    return device.time({}, [&] { device.launch(loaded, {}, {}, args); });
  }

  RecordedSpace space;
  KernelDefinition kernel;
  RecordedDevice device;
  float out[4] = {};
};

RuntimeOptions options_for(const fs::path& file, const fs::path& store) {
  RuntimeOptions options;
  options.device = "recorded:" + file.string();
  options.store.directory = store;
  return options;
}

}  // namespace

TEST_CASE("a launch takes one of the config's own repeats", "[runtime][recorded]") {
  const T4Files files;
  Lab lab(files.read(bowl()));
  const auto loaded = lab.load({64, 8, 15});
  const auto repeats = lab.space.samples(*lab.space.find(Values{64, 8, 15}));
  std::set<double> seen;
  for (int i = 0; i < 300; ++i) {
    const double s = lab.time(*loaded);
    const auto near = std::ranges::find_if(repeats, [&](double r) { return s == Approx(r); });
    REQUIRE(near != repeats.end());
    seen.insert(*near);
  }
  CHECK(seen.size() == repeats.size());
  CHECK(lab.out[2] == 3.0f);
}

TEST_CASE("a stopwatch shows the virtual time between", "[runtime][recorded]") {
  const T4Files files;
  Lab lab(files.read(bowl()));
  const auto loaded = lab.load({64, 8, 15});
  const auto repeats = lab.space.samples(*lab.space.find(Values{64, 8, 15}));
  const auto watch = lab.device.stopwatch();
  lab.time(*loaded);  // before
  watch->start({});
  const double inside = lab.time(*loaded);
  watch->stop({});
  lab.time(*loaded);  // after
  CHECK(watch->seconds() == Approx(inside));
  CHECK(std::count_if(repeats.begin(), repeats.end(),
                      [&](double r) { return r == Approx(inside); }) > 0);
}

TEST_CASE("draws depend on seed, config and count alone", "[runtime][recorded]") {
  const T4Files files;
  const RecordedSpace space = files.read(bowl());
  const auto draws = [&](std::uint64_t seed, bool disturbed) {
    Lab lab(space, seed);
    const auto a = lab.load({64, 4, 15}), b = lab.load({16, 1, 15});
    std::vector<float> times;
    for (int i = 0; i < 40; ++i) {
      if (disturbed) lab.time(*b);
      times.push_back(static_cast<float>(lab.time(*a)));
    }
    return times;
  };
  CHECK(draws(1, false) == draws(1, true));
  CHECK(draws(1, false) != draws(2, false));
}

TEST_CASE("recorded failures fail", "[runtime][recorded]") {
  const T4Files files;
  Lab lab(files.read(
      t4({t4_entry(R"({"a":1})", "1"), t4_entry(R"({"a":2})", "", "compile"),
          t4_entry(R"({"a":3})", "", "timeout"), t4_entry(R"({"a":4})", "1", "correctness"),
          t4_entry(R"({"a":5})", "", "constraints")})));
  CHECK(has(std::get<CompileFailure>(lab.compile({2})).log, "compile"));
  CHECK(has(std::get<CompileFailure>(lab.compile({5})).log, "constraints"));
  const auto loaded = lab.load({3});
  CHECK_THROWS_AS(lab.time(*loaded), EnvironmentError);
  lab.time(*lab.load({4}));
  CHECK(lab.out[2] != runtime::recorded_output(2));
  CHECK_THROWS_AS(lab.compile({9}), UserError);  // not listed
  codegen::Binary foreign;
  foreign.symbol = "recorded";
  CHECK_THROWS_AS(lab.device.load(foreign, {}), EnvironmentError);
  const std::string past = "5", text = "x";
  for (const std::string& code : {past, text}) {
    const auto bytes = std::as_bytes(std::span(code));
    foreign.code = std::vector<std::byte>(bytes.begin(), bytes.end());
    CHECK_THROWS_AS(lab.device.load(foreign, {}), EnvironmentError);
  }
}

TEST_CASE("the tuner finds the winner on a recorded device", "[runtime][recorded]") {
  const T4Files files;
  const fs::path file = files.write(bowl(), "bowl of 4x4.t4.json");
  const RecordedSpace space(file);
  const KernelDefinition kernel = recorded_kernel(space);
  CHECK(kernel.name == "recorded_bowl_of_4x4");
  kernel.validate();
  const Runtime runtime(options_for(file, files.path() / "store"));
  TuneOptions options;
  options.strategy = "exhaustive";
  const TuneResult result = runtime.tuned(kernel).tune({}, options);
  CHECK(result.winner().config == Values{64, 4, 15});
  CHECK(result.winner().seconds == Approx(1e-3).epsilon(0.011));
  CHECK(result.default_candidate().config == Values{16, 1, 15});
  CHECK(result.count(CandidateStatus::measured) == 14);
  CHECK(result.count(CandidateStatus::compile_failed) == 1);
  CHECK(result.count(CandidateStatus::launch_failed) == 1);
  for (const Candidate& c : result.candidates)
    if (c.status != CandidateStatus::measured)
      CHECK(has(c.reason, c.config == Values{128, 8, 15} ? "compile" : "runtime"));
  // All that a person would have waited for is on the virtual clock: this took no 20 compiles.
  CHECK(result.wall_seconds < 60);
  CHECK(runtime.tuned(kernel).verify({}).right);
}

TEST_CASE("a recorded device refuses other kernels and names", "[runtime][recorded]") {
  const T4Files files;
  const fs::path bowl_file = files.write(bowl(), "bowl.json");
  const fs::path other = files.write(t4({t4_entry(R"({"a":1})", "1")}), "other.json");
  const Runtime runtime(options_for(bowl_file, files.path() / "store"));
  CHECK_THROWS_AS(runtime.tuned(recorded_kernel(RecordedSpace(other))).tune({}), UserError);
  CHECK_THROWS_AS(Runtime(options_for(files.path() / "none.json", files.path())), UserError);
  CHECK_THROWS_AS(Runtime(options_for("", files.path())), UserError);
}
