#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/detail/metric_table.hpp"
#include "kiln/report.hpp"
#include "runtime/measure/finals.hpp"
#include "runtime/tune/result_json.hpp"

namespace kiln {

namespace {

using detail::format;
using nlohmann::json;

/// For people's programs: enumerators by name, milliseconds, rates.
json shown(const TuneResult& result, const Candidate& c, const Roofline* roofline) {
  json j = runtime::candidate_json(result, c);
  for (std::size_t i = 0; i < c.config.size(); ++i)
    if (result.enumerators.contains(result.parameters[i]))
      j["config"][result.parameters[i]] = result.show(i, c.config[i]);
  if (c.status != CandidateStatus::measured) return j;
  json samples = json::array();
  for (double s : c.samples) samples.push_back(s * 1e3);
  j["samples_ms"] = std::move(samples);
  j.erase("seconds");
  j.erase("host_seconds");
  j.erase("samples");
  detail::add_metrics(j, detail::kCandidateMetrics, metrics(result, c, roofline));
  return j;
}

}  // namespace

std::string to_json(const TuneResult& result, const Roofline* roofline) {
  json j = runtime::result_json(result), versions = json::object(), counts = json::object();
  for (std::size_t i = 0; i < result.candidates.size(); ++i)
    j["candidates"][i] = shown(result, result.candidates[i], roofline);
  for (const KeyField& v : result.versions) versions[v.name] = v.value;
  for (int i = 0; i <= static_cast<int>(CandidateStatus::not_tried); ++i) {
    const auto status = static_cast<CandidateStatus>(i);
    counts[to_string(status)] = result.count(status);
  }
  j["space"] = std::move(j["count"]);
  j.erase("count");
  j.update({{"from_store", result.from_store},
            {"problem_fields", result.problem_fields},
            {"evaluated", result.evaluated},
            {"warnings", result.warnings},
            {"default", shown(result, result.default_candidate(), roofline)},
            {"winner", shown(result, result.winner(), roofline)},
            {"why_not_the_fastest", why_not_the_fastest(result)},
            {"counts", counts},
            {"compiled", result.compiled},
            {"versions", versions}});
  detail::add_metrics(j, detail::kTuningMetrics, result);
  if (!result.failure.empty()) j["failure"] = result.failure;
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
    return listed + " by this rank; the ranks chose by the times of all ranks";
  if (result.winner_index == result.default_index)
    return listed +
           ", but this is not certain: the default is only replaced by a config that is certainly "
           "faster";
  const double band = runtime::FinalsOptions{}.tie_band;
  if (ahead <= band)
    return format(
        "{}: a difference of up to {:.1f} % is a tie, which goes to the config that is expected to "
        "be cheaper, then to the first in the order of the space",
        listed, 100 * band);
  return listed +
         ", but at another moment, or not certainly: the best are timed again side by side, and "
         "the config in use is only replaced by one that is certainly faster";
}

}  // namespace kiln
