// What a report says of results, as data.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "report_fixture.hpp"
#include "runtime/report/result_data.hpp"
#include "runtime/report/results_json.hpp"

using namespace kiln;
using namespace kiln::test;
using nlohmann::json;

namespace {

std::string why(const json& result, std::size_t candidate) {
  const json& text = result["candidates"]["why"][candidate];
  return text.is_null() ? "" : result["texts"][text.get<std::size_t>()].get<std::string>();
}

Report report_of(const std::vector<TuneResult>& results) {
  Report report;
  for (const TuneResult& r : results) report.add(r, "memory");
  return report;
}

}  // namespace

TEST_CASE("A report has every candidate, and why it lost", "[report]") {
  const json all = data_of(report_of({some_result()}));
  REQUIRE(all["problems"].size() == 1);
  const json& problem = all["problems"][0];
  CHECK(problem["kernel"] == "scale");
  CHECK(problem["problem"] == json::parse(R"([["rows", 8], ["columns", 1024]])"));
  CHECK(problem["default"] == 4e-3);
  CHECK(problem["winner"] == 2e-3);
  const json& result = problem["results"][0];
  CHECK(result["winner"] == 1);
  CHECK(result["default"] == 0);
  CHECK(result["speedup"] == 2);
  CHECK(result["parameters"][1]["names"]["1"] == "mma");
  CHECK(result["candidates"]["config"][3] == json({128, 1}));
  CHECK(result["candidates"]["seconds"] == json({4e-3, 2e-3, 2.004e-3, 3e-3, nullptr}));
  CHECK(why(result, 0) == "2.0 times the winner's time");
  CHECK(why(result, 1).empty());
  CHECK(why(result, 2) == "0.2 % slower, but not certainly: their samples overlap");
  CHECK(why(result, 3) == "50 % slower");
  CHECK(why(result, 4) == "error: no\nmore of the log");
  CHECK(result["counts"] == json({{"measured", 4}, {"compile_failed", 1}}));
  CHECK(result["rates"]["tflops"].get<double>() == Approx(0.5));
  for (const auto& [name, column] : result["candidates"].items()) {
    INFO(name);
    CHECK(column.size() == 5);
  }
}

TEST_CASE("An interval lies around the reported time", "[report]") {
  const auto narrow = runtime::interval_of(timed({1}, 1e-3, 0.01, 60));
  const auto wide = runtime::interval_of(timed({1}, 1e-3, 0.1, 60));
  REQUIRE((narrow && wide));
  CHECK(narrow->low < 1e-3);
  CHECK(narrow->high > 1e-3);
  CHECK(wide->high - wide->low > 5 * (narrow->high - narrow->low));
  // Two samples say nothing, nor does what failed. Thousands of samples are not all paired.
  CHECK(!runtime::interval_of(timed({1}, 1e-3, 0.01, 2)));
  CHECK(!runtime::interval_of(failed({1}, CandidateStatus::hung, "")));
  const auto many = runtime::interval_of(timed({1}, 1e-3, 0.1, 200000));
  REQUIRE(many);
  CHECK(many->low > 0.9e-3);
  // A finalist's time is another than that of its own samples: the interval goes along.
  Candidate finalist = timed({1}, 1e-3, 0.01, 60);
  finalist.seconds = 2e-3;
  CHECK(runtime::interval_of(finalist)->low == Approx(2 * narrow->low));
}

TEST_CASE("A faster candidate that was not picked is no winner", "[report]") {
  TuneResult r = some_result();
  r.candidates[3].seconds = 1.9e-3;
  const json all = data_of(report_of({r}));
  const json& result = all["problems"][0]["results"][0];
  CHECK(why(result, 3) == "listed 5 % faster, but not certainly");
  CHECK(result["why_not_the_fastest"].get<std::string>().find("block=128,body=mma") !=
        std::string::npos);
}

TEST_CASE("The best so far is in the order of outcomes", "[report]") {
  TuneResult r = some_result();
  const auto path = [&r] {
    return data_of(report_of({r}))["problems"][0]["results"][0]["best_so_far"];
  };
  // Older records do not say when: then the order is that of candidates, up to the last one.
  CHECK(path() ==
        json::parse(R"([{"evaluation": 1, "best": 0.004}, {"evaluation": 2, "best": 0.002},
                                  {"evaluation": 5, "best": 0.002}])"));
  const double after[] = {5, 4, 1, 2, 3};
  for (std::size_t i = 0; i < 5; ++i) r.candidates[i].after_seconds = after[i];
  CHECK(path() == json::parse(R"([{"evaluation": 1, "best": 0.002004, "after": 1},
                        {"evaluation": 4, "best": 0.002, "after": 4},
                        {"evaluation": 5, "best": 0.002, "after": 5}])"));
  // What was refused without being built is no evaluation.
  r.candidates.push_back(failed({1, 1}, CandidateStatus::violates_constraint, "no"));
  CHECK(path().back()["evaluation"] == 5);
  CHECK(data_of(report_of({r}))["problems"][0]["results"][0]["order"] == json({2, 3, 4, 1, 0}));
}

