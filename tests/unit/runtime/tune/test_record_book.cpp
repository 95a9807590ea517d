// When a record answers, and when the search continues.
#include "kiln_test.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a record is of one source of another kernel that it trusts", "[runtime][engine]") {
  const Directory directory;
  auto trusted = std::make_shared<KernelDefinition>(doubling({3}, 3));
  trusted->name = "plain";
  KernelDefinition kernel = doubling();
  kernel.device_reference = {.config = "", .problem = {{"n", 50}}, .kernel = trusted};
  const auto tuned = [&] {
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    runtime.tuned(kernel).prepare({50});
    return runtime.statistics().tuned;
  };
  CHECK(tuned() == 1);
  CHECK(tuned() == 0);
  const std::string before = trusted->source.text;
  trusted->source.text += "\n// edited";
  CHECK(tuned() == 1);
  CHECK(tuned() == 0);
  trusted->source.text = before;
  CHECK(tuned() == 0);
  trusted->source.text.clear();
  trusted->source.file = directory.path() / "not there.cuh";
  CHECK(tuned() == 0);  // as with a kernel whose own source cannot be read
}

TEST_CASE("a longer list of configs is searched, and what was measured is kept",
          "[runtime][engine]") {
  const Directory directory;
  KernelDefinition kernel = doubling();
  std::vector<Values> list{{2, 0}, {4, 0}};
  kernel.configs = [&list](auto, const auto&) { return list; };
  {
    Process process(directory.path());
    const TuneResult first = process.runtime().tuned(kernel).tune({50});
    CHECK(first.complete);
    CHECK(first.candidates.size() == 2);
  }
  CHECK(Process(directory.path()).runtime().tuned(kernel).known({50}));
  list.push_back({8, 0});
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  auto handle = runtime.tuned(kernel);
  CHECK_FALSE(handle.known({50}));
  handle.prepare({50});
  CHECK(runtime.statistics().tuned == 1);
  CHECK(process.compiler->compiles == 1);  // the other binaries come from the store
  const auto known = handle.known({50});
  REQUIRE(known);
  CHECK(known->complete);
  CHECK(known->winner().config == Values{8, 0});
  CHECK(known->count(CandidateStatus::measured) == 3);
}
