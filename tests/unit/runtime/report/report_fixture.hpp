// Results to report, and the data that a report makes of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kiln/detail/key_builder.hpp"
#include "kiln/report.hpp"
#include "kiln_test.hpp"
#include "runtime/tune/result_json.hpp"

namespace kiln::test {

inline Candidate timed(Values config, double seconds, double spread = 0.01, int samples = 20) {
  Candidate c;
  c.config = std::move(config);
  c.status = CandidateStatus::measured;
  c.seconds = seconds;
  for (int i = 0; i < samples; ++i)  // symmetric around `seconds`
    c.samples.push_back(seconds * (1 + spread * (2.0 * i / (samples - 1) - 1)));
  return c;
}

inline Candidate failed(Values config, CandidateStatus status, std::string why) {
  Candidate c;
  c.config = std::move(config);
  c.status = status;
  c.reason = std::move(why);
  return c;
}

/// The default takes 4 ms, the winner 2 ms; one more is close to it, one far, one does not compile.
inline TuneResult some_result(std::int64_t rows = 8) {
  TuneResult r;
  r.kernel = "scale";
  r.types = {"float"};
  r.problem_fields = {"rows", "columns"};
  r.problem = {rows, 1024};
  r.device = "host";
  r.parameters = {"block", "body"};
  r.enumerators["body"] = {{0, "simt"}, {1, "mma"}};
  r.candidates = {timed({256, 0}, 4e-3), timed({512, 1}, 2e-3), timed({512, 0}, 2.004e-3),
                  timed({128, 1}, 3e-3),
                  failed({64, 1}, CandidateStatus::compile_failed, "error: no\nmore of the log")};
  r.winner_index = 1;
  r.flops = 1e9;
  r.bytes = 1e8;
  r.strategy = "random";
  r.end = SearchEnd::evaluations;
  r.space.combinations = 12;
  r.space.allowed = 9;
  r.space.rejected = {{"a tile fits", 3}};
  r.versions = {{"kiln", "0.1.0"}, {"compiler", "clang 19"}};
  return r;
}

inline nlohmann::json data_of(const Report& report) { return nlohmann::json::parse(report.json()); }

/// As a store has it.
inline nlohmann::json record_of(const TuneResult& result) {
  nlohmann::json record = runtime::result_json(result);
  record["schema"] = 4;
  for (const KeyField& v : result.versions)
    record["versions"][v.name] = {{"value", v.value}, {"rule", "ignore"}};
  return record;
}

inline Key key_of(const TuneResult& result, const std::string& cpu = "Abacus") {
  detail::KeyBuilder key("record", 4);
  key.add("kernel", result.kernel);
  for (std::size_t i = 0; i < result.problem.size(); ++i)
    key.add("problem." + result.problem_fields[i], result.problem[i]);
  key.add("target", "x86-64-v3").add("device.cpu", cpu).add("device.threads", "2");
  key.made_with();
  return key.finish();
}

}  // namespace kiln::test
