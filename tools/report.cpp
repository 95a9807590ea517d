#include "tools/report.hpp"

#include <array>
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

/// `, 35.1 GB/s, 12 GFLOP/s, 87 % of the roofline (memory)`, as far as it is known.
std::string rates(const TuneResult& result, const Candidate& candidate, const Roofline* roofline) {
  const Metrics m = metrics(result, candidate, roofline);
  std::string text;
  if (m.tflops > 0) text += ", " + show_rate(m.tflops * 1e12, "FLOP/s");
  if (m.gbs > 0) text += ", " + show_rate(m.gbs * 1e9, "B/s");
  if (m.bound != BoundBy::unknown)
    text +=
        format(", {:.0f} % of the roofline ({})", 100 * m.roofline_fraction, to_string(m.bound));
  return text;
}

json config_json(const TuneResult& result, const Values& config) {
  json object = named(result.parameters, config);
  for (std::size_t i = 0; i < config.size(); ++i)
    if (result.enumerators.contains(result.parameters[i]))
      object[result.parameters[i]] = result.show(i, config[i]);
  return object;
}

json candidate_json(const TuneResult& result, const Candidate& c, const Roofline* roofline) {
  json j{{"config", config_json(result, c.config)}, {"status", to_string(c.status)}};
  if (c.status == CandidateStatus::measured) {
    json samples = json::array();
    for (double s : c.samples) samples.push_back(s * 1e3);
    j["time_ms"] = c.seconds * 1e3;
    j["samples_ms"] = std::move(samples);
    j["max_error"] = c.max_error;
    const Metrics m = metrics(result, c, roofline);
    if (m.tflops > 0) j["tflops"] = m.tflops;
    if (m.gbs > 0) j["gb_per_s"] = m.gbs;
    if (m.bound != BoundBy::unknown) {
      j["roofline_percent"] = 100 * m.roofline_fraction;
      j["bound"] = to_string(m.bound);
    }
  } else {
    j["reason"] = c.reason;
  }
  j["resources"] = {{"registers", c.resources.registers},
                    {"spill_bytes", c.resources.spill_bytes},
                    {"shared_bytes", c.resources.shared_bytes}};
  return j;
}

/// How large the space is and what its constraints refuse.
std::string describe_space(const SpaceCount& space) {
  if (space.combinations == 0) return {};
  const char* about = space.exact ? "" : "about ";
  std::string text =
      format("  {:.6g} combinations, {}{:.6g} allowed\n", space.combinations, about, space.allowed);
  for (const SpaceCount::Rejection& r : space.rejected)
    text += format("    {:>7.6g} x {}\n", r.count, r.reason);
  return text;
}

/// What was tried and why some of it cannot be used.
std::string describe_candidates(const TuneResult& result) {
  using S = CandidateStatus;
  const std::size_t pruned = result.count(S::violates_constraint) + result.count(S::exceeds_limits);
  const std::size_t failed = result.count(S::compile_failed) + result.count(S::launch_failed) +
                             result.count(S::wrong_result);
  std::string text = format("  {} candidates{}: {} pruned, {} failed, {} verified and timed\n",
                            result.candidates.size(),
                            result.strategy.empty() ? "" : " of strategy " + result.strategy,
                            pruned, failed, result.count(S::measured));
  std::map<std::string, std::size_t> reasons;
  for (const Candidate& c : result.candidates)
    if (c.status != S::measured)
      ++reasons[std::string(to_string(c.status)) + ": " + first_line(c.reason)];
  for (const auto& [reason, count] : reasons) text += format("    {:>7} x {}\n", count, reason);
  if (!result.from_store)
    text += format("  {} (compile {}, verify {}, time {}, search {}){}\n",
                   show_time(result.wall_seconds), show_time(result.compile_seconds),
                   show_time(result.verify_seconds), show_time(result.time_seconds),
                   show_time(result.search_seconds),
                   result.complete ? "" : format("; ended by: {}", to_string(result.end)));
  return text;
}

json space_json(const SpaceCount& space) {
  json rejected = json::array();
  for (const SpaceCount::Rejection& r : space.rejected)
    rejected.push_back({{"reason", r.reason}, {"count", r.count}});
  return {{"combinations", space.combinations},
          {"allowed", space.allowed},
          {"exact", space.exact},
          {"rejected", rejected}};
}

}  // namespace

std::string show_time(double seconds) {
  if (seconds >= 1) return format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return format("{:.3g} ms", seconds * 1e3);
  return format("{:.3g} us", seconds * 1e6);
}

