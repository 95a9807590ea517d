#include "kiln/report.hpp"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/detail/metric_table.hpp"
#include "runtime/measure/finals.hpp"

namespace kiln {

namespace {

using detail::format;
using nlohmann::json;

json by_name(const std::vector<std::string>& names, const Values& values) {
  json object = json::object();
  for (std::size_t i = 0; i < names.size(); ++i) object[names[i]] = values[i];
  return object;
}

json config_json(const TuneResult& result, const Values& config) {
  json object = by_name(result.parameters, config);
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
    j["samples_ms"] = std::move(samples);
    j["max_error"] = c.max_error;
    detail::add_metrics(j, detail::kCandidateMetrics, metrics(result, c, roofline));
  } else {
    j["reason"] = c.reason;
  }
  j["resources"] = {{"registers", c.resources.registers},
                    {"spill_bytes", c.resources.spill_bytes},
                    {"shared_bytes", c.resources.shared_bytes}};
  return j;
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

std::string to_json(const TuneResult& result, const Roofline* roofline) {
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
         {"problem", by_name(result.problem_fields, result.problem)},
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
         {"why_not_the_fastest", why_not_the_fastest(result)},
         {"counts", counts},
         {"compiled", result.compiled},
         {"versions", versions},
         {"candidates", candidates}};
  detail::add_metrics(j, detail::kTuningMetrics, result);
  if (const auto& a = result.agreed) {
    j["plan_digest"] = a->plan_digest;
    j["ranks"] = {{"rank", a->rank}, {"size", a->size},     {"outcome", to_string(a->outcome)},
                  {"why", a->why},   {"broken", a->broken}, {"measured", a->measured}};
  }
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string why_not_the_fastest(const TuneResult& result) {
  if (result.winner().status != CandidateStatus::measured) return {};
  const auto slower = [](const Candidate& a, const Candidate& b) {
    if ((a.status == CandidateStatus::measured) != (b.status == CandidateStatus::measured))
      return a.status == CandidateStatus::measured;
    return a.seconds < b.seconds;
  };
  const Candidate& fastest =
      *std::min_element(result.candidates.begin(), result.candidates.end(), slower);
  const double ahead = result.winner().seconds / fastest.seconds - 1;
  if (!(ahead > 0)) return {};
  const std::string listed =
      format("{} is listed {:.2g} % faster", result.describe(fastest), 100 * ahead);
  if (const auto& a = result.agreed; a && a->outcome == RankReport::Outcome::defaults)
    return format("{}, but all ranks use the default: {}", listed, a->why);
  if (result.agreed && result.agreed->outcome == RankReport::Outcome::plan)
    return listed + " by this rank; the ranks chose by the times of all";
  if (result.winner_index == result.default_index)
    return listed +
           ", but not for certain: only what is certainly faster takes the place of the default";
  const double band = runtime::FinalsOptions{}.tie_band;
  if (ahead <= band)
    return format(
        "{}: up to {:.1f} % is a tie, which goes to the config that is expected to be "
        "cheaper, then to the first in the order of the space",
        listed, 100 * band);
  return listed +
         ", but at another moment, or not for certain: the pick is made among the best, timed side "
         "by side, and only what is certainly faster takes the place of the config in use";
}

}  // namespace kiln
