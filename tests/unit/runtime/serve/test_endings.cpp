// What a tuning's result comes to, and what launches get of it: every case.
#include "kiln_test.hpp"
#include "runtime/serve/tune_one.hpp"

using namespace kiln;
using runtime::Ending;
using runtime::Taken;

namespace {

enum class Ranks { none, agreed, defaults };

TuneResult result_of(CandidateStatus winner, Ranks ranks) {
  TuneResult result;
  result.candidates.resize(2);
  result.candidates[0].status = winner;
  result.candidates[1].status = CandidateStatus::not_tried;
  if (ranks != Ranks::none)
    result.agreed.emplace().outcome =
        ranks == Ranks::agreed ? RankReport::Outcome::plan : RankReport::Outcome::defaults;
  return result;
}

Ending ending(CandidateStatus winner, Ranks ranks, bool may_measure = true) {
  return runtime::ending_of(result_of(winner, ranks), may_measure);
}

}  // namespace

TEST_CASE("what a tuning has come to", "[runtime][endings]") {
  const auto failed =
      GENERATE(CandidateStatus::compile_failed, CandidateStatus::wrong_result,
               CandidateStatus::launch_failed, CandidateStatus::crashed, CandidateStatus::hung);
  CHECK(ending(CandidateStatus::measured, Ranks::none) == Ending::winner);
  CHECK(ending(CandidateStatus::measured, Ranks::agreed) == Ending::winner);
  CHECK(ending(CandidateStatus::measured, Ranks::defaults) == Ending::defaults);
  CHECK(ending(CandidateStatus::not_tried, Ranks::none) == Ending::undecided);
  // An agreement on many problems that did not come to this one.
  CHECK(ending(CandidateStatus::not_tried, Ranks::agreed) == Ending::defaults);
  CHECK(ending(CandidateStatus::not_tried, Ranks::defaults) == Ending::defaults);
  for (const Ranks ranks : {Ranks::none, Ranks::agreed, Ranks::defaults})
    CHECK(ending(failed, ranks) == Ending::unusable);
  // Where nothing may be measured, nothing was verified.
  for (const auto status : {CandidateStatus::measured, CandidateStatus::not_tried, failed}) {
    CHECK(ending(status, Ranks::none, false) == Ending::winner);
    CHECK(ending(status, Ranks::agreed, false) == Ending::winner);
    CHECK(ending(status, Ranks::defaults, false) == Ending::defaults);
  }
}

TEST_CASE("what launches get of a tuning", "[runtime][endings]") {
  for (const bool held : {false, true}) {
    CHECK(runtime::taken_of(Ending::winner, held) == Taken::chosen);
    CHECK(runtime::taken_of(Ending::undecided, held) == Taken::kept);
    CHECK(runtime::taken_of(Ending::unusable, held) == Taken::unusable);
  }
  CHECK(runtime::taken_of(Ending::defaults, false) == Taken::chosen);
  CHECK(runtime::taken_of(Ending::defaults, true) == Taken::kept);
}

TEST_CASE("a failure is an exception only where everything was tried", "[runtime][endings]") {
  TuneResult result = result_of(CandidateStatus::wrong_result, Ranks::none);
  CHECK_FALSE(runtime::is_failure({.result = result, .ending = Ending::unusable}));
  result.candidates[1].status = CandidateStatus::compile_failed;
  CHECK(runtime::is_failure({.result = result, .ending = Ending::unusable}));
  CHECK_FALSE(runtime::is_failure({.result = result, .ending = Ending::winner}));
}