TEST_CASE("Totals count what was gained, by weight where there is one", "[report]") {
  Report report = report_of({some_result(8), some_result(16)});
  json device = data_of(report)["devices"][0];
  CHECK(device["default"] == 8e-3);
  CHECK(device["winner"] == 4e-3);
  CHECK(device["weighted"] == false);
  const Values sixteen{16, 1024};
  report.weigh("scale", {"float"}, sixteen, 2);
  report.weigh("scale", {"float"}, sixteen, 3);  // another problem of the same bucket
  report.weigh("scale", {"double"}, sixteen, 100);
  device = data_of(report)["devices"][0];
  CHECK(device["default"] == 20e-3);
  CHECK(device["winner"] == 10e-3);
  CHECK(device["weighted"] == true);
  CHECK_THROWS_AS(report.weigh("scale", {"float"}, sixteen, -1), UserError);
  CHECK_THROWS_AS(report.weigh("scale", {"float"}, sixteen, std::nan("")), UserError);
}

TEST_CASE("A default that cannot run, and a result without a winner", "[report]") {
  TuneResult r = some_result();
  r.candidates[0] = failed({256, 0}, CandidateStatus::launch_failed, "no");
  TuneResult none = some_result(16);
  none.candidates = {failed({256, 0}, CandidateStatus::not_tried, "")};
  none.winner_index = 0;
  none.flops = std::numeric_limits<double>::infinity();
  const json all = data_of(report_of({r, none}));
  CHECK(all["devices"][0]["untimed_defaults"] == 1);
  CHECK(all["devices"][0]["problems"] == 1);
  CHECK(all["devices"][0]["default"] == 2e-3);
  CHECK(all["problems"][0]["default"].is_null());
  CHECK(all["problems"][1]["winner"].is_null());
  CHECK(all["problems"][1]["results"][0]["winner"].is_null());
  CHECK(why(all["problems"][1]["results"][0], 0) == "not_tried");
  CHECK(data_of(Report())["problems"].empty());

  // The weight of a problem without a winner does not count: sums would be no numbers.
  Report weighed = report_of({r, none});
  weighed.weigh("scale", {"float"}, Values{16, 1024}, 3);
  CHECK(data_of(weighed)["devices"][0]["weighted"] == false);
  CHECK(data_of(weighed)["devices"][0]["winner"] == 2e-3);
}

TEST_CASE("Ranks stand side by side, the first one speaks", "[report]") {
  std::vector<TuneResult> ranks;
  for (const int rank : {2, 0, 1}) {
    TuneResult& r = ranks.emplace_back(some_result());
    r.device = "cuda:" + std::to_string(rank);
    r.winner_index = rank == 0 ? 1 : 2;
    r.agreed = RankReport{.rank = rank, .size = 3, .plan_digest = "5ea1", .why = "", .measured = 2};
  }
  const json all = data_of(report_of(ranks));
  REQUIRE(all["problems"].size() == 1);
  const json& results = all["problems"][0]["results"];
  REQUIRE(results.size() == 3);
  for (int rank = 0; rank < 3; ++rank) CHECK(results[rank]["ranks"]["rank"] == rank);
  CHECK(results[2]["ranks"]["plan_digest"] == "5ea1");
  CHECK(all["problems"][0]["winner"] == 2e-3);
}

TEST_CASE("Alternatives of a choice are told apart", "[report]") {
  TuneResult r = some_result();
  r.parameters = {"alternative", "mine.block"};
  r.enumerators = {{"alternative", {{7, "cublaslt"}, {9, "mine"}, {11, "absent"}}}};
  r.candidates = {timed({7, 0}, 3e-3), timed({7, 1}, 2e-3), timed({9, 64}, 1.99e-3),
                  failed({9, 128}, CandidateStatus::wrong_result, "element 3 differs")};
  r.winner_index = 1;
  r.left_out = {{"absent", "it needs 100 elements"}};
  const json all = data_of(report_of({r}));
  CHECK(all["problems"][0]["results"][0]["alternatives"] ==
        json::parse(R"([{"name": "cublaslt", "candidates": 2, "failed": 0, "best": 1},
                        {"name": "mine", "candidates": 2, "failed": 1, "best": 2},
                        {"name": "absent", "candidates": 0, "failed": 0,
                         "why_not": "it needs 100 elements"}])"));
  CHECK(data_of(report_of({some_result()}))["problems"][0]["results"][0]["alternatives"].is_null());
}

