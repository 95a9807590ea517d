#include "kiln_test.hpp"
#include "runtime/together/rank_log.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using runtime::RankLog;

TEST_CASE("a rank's log is a file of its own, in a folder that is made", "[runtime][ranks]") {
  Directory directory;
  const fs::path folder = directory.path() / "a" / "b";
  {
    RankLog log(folder, "all gather/1", 3, 8);
    REQUIRE(log);
    log.line("first\nof two");
    RankLog other(folder, "all gather/1", 2, 8);
    other.line("another rank");
  }
  {
    RankLog log(folder, "all gather/1", 3, 8);  // appends
    log.line("second");
  }
  const std::string text = read_text(folder / "all_gather_1.rank-3.log");
  CHECK(text.find("rank 3 of 8") != std::string::npos);
  CHECK(text.find("first\\nof two\n") != std::string::npos);
  CHECK(text.find("second\n") > text.find("first"));
  CHECK(text.find("another") == std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 4);
}

TEST_CASE("a log that cannot be written fails nothing", "[runtime][ranks]") {
  Directory directory;
  write_text(directory.path() / "file", "");
  RankLog log(directory.path() / "file", "name", 0, 1);  // a file, not a folder
  CHECK_FALSE(log);
  log.line("nobody hears");
  log.result({});
  CHECK_FALSE(RankLog({}, "name", 0, 1));
}

TEST_CASE("KILN_RANK_LOGS names the folder where none is given", "[runtime][ranks]") {
  Directory directory;
  ::setenv("KILN_RANK_LOGS", (directory.path() / "here").c_str(), 1);
  RankLog unnamed({}, "x", 1, 2), named(directory.path() / "there", "x", 1, 2);
  ::unsetenv("KILN_RANK_LOGS");
  CHECK(unnamed.path() == directory.path() / "here" / "x.rank-1.log");
  CHECK(named.path() == directory.path() / "there" / "x.rank-1.log");
  CHECK(fs::exists(unnamed.path()));
}

TEST_CASE("a result is told with its candidates, winner, digest, versions and why",
          "[runtime][ranks]") {
  Directory directory;
  TuneResult result;
  result.kernel = "sum";
  result.parameters = {"blocks"};
  result.problem_fields = {"n"};
  result.problem = {7};
  result.versions = {{"nccl", "2.28.9"}};
  result.candidates.resize(2);
  result.candidates[0] = {{1}, CandidateStatus::measured, "", 2e-3, {1e-3, 1e-3, 1e-3}, 0, 0, {}};
  result.candidates[1] = {{2}, CandidateStatus::launch_failed, "too many", 0, {}, 0, 0, {}};
  result.agreed = RankReport{};
  result.agreed->size = 4;
  result.agreed->plan_digest = "abcd";
  RankLog log(directory.path(), "sum", 0, 4);
  log.result(result);
  result.agreed->outcome = RankReport::Outcome::defaults;
  result.agreed->plan_digest.clear();
  result.agreed->why = "rank 2 is late";
  log.result(result);
  const std::string text = read_text(log.path());
  CHECK(text.find("sum n=7: candidate blocks=1: measured, 2 ms") != std::string::npos);
  CHECK(text.find("of this rank 1 ms") != std::string::npos);
  CHECK(text.find("candidate blocks=2: launch_failed: too many") != std::string::npos);
  CHECK(text.find("nccl 2.28.9") != std::string::npos);
  CHECK(text.find("agreed by 4 ranks: plan, plan abcd") != std::string::npos);
  CHECK(text.find("agreed by 4 ranks: defaults, because: rank 2 is late") != std::string::npos);
  CHECK(text.find("winner blocks=1") != std::string::npos);
}