std::string show_rate(double per_second, const char* unit) {
  static constexpr std::array kPrefixes = {"", "K", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (per_second >= 999.5 && prefix + 1 < kPrefixes.size()) {
    per_second /= 1000;
    ++prefix;
  }
  return format("{:.3g} {}{}", per_second, kPrefixes[prefix], unit);
}

std::string describe(const TuneResult& result, const Roofline* roofline) {
  std::string types, problem;
  for (const auto& t : result.types) types += (types.empty() ? "" : ",") + t;
  for (std::size_t i = 0; i < result.problem.size(); ++i)
    problem += format("{}{}={}", i ? "," : "", result.problem_fields[i], result.problem[i]);
  std::string text =
      format("{}{} {} on {}{}\n", result.kernel, types.empty() ? "" : "<" + types + ">", problem,
             result.device, result.from_store ? " (from the store)" : "");
  text += describe_space(result.space) + describe_candidates(result);
  for (const std::string& warning : result.warnings) text += "  warning: " + warning + "\n";
  if (const auto& a = result.agreed; a && a->outcome == RankReport::Outcome::defaults)
    text += format("  {} ranks: all use the default: {}\n", a->size, a->why);
  else if (a)
    text += format("  {} ranks: {} {:.16}; rank {} timed {} candidates\n", a->size,
                   to_string(a->outcome), a->plan_digest, a->rank, a->measured);

  const Candidate &base = result.default_candidate(), &best = result.winner();
  if (base.status == CandidateStatus::measured)
    text += format("  default {:>9}  {}{}\n", show_time(base.seconds), result.describe(base),
                   rates(result, base, roofline));
  else
    text += format("  default {:>9}  {}\n", to_string(base.status), result.describe(base));
  if (best.status != CandidateStatus::measured) return text + "  nothing was measured\n";
  text += format("  winner  {:>9}  {}{}; {:.2f}x the default's speed\n", show_time(best.seconds),
                 result.describe(best), rates(result, best, roofline), result.speedup());
  return text;
}

json to_json(const TuneResult& result, const Roofline* roofline) {
  json candidates = json::array(), versions = json::object(), counts = json::object();
  for (const Candidate& c : result.candidates)
    candidates.push_back(candidate_json(result, c, roofline));
  for (const KeyField& v : result.versions) versions[v.name] = v.value;
  for (int i = 0; i <= static_cast<int>(CandidateStatus::not_tried); ++i) {
    const auto status = static_cast<CandidateStatus>(i);
    counts[to_string(status)] = result.count(status);
  }
  json j{{"kernel", result.kernel},
         {"types", result.types},
         {"problem", named(result.problem_fields, result.problem)},
         {"device", result.device},
         {"from_store", result.from_store},
         {"strategy", result.strategy},
         {"complete", result.complete},
         {"end", to_string(result.end)},
         {"evaluated", result.evaluated},
         {"warnings", result.warnings},
         {"space", space_json(result.space)},
         {"default", candidate_json(result, result.default_candidate(), roofline)},
         {"winner", candidate_json(result, result.winner(), roofline)},
         {"speedup", result.speedup()},
         {"counts", counts},
         {"compiled", result.compiled},
         {"wall_s", result.wall_seconds},
         {"compile_s", result.compile_seconds},
         {"verify_s", result.verify_seconds},
         {"time_s", result.time_seconds},
         {"search_s", result.search_seconds},
         {"versions", versions},
         {"candidates", candidates}};
  if (roofline) j["roofline"] = to_json(*roofline);
  if (const auto& a = result.agreed) {
    j["plan_digest"] = a->plan_digest;
    j["ranks"] = {{"rank", a->rank}, {"size", a->size},     {"outcome", to_string(a->outcome)},
                  {"why", a->why},   {"broken", a->broken}, {"measured", a->measured}};
  }
  return j;
}

json to_json(const Roofline& roofline) {
  json j{{"device", roofline.device},
         {"gb_per_s", roofline.bytes_per_second * 1e-9},
         {"fma_gflops", roofline.flops_per_second * 1e-9},
         {"ridge_flop_per_byte", roofline.ridge()},
         {"from_store", roofline.from_store}};
  if (roofline.tensor_flops_per_second > 0)
    j["tensor_gflops"] = roofline.tensor_flops_per_second * 1e-9;
  return j;
}

}  // namespace kiln::tools