namespace {

/// A choice between the kernel of some_result() and a callable; of elements of `type`.
TuneResult some_choice(const std::string& type) {
  TuneResult r = some_result();
  r.types = {type, "nt"};
  r.parameters = {"alternative"};
  r.enumerators = {{"alternative", {{7, "template"}, {9, "mine"}}}};
  r.candidates = {timed({7}, 2e-3), timed({9}, 1e-3)};
  r.winner_index = 1;
  r.kernels = {{"template", "scale", {type}, r.problem}};
  return r;
}

}  // namespace

TEST_CASE("A choice counts once, in the place of its kernels", "[report]") {
  Report report =
      report_of({some_result(), some_result(16), some_choice("float"), some_choice("half")});
  SECTION("without weights") {
    const json all = data_of(report);
    REQUIRE(all["problems"].size() == 3);  // the kernel's other problem is one of its own
    std::size_t floats = 0;
    for (const json& p : all["problems"]) {
      if (p["types"] != json({"float", "nt"})) continue;
      ++floats;
      CHECK(p["winner"] == 1e-3);
      CHECK(p["default"] == 2e-3);
      REQUIRE(p["results"].size() == 2);
      CHECK_FALSE(p["results"][0]["alternatives"].is_null());
      CHECK(p["results"][1]["alternatives"].is_null());
      CHECK(p["results"][1]["kernel"] == "scale");
    }
    CHECK(floats == 1);
    CHECK(all["devices"][0]["problems"] == 3);
    CHECK(all["devices"][0]["winner"].get<double>() == Approx(1e-3 + 1e-3 + 2e-3));
    CHECK(all["devices"][0]["default"].get<double>() == Approx(2e-3 + 2e-3 + 4e-3));
  }
  SECTION("with a weight of the choice or of its kernel") {
    const bool of_kernel = GENERATE(false, true);
    const std::vector<std::string> types =
        of_kernel ? std::vector<std::string>{"float"} : std::vector<std::string>{"float", "nt"};
    report.weigh("scale", types, some_result().problem, 5);
    const json all = data_of(report);
    CHECK(all["devices"][0]["weighted"] == true);
    CHECK(all["devices"][0]["winner"].get<double>() == Approx(5e-3));
  }
}

TEST_CASE("A kernel that is launched by itself, too, counts beside its choice", "[report]") {
  Report report;
  const TuneResult kernel = some_result(), choice = some_choice("float");
  const auto total = [&] { return data_of(report)["devices"][0]["winner"].get<double>(); };
  SECTION("weights are given for both") {
    report = report_of({kernel, choice});
    report.weigh("scale", {"float"}, kernel.problem, 10);
    report.weigh("scale", {"float", "nt"}, choice.problem, 5);
    const json all = data_of(report);
    REQUIRE(all["problems"].size() == 2);
    CHECK(all["problems"][0]["weight"] == 10);
    CHECK(all["problems"][0]["results"].size() == 1);
    CHECK(all["problems"][1]["weight"] == 5);
    CHECK(all["problems"][1]["results"].size() == 2);
    CHECK(total() == Approx(10 * 2e-3 + 5 * 1e-3));
  }
  SECTION("a kernel's weight is that of one choice") {
    TuneResult other = choice;
    other.types = {"float", "tn"};
    const bool has_result = GENERATE(false, true);
    report = has_result ? report_of({kernel, choice, other}) : report_of({choice, other});
    report.weigh("scale", {"float"}, kernel.problem, 10);
    REQUIRE(data_of(report)["problems"].size() == 2);
    CHECK(total() == Approx(10 * 1e-3));
  }
}

TEST_CASE("A candidate's host cost is shown", "[report]") {
  TuneResult choice = some_choice("float");
  choice.candidates[1].host_seconds = 4e-6;
  const json host = json::array({nullptr, 4e-6});
  CHECK(data_of(report_of({choice}))["problems"][0]["results"][0]["candidates"]["host"] == host);
  std::vector<runtime::Reported> read;  // of what the command prints
  runtime::each_printed_result(
      json::parse(to_json(choice)), [&](runtime::Reported one) { read.push_back(one); },
      [](const std::string&) {});
  REQUIRE(read.size() == 1);
  CHECK(read[0].result.candidates[1].host_seconds == Approx(4e-6));
  CHECK(read[0].result.candidates[0].host_seconds == 0);
}

TEST_CASE("Results of the roofline's kernels are the device's roofline", "[report]") {
  TuneResult copy = some_result(), fma = some_result();
  copy.kernel = "roofline_copy";
  fma.kernel = "roofline_fma";
  const json all = data_of(report_of({some_result(), copy, fma}));
  REQUIRE(all["problems"].size() == 1);
  const json& roofline = all["devices"][0]["roofline"];
  // The rates follow from the fastest sample, 1 % under the median.
  CHECK(roofline["bytes_per_second"].get<double>() == Approx(1e8 / 1.98e-3));
  CHECK(roofline["flops_per_second"].get<double>() == Approx(1e9 / 1.98e-3));
  CHECK(all["problems"][0]["results"][0]["rates"]["roofline_percent"].get<double>() == Approx(99));
}
