#include "tools/report.hpp"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

json named(const std::vector<std::string>& names, const Values& values) {
  json object = json::object();
  for (std::size_t i = 0; i < names.size(); ++i) object[names[i]] = values[i];
  return object;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// `, 35.1 GB/s, 12.0 GFLOP/s`, as far as the kernel says what it does.
std::string rates(const TuneResult& result, double seconds) {
  std::string text;
  if (result.flops > 0) text += format(", {:.1f} GFLOP/s", result.flops / seconds * 1e-9);
  if (result.bytes > 0) text += format(", {:.1f} GB/s", result.bytes / seconds * 1e-9);
  return text;
}

json to_json(const TuneResult& result, const Candidate& c) {
  json j{{"config", named(result.parameters, c.config)}, {"status", to_string(c.status)}};
  if (c.status == CandidateStatus::measured) {
    json samples = json::array();
    for (double s : c.samples) samples.push_back(s * 1e3);
    j["time_ms"] = c.seconds * 1e3;
    j["samples_ms"] = std::move(samples);
    j["max_error"] = c.max_error;
    if (result.flops > 0) j["gflops"] = result.flops / c.seconds * 1e-9;
    if (result.bytes > 0) j["gb_per_s"] = result.bytes / c.seconds * 1e-9;
  } else {
    j["reason"] = c.reason;
  }
  j["resources"] = {{"registers", c.resources.registers},
                    {"spill_bytes", c.resources.spill_bytes},
                    {"shared_bytes", c.resources.shared_bytes}};
  return j;
}

}  // namespace

std::string show_time(double seconds) {
  if (seconds >= 1) return format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return format("{:.3g} ms", seconds * 1e3);
  return format("{:.3g} us", seconds * 1e6);
}

std::string describe(const TuneResult& result) {
  std::string types, problem;
  for (const auto& t : result.types) types += (types.empty() ? "" : ",") + t;
  for (std::size_t i = 0; i < result.problem.size(); ++i)
    problem += format("{}{}={}", i ? "," : "", result.problem_fields[i], result.problem[i]);
  std::string text =
      format("{}{} {} on {}{}\n", result.kernel, types.empty() ? "" : "<" + types + ">", problem,
             result.device, result.from_store ? " (from the store)" : "");

  using S = CandidateStatus;
  const std::size_t measured = result.count(S::measured), wrong = result.count(S::wrong_result);
  const std::size_t pruned = result.count(S::violates_constraint) + result.count(S::exceeds_limits);
  text += format("  {} candidates: {} pruned, {} failed, {} verified, {} timed\n",
                 result.candidates.size(), pruned,
                 result.count(S::compile_failed) + result.count(S::launch_failed) + wrong, measured,
                 measured);
  std::map<std::string, std::size_t> reasons;
  for (const Candidate& c : result.candidates)
    if (c.status != S::measured)
      ++reasons[std::string(to_string(c.status)) + ": " + first_line(c.reason)];
  for (const auto& [reason, count] : reasons) text += format("    {:>5} x {}\n", count, reason);

  const Candidate &base = result.default_candidate(), &best = result.winner();
  if (base.status == S::measured)
    text += format("  default {:>9}  {}{}\n", show_time(base.seconds), result.describe(base),
                   rates(result, base.seconds));
  else
    text += format("  default {:>9}  {}\n", to_string(base.status), result.describe(base));
  text += format("  winner  {:>9}  {}{}; {:.2f}x the default's speed\n", show_time(best.seconds),
                 result.describe(best), rates(result, best.seconds), result.speedup());
  return text;
}

json to_json(const TuneResult& result) {
  json candidates = json::array(), versions = json::object(), counts = json::object();
  for (const Candidate& c : result.candidates) candidates.push_back(to_json(result, c));
  for (const KeyField& v : result.versions) versions[v.name] = v.value;
  for (int i = 0; i <= static_cast<int>(CandidateStatus::not_tried); ++i) {
    const auto status = static_cast<CandidateStatus>(i);
    counts[to_string(status)] = result.count(status);
  }
  return {{"kernel", result.kernel},
          {"types", result.types},
          {"problem", named(result.problem_fields, result.problem)},
          {"device", result.device},
          {"from_store", result.from_store},
          {"complete", result.complete},
          {"default", to_json(result, result.default_candidate())},
          {"winner", to_json(result, result.winner())},
          {"speedup", result.speedup()},
          {"counts", counts},
          {"compiled", result.compiled},
          {"wall_s", result.wall_seconds},
          {"compile_s", result.compile_seconds},
          {"verify_s", result.verify_seconds},
          {"time_s", result.time_seconds},
          {"versions", versions},
          {"candidates", candidates}};
}

}  // namespace kiln::tools
