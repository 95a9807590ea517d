#include <cstring>
#include <limits>

#include <nlohmann/json.hpp>

#include "kiln/report.hpp"
#include "kiln_test.hpp"
#include "tools/report.hpp"

using namespace kiln;
using namespace kiln::tools;
using nlohmann::json;

namespace {

/// 100 GB/s and 1 TFLOP/s.
const Roofline kRoof{.bytes_per_second = 1e11, .flops_per_second = 1e12, .device = "Abacus"};

Candidate candidate(Values config, CandidateStatus status, double seconds,
                    std::string reason = {}) {
  Candidate c;
  c.config = std::move(config);
  c.status = status;
  c.seconds = seconds;
  c.reason = std::move(reason);
  if (status == CandidateStatus::measured) c.samples = {seconds, seconds};
  return c;
}

TuneResult result() {
  TuneResult r;
  r.kernel = "scale";
  r.types = {"float"};
  r.problem_fields = {"n"};
  r.problem = {1000};
  r.device = "host";
  r.parameters = {"block", "items"};
  r.candidates = {
      candidate({256, 1}, CandidateStatus::measured, 4e-3),
      candidate({512, 1}, CandidateStatus::measured, 2e-3),
      candidate({128, 1}, CandidateStatus::compile_failed, 0, "error: no\nmore of the log"),
      candidate({64, 1}, CandidateStatus::wrong_result, 0, "element 3 differs"),
      candidate({64, 2}, CandidateStatus::exceeds_limits, 0, "too many registers")};
  r.winner_index = 1;
  r.flops = 1e9;
  r.bytes = 1e8;
  r.strategy = "random";
  r.space.combinations = 12;
  r.space.allowed = 9;
  r.space.rejected = {{"a tile fits", 3}};
  r.end = SearchEnd::evaluations;
  r.warnings = {"the clock drifted by 3 %"};
  r.wall_seconds = 1;
  r.compile_seconds = 0.5;
  return r;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a table has a line for each problem, whatever became of it", "[tools]") {
  TuneResult fast = result(), exact = result(), none = result(), failed = result();
  fast.norm_permitted = 4e-3;
  fast.candidates[1].norm_error = 1.5e-3;
  exact.kernel = "a_longer_name";
  exact.types = {"kiln::templates::Fp8<float>"};
  exact.norm_permitted = 0;
  none.candidates[0].status = CandidateStatus::wrong_result;
  none.winner_index = 0;
  failed.failure = "no memory";
  std::vector<SummaryRow> rows;
  for (const TuneResult& one : {fast, exact, none, failed})
    rows.push_back(summary_row(one, &kRoof));
  const std::string text = summary(rows);
  INFO(text);
  const auto line = [&](const char* first, const std::string& rest) {
    return contains(text, first + std::string(22 - std::strlen(first), ' ') + rest + "\n");
  };
  CHECK(line("", "     default  winner  speed  of the roofline   error  allowed"));
  CHECK(
      line("scale<float> n=1000", "        4 ms    2 ms  2.00x      50 % memory  0.0015    0.004"));
  CHECK(line("a_longer_name n=1000",
             "        4 ms    2 ms  2.00x      50 % memory       0        0"));
  CHECK(line("scale<float> n=1000", "wrong_result"));
  CHECK(line("scale<float> n=1000", "              failed"));
  fast.types = {"float", "nt", "kiln::Nothing"};
  CHECK(summary_row(fast)[0] == "scale<float,nt> n=1000");
  CHECK(summary({summary_row(fast)}).find('%') == std::string::npos);
  const Verification launch{true, 0.5, {}, 2.5e-3};
  CHECK(summary_row(fast, nullptr, &launch)[5] == "0.0025");
}

TEST_CASE("a report says what fell out and why", "[tools]") {
  const std::string text = describe(result());
  INFO(text);
  CHECK(contains(text, "scale<float> n=1000 on host"));
  CHECK(contains(text, "12 combinations, 9 allowed"));
  CHECK(contains(text, "3 x a tile fits"));
  CHECK(contains(text, "5 candidates of strategy random: 1 pruned, 2 failed, 2 verified"));
  CHECK(contains(text, "1 x compile_failed: error: no\n"));
  CHECK(!contains(text, "more of the log"));
  CHECK(contains(text, "1 x wrong_result: element 3 differs"));
  CHECK(contains(text, "1 x exceeds_limits: too many registers"));
  CHECK(contains(text, "ended by: evaluations"));
  CHECK(contains(text, "warning: the clock drifted"));
  CHECK(!contains(text, "takes no part"));
  CHECK(contains(text, "2 ms  block=512,items=1, 500 GFLOP/s, 50 GB/s; 2.00x"));
  CHECK(!contains(text, "roofline"));
}

TEST_CASE("a report of a choice says what took no part", "[tools]") {
  TuneResult choice = result();
  choice.left_out = {{"cublaslt", "it cannot be opened\nhere"},
                     {"mine", "KILN_BACKENDS leaves it out"}};
  const std::string text = describe(choice);
  INFO(text);
  CHECK(contains(text, "  cublaslt takes no part: it cannot be opened\n"));
  CHECK(contains(text, "  mine takes no part: KILN_BACKENDS leaves it out\n"));
  const json j = report_json(choice);
  CHECK(j["left_out"][1] == json{{"name", "mine"}, {"why", "KILN_BACKENDS leaves it out"}});
  CHECK(!report_json(result()).contains("left_out"));
}

TEST_CASE("with a roofline it says how far from it", "[tools]") {
  const std::string text = describe(result(), &kRoof);
  INFO(text);
  CHECK(contains(text, "block=256,items=1, 250 GFLOP/s, 25 GB/s, 25 % of the roofline"));
  CHECK(contains(text, "block=512,items=1, 500 GFLOP/s, 50 GB/s, 50 % of the roofline"));
  const Roofline unknown;
  CHECK(!contains(describe(result(), &unknown), "of the roofline"));
}

TEST_CASE("JSON has the same figures", "[tools]") {
  const json plain = report_json(result());
  CHECK(plain["winner"]["tflops"].get<double>() == Approx(0.5));
  CHECK(plain["winner"]["gb_per_s"].get<double>() == Approx(50));
  CHECK(!plain["winner"].contains("roofline_percent"));
  CHECK(!plain.contains("roofline"));
  CHECK(plain["counts"]["measured"] == 2);
  CHECK(plain["counts"]["compile_failed"] == 1);
  CHECK(plain["space"]["rejected"][0]["count"] == 3);
  CHECK(plain["end"] == "evaluations");
  CHECK(plain["warnings"].size() == 1);

  const json held = report_json(result(), &kRoof);
  CHECK(held["winner"]["roofline_percent"].get<double>() == Approx(50));
  CHECK(held["winner"]["bound"] == "memory");
  CHECK(held["default"]["roofline_percent"].get<double>() == Approx(25));
  CHECK(!held["candidates"][2].contains("roofline_percent"));
  CHECK(held["candidates"][2]["reason"].get<std::string>() == "error: no\nmore of the log");
  CHECK(held["roofline"]["gb_per_s"].get<double>() == Approx(100));
  CHECK(held["roofline"]["fma_gflops"].get<double>() == Approx(1000));
  CHECK(!held["roofline"].contains("tensor_gflops"));
}

TEST_CASE("a kernel that does not say what it does has no rates", "[tools]") {
  TuneResult r = result();
  r.flops = 0;
  r.bytes = 0;
  CHECK(!contains(describe(r, &kRoof), "/s"));
  const json j = report_json(r, &kRoof);
  CHECK(!j["winner"].contains("tflops"));
  CHECK(!j["winner"].contains("gb_per_s"));
  CHECK(!j["winner"].contains("bound"));
  // A default that failed has no time; numbers that JSON cannot hold do not get there.
  r.candidates[0].status = CandidateStatus::launch_failed;
  r.flops = std::numeric_limits<double>::infinity();
  CHECK(contains(describe(r), "launch_failed"));
  CHECK(!contains(report_json(r, &kRoof).dump(), "null"));
}

TEST_CASE("rates and times have three digits and a prefix", "[tools]") {
  CHECK(show_rate(0, "B/s") == "0 B/s");
  CHECK(show_rate(999, "B/s") == "999 B/s");
  CHECK(show_rate(999.6, "B/s") == "1 KB/s");
  CHECK(show_rate(1.234e9, "B/s") == "1.23 GB/s");
  CHECK(show_rate(6.6e14, "FLOP/s") == "660 TFLOP/s");
  CHECK(show_rate(5e18, "FLOP/s") == "5e+03 PFLOP/s");
  CHECK(show_time(2.5) == "2.5 s");
  CHECK(show_time(1.234e-3) == "1.23 ms");
  CHECK(show_time(4.5e-8) == "0.045 us");
}

TEST_CASE("a program gets the same JSON as the command", "[tools]") {
  json of_command = report_json(result(), &kRoof);
  of_command.erase("roofline");
  CHECK(json::parse(kiln::to_json(result(), &kRoof)) == of_command);
  CHECK(json::parse(kiln::to_json(result()))["winner"]["config"]["block"] == 512);
  TuneResult odd = result();
  odd.candidates[2].reason = "error: \xff";
  CHECK(json::parse(kiln::to_json(odd))["candidates"][2]["reason"] == "error: \xef\xbf\xbd");
}

TEST_CASE("why a slower one won is said", "[tools]") {
  TuneResult r = result();
  CHECK(why_not_the_fastest(r).empty());
  CHECK(report_json(r)["why_not_the_fastest"] == "");
  r.winner_index = 0;
  const std::string certain =
      "block=512,items=1 is listed 1e+02 % faster, but this is not certain: the default is "
      "only replaced by a config that is certainly faster";
  CHECK(why_not_the_fastest(r) == certain);
  CHECK(contains(describe(r), "  " + certain + "\n"));
  CHECK(report_json(r)["why_not_the_fastest"] == certain);

  r.candidates.push_back(candidate({1024, 1}, CandidateStatus::measured, 2.004e-3));
  r.winner_index = 5;
  CHECK(
      why_not_the_fastest(r) ==
      "block=512,items=1 is listed 0.2 % faster: a difference of up to 0.5 % is a tie, which goes "
      "to the config that is expected to be cheaper, then to the first in the order of the space");
  r.candidates[5].seconds = 2.1e-3;
  CHECK(contains(why_not_the_fastest(r),
                 "block=512,items=1 is listed 5 % faster, but at another moment"));
  r.agreed = RankReport{};
  CHECK(contains(why_not_the_fastest(r), "the ranks chose by the times of all"));
  r.agreed->outcome = RankReport::Outcome::defaults;
  r.agreed->why = "rank 3 is late";
  CHECK(contains(why_not_the_fastest(r), "all ranks use the default: rank 3 is late"));
  // What was not measured is not fast.
  r.agreed.reset();
  r.candidates[1].status = CandidateStatus::wrong_result;
  CHECK(why_not_the_fastest(r).empty());
  r.winner_index = 1;
  CHECK(why_not_the_fastest(r).empty());
}

TEST_CASE("one config's time is told with its samples", "[tools]") {
  TuneResult r = result();
  r.candidates = {r.candidates[1]};
  r.candidates[0].samples = {3e-3, 2e-3, 1e-3};
  r.winner_index = 0;
  const std::string text = describe_timing(r);
  INFO(text);
  CHECK(contains(text, "scale<float> n=1000 on host\n"));
  CHECK(contains(text, "2 ms  block=512,items=1, 500 GFLOP/s, 50 GB/s\n"));
  CHECK(contains(text, "3 samples from 1 ms to 3 ms; verified (error 0 of the tolerance)"));
  CHECK(contains(text, "warning: the clock drifted by 3 %"));
  r.candidates[0].status = CandidateStatus::not_tried;
  r.candidates[0].reason = "the run was stopped before";
  CHECK(contains(describe_timing(r), "not_tried  block=512,items=1: the run was stopped before"));
}

TEST_CASE("a kernel without problem fields has no gap in its name", "[tools]") {
  TuneResult r = result();
  r.problem_fields.clear();
  r.problem.clear();
  CHECK(contains(describe(r), "scale<float> on host\n"));
}
