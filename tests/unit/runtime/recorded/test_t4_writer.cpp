#include "kiln/replay.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"
#include "t4_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

Candidate candidate(Values config, CandidateStatus status, std::vector<double> samples = {}) {
  Candidate c;
  c.config = std::move(config);
  c.status = status;
  c.reason = "a reason";
  c.samples = std::move(samples);
  if (!c.samples.empty()) c.seconds = c.samples[0];
  return c;
}

TuneResult result() {
  TuneResult r;
  r.kernel = "gemm";
  r.types = {"float"};
  r.problem_fields = {"m", "n"};
  r.problem = {64, 32};
  r.device = "host";
  r.parameters = {"block", "items"};
  using S = CandidateStatus;
  r.candidates = {
      candidate({64, 1}, S::measured, {2e-3, 4e-3}), candidate({64, 2}, S::compile_failed),
      candidate({64, 4}, S::launch_failed),          candidate({128, 1}, S::wrong_result),
      candidate({128, 2}, S::exceeds_limits),        candidate({128, 4}, S::measured, {1e-6}),
      candidate({256, 1}, S::violates_constraint),   candidate({256, 2}, S::not_tried)};
  return r;
}

}  // namespace

TEST_CASE("what is written as T4 can be read and replayed", "[runtime][recorded]") {
  const T4Files files;
  for (const char* name : {"out.t4.json", "out.t4.json.gz"}) {
    const fs::path file = files.path() / name;
    write_t4(result(), file);
    CHECK((read_text(file).substr(0, 2) == "\x1f\x8b") == (file.extension() == ".gz"));
    const RecordedSpace space(file);
    CHECK(space.size() == 6);  // not those that broke a constraint or were not tried
    CHECK(space.works() == 2);
    CHECK(space.parameters()[0].name == "block");
    CHECK(space.samples(0).size() == 2);
    CHECK(space.samples(0)[1] == Approx(4e-3));
    CHECK(space.seconds(0) == Approx(3e-3));
    CHECK(space.config(space.best()) == Values{128, 4});
    CHECK(space.optimum() == Approx(1e-6));
    CHECK(space.invalidity(1) == "compile");
    CHECK(space.invalidity(2) == "runtime");
    CHECK(space.invalidity(3) == "correctness");
    CHECK(space.invalidity(4) == "constraints");
    CHECK(SearchReplay(space).run({.strategy = "exhaustive", .budget = 6, .repeats = 1}).mean == 1);
  }
  for (const auto& item : fs::directory_iterator(files.path()))
    CHECK(item.path().extension() != ".part");
}

TEST_CASE("a tuned recorded space survives the round trip", "[runtime][recorded]") {
  const T4Files files;
  const RecordedSpace space(files.write(bowl()));
  RuntimeOptions options;
  options.device = "recorded:" + space.file().string();
  options.store.directory = files.path() / "store";
  TuneOptions tuning;
  tuning.strategy = "exhaustive";
  write_t4(Runtime(options).tuned(recorded_kernel(space)).tune({}, tuning),
           files.path() / "again.json");
  const RecordedSpace again(files.path() / "again.json");
  CHECK(again.size() == space.size());
  CHECK(again.works() == space.works());
  CHECK(again.config(again.best()) == space.config(space.best()));
  for (std::size_t i = 0; i < space.size(); ++i) {
    const auto found = again.find(space.config(i));
    REQUIRE(found);
    CHECK(again.status(*found) == space.status(i));
    if (space.status(i) == CandidateStatus::measured)
      CHECK(again.seconds(*found) == Approx(space.seconds(i)).epsilon(0.011));
  }
}

TEST_CASE("T4 written to a link goes to where it leads", "[runtime][recorded]") {
  const T4Files files;
  write_text(files.path() / "target.json", "before");
  fs::create_symlink("target.json", files.path() / "link.json");
  write_t4(result(), files.path() / "link.json");
  CHECK(fs::is_symlink(files.path() / "link.json"));
  CHECK(RecordedSpace(files.path() / "target.json").size() > 0);
}

TEST_CASE("T4 that cannot be written is an error, and leaves nothing", "[runtime][recorded]") {
  const T4Files files;
  CHECK_THROWS_AS(write_t4(result(), files.path() / "none" / "x.json"), EnvironmentError);
  TuneResult nothing = result();
  for (Candidate& c : nothing.candidates) c.status = CandidateStatus::compile_failed;
  write_text(files.path() / "x.json", "before");
  CHECK_THROWS_AS(write_t4(nothing, files.path() / "x.json"), UserError);
  CHECK(read_text(files.path() / "x.json") == "before");
  fs::create_directory(files.path() / "folder.json");
  CHECK_THROWS_AS(write_t4(result(), files.path() / "folder.json"), UserError);
  CHECK_THROWS_AS(write_t4(result(), "/dev/null"), UserError);
  CHECK(fs::is_character_file("/dev/null"));
  CHECK_THROWS_AS(write_t4(result(), ""), UserError);
  for (const auto& item : fs::directory_iterator(files.path()))
    CHECK(item.path().extension() != ".part");
}
