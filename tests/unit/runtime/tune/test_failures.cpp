// What failed once: it fails again at once, until something changes or somebody asks again.
#include "kiln_test.hpp"
#include "runtime/build/compile_interrupted.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// Launches for 50 elements; what it says, if that fails.
std::string failure_of(const DynamicTuned& tuned) try {
  Buffers b(50);
  tuned({}, Values{50}, b.y.data(), b.x.data(), 50);
  return {};
} catch (const TuningFailedError& error) {
  return error.what();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a broken template is compiled once, not at every launch", "[runtime][failures]") {
  const Directory directory;
  Process process(directory.path());
  for (const int a : {1, 2, 4, 8})
    process.of(a).compile_log = "k.cuh:3: error: " + std::to_string(a) + " is no power of three";
  const auto file = directory.path() / "k.cuh";
  write_text(file, "template <int a, int b> __global__ void k(float*, const float*, int);");
  KernelDefinition kernel = doubling();
  kernel.source.text.clear();
  kernel.source.file = file;
  const Runtime runtime = process.runtime();
  const auto tuned = runtime.tuned(kernel);
  const std::string first = failure_of(tuned);
  CHECK(has(first, "power of three"));
  CHECK(process.compiler->compiles == 4);
  const int allocated = static_cast<int>(process.device->allocated);
  CHECK(failure_of(tuned) == first);
  CHECK_THROWS_AS(tuned.tune({50}), TuningFailedError);
  CHECK(process.device->allocated == static_cast<std::size_t>(allocated));
  CHECK(process.compiler->compiles == 4);
  // Another handle knows nothing of it, but nothing is compiled anew for it.
  CHECK(failure_of(runtime.tuned(kernel)) == first);
  CHECK(process.compiler->compiles == 4);

  for (const int a : {1, 2, 4, 8}) process.of(a).compile_log.clear();
  CHECK(failure_of(tuned) == first);
  SECTION("until the source changes") {
    write_text(file,
               "// right\ntemplate <int a, int b> __global__ void k(float*, const float*, int);");
    CHECK(failure_of(tuned).empty());
  }
  SECTION("until a retry is asked for") {
    TuneOptions again;
    again.retune = true;
    CHECK_FALSE(tuned.tune({50}, again).from_store);
    CHECK(failure_of(tuned).empty());
    CHECK(tuned.tune({50}).from_store);
  }
  SECTION("until the options of the compiler change") {
    kernel.source.options = {"-DRIGHT"};
    CHECK(failure_of(runtime.tuned(kernel)).empty());
  }
  SECTION("until the space changes") {
    kernel.space = {};
    kernel.space.parameter("a", {1, 2, 16}, 2).parameter("b", {0}, 0);
    CHECK(failure_of(runtime.tuned(kernel)).empty());
  }
  SECTION("for another problem, too: it is the same code") {
    CHECK_THROWS_AS(tuned.tune({60}), TuningFailedError);
    CHECK(process.compiler->compiles == 4);
  }
}

TEST_CASE("what cannot be launched is not loaded again at every launch", "[runtime][failures]") {
  const Directory directory;
  Process process(directory.path());
  int loads = 0;
  process.device->on_load = [&](const std::string&) { ++loads; };
  for (const int a : {1, 2, 4, 8}) process.of(a).load_error = "no room";
  const auto tuned = process.runtime().tuned(doubling());
  const std::string first = failure_of(tuned);
  CHECK(has(first, "no room"));
  const int before = loads;
  CHECK(failure_of(tuned) == first);
  CHECK(loads == before);
  // Other options are another request.
  TuneOptions more;
  SECTION("fewer candidates") { more.max_evaluations = 3; }
  SECTION("more time for a candidate") { more.candidate_seconds = 100; }
  CHECK_THROWS_AS(tuned.tune({50}, more), TuningFailedError);
  CHECK(loads > before);
}

TEST_CASE("an untuned launch of a broken template compiles it once", "[runtime][failures]") {
  const Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  process.of(2).compile_log = "error: no";
  const auto tuned = process.runtime().tuned(doubling());
  Buffers b(50);
  for (int i = 0; i < 3; ++i)
    CHECK_THROWS_AS(tuned({}, Values{50}, b.y.data(), b.x.data(), 50), CompileError);
  CHECK(process.compiler->compiles == 1);
}

TEST_CASE("one error of all candidates is shown once", "[runtime][failures]") {
  const Directory directory;
  Process process(directory.path());
  for (const int a : {1, 2, 4}) {
    std::string log = "k.cuh:7: warning: nothing\nk.cuh:1" + std::to_string(a) +
                      ": error: no matching function for k<" + std::to_string(a) + ", 0>\n";
    for (int line = 0; line < 40; ++line) log += "  note " + std::to_string(line) + "\n";
    process.of(a).compile_log = log;
  }
  process.of(8).compile_log = "error: another one";
  const std::string text = failure_of(process.runtime().tuned(doubling()));
  CHECK(has(text, "3 x (e.g. a=2,b=0) compile_failed: k.cuh:7: warning: nothing"));
  CHECK(has(text, "1 x (e.g. a=8,b=0) compile_failed: error: another one"));
  CHECK(has(text, "k<2, 0>"));
  CHECK_FALSE(has(text, "k<4, 0>"));
  CHECK(has(text, "note 5"));
  CHECK_FALSE(has(text, "note 30"));
  CHECK(has(text, "lines more"));
  CHECK(std::count(text.begin(), text.end(), '\n') < 20);
}

TEST_CASE("a misspelt entry is named, with what was probably meant", "[runtime][failures]") {
  const Directory directory;
  Process process(directory.path());
  KernelDefinition kernel = doubling();
  kernel.source.text = "template <int a, int b> __global__ void twice(float*, const float*, int);";
  kernel.entry = "twise";
  for (const int a : {1, 2, 4, 8})
    (*process.script)["twise<" + std::to_string(a) + ", 0>"].compile_log =
        "undeclared, for " + std::to_string(a);
  const std::string text = failure_of(process.runtime().tuned(kernel));
  CHECK(has(text, "4 x "));
  CHECK(has(text, "<doubling> has no function twise; did you mean twice?"));
}

TEST_CASE("a candidate whose compiler was ended from outside is tried by the next tuning",
          "[runtime][failures]") {
  const Directory directory;
  {
    Process process(directory.path());
    process.compiler->on_compile = [](const codegen::Source& source) {
      if (source.entry == "k<8, 0>") throw runtime::CompileInterrupted("memory ran out");
    };
    const TuneResult result = process.runtime().tuned(doubling()).tune({50});
    CHECK_FALSE(result.complete);
    CHECK(result.count(CandidateStatus::measured) == 3);
    REQUIRE(result.candidates.size() == 4);
    for (const Candidate& c : result.candidates)
      if (c.config[0] == 8) {
        CHECK(c.status == CandidateStatus::not_tried);
        CHECK(c.reason == "memory ran out");
      }
  }
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const TuneResult result = process.runtime().tuned(doubling()).tune({50});
  CHECK(result.complete);
  CHECK(result.winner().config == Values{8, 0});
  CHECK(process.compiler->compiles == 1);
}

TEST_CASE("a launch whose compiler was ended from outside fails, and the next one does not",
          "[runtime][failures]") {
  const Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  bool ends = true;
  process.compiler->on_compile = [&](const codegen::Source&) {
    if (ends) throw runtime::CompileInterrupted("memory ran out");
  };
  const auto handle = process.runtime().tuned(doubling());
  CHECK_THROWS_WITH(handle.config({50}), "memory ran out");
  ends = false;
  CHECK(handle.config({50}) == Values{2, 0});
}
