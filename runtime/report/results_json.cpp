#include "runtime/report/results_json.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "runtime/tune/result_json.hpp"

namespace kiln::runtime {

using nlohmann::json;

namespace {

using Enumerators = std::map<std::string, std::map<std::int64_t, std::string>>;

/// With numbers in the place of enumerators' names.
json config_from(json config, const Enumerators& enumerators) {
  for (const auto& [parameter, names] : enumerators) {
    const auto value = config.find(parameter);
    if (value == config.end() || !value->is_string()) continue;
    const auto named = std::find_if(names.begin(), names.end(), [&](const auto& name) {
      return name.second == value->get_ref<const std::string&>();
    });
    if (named == names.end()) throw std::out_of_range(parameter + " has an unknown name");
    *value = named->first;
  }
  return config;
}

/// From milliseconds and names to the form of records.
json candidate_from(json candidate, const Enumerators& enumerators) {
  candidate["config"] = config_from(candidate.at("config"), enumerators);
  if (candidate.at("status") != to_string(CandidateStatus::measured)) return candidate;
  json samples = json::array();
  for (const double ms : candidate.at("samples_ms").get<std::vector<double>>())
    samples.push_back(ms * 1e-3);
  candidate["samples"] = std::move(samples);
  candidate["seconds"] = candidate.at("time_ms").get<double>() * 1e-3;
  candidate["host_seconds"] = candidate.value("host_ms", 0.0) * 1e-3;
  return candidate;
}

RankReport ranks_from(const json& printed) {
  const json& j = printed.at("ranks");
  RankReport ranks{.rank = j.at("rank"),
                   .size = j.at("size"),
                   .plan_digest = printed.at("plan_digest"),
                   .why = j.at("why"),
                   .broken = j.at("broken"),
                   .measured = j.at("measured")};
  if (j.at("outcome") == to_string(RankReport::Outcome::defaults))
    ranks.outcome = RankReport::Outcome::defaults;
  return ranks;
}

Roofline roofline_from(const json& j) {
  return {.bytes_per_second = j.value("gb_per_s", 0.0) * 1e9,
          .flops_per_second = j.value("fma_gflops", 0.0) * 1e9,
          .tensor_flops_per_second = j.value("tensor_gflops", 0.0) * 1e9,
          .device = j.value("device", ""),
          .from_store = j.value("from_store", false)};
}

Reported result_printed_as(json j) {
  const auto enumerators = j.value("enumerators", Enumerators());
  for (json& candidate : j.at("candidates"))
    candidate = candidate_from(std::move(candidate), enumerators);
  for (const char* which : {"default", "winner"})
    j[which] = config_from(j.at(which).at("config"), enumerators);
  j["count"] = j.at("space");
  std::vector<std::string> fields;
  for (const auto& [name, value] : j.at("problem").items()) fields.push_back(name);
  if (const auto ordered = j.find("problem_fields"); ordered != j.end())
    fields = ordered->get<std::vector<std::string>>();
  Reported found{.result = result_from(j, fields)};
  TuneResult& result = found.result;
  result.from_store = j.value("from_store", false);
  result.evaluated = j.value("evaluated", std::size_t{0});
  result.failure = j.value("failure", "");
  result.warnings = j.value("warnings", result.warnings);
  result.wall_seconds = j.value("wall_s", 0.0);
  result.compile_seconds = j.value("compile_s", 0.0);
  result.verify_seconds = j.value("verify_s", 0.0);
  result.time_seconds = j.value("time_s", 0.0);
  result.search_seconds = j.value("search_s", 0.0);
  result.compiled = j.value("compiled", std::size_t{0});
  for (const auto& [name, value] : j.at("versions").items())
    result.versions.push_back({name, value});
  if (j.contains("ranks")) result.agreed = ranks_from(j);
  if (const auto roofline = j.find("roofline"); roofline != j.end())
    found.roofline = roofline_from(*roofline);
  found.weight = j.value("weight", 0.0);
  return found;
}

}  // namespace

void each_printed_result(const json& printed, const std::function<void(Reported)>& found,
                         const std::function<void(std::string)>& not_one) {
  std::size_t entries = 0, others = 0;
  std::string why;  // the first of the others is none
  const auto one = [&](const json& j) {
    std::string trouble = "it is not a result of a tuning";
    ++entries;
    if (j.is_object() && j.contains("kernel") && j.contains("candidates")) {
      Reported reported;
      try {
        reported = result_printed_as(j);
        trouble.clear();
      } catch (const std::exception& error) {  // json's type and range errors
        trouble = std::string("it is not a whole result: ") + error.what();
      }
      if (trouble.empty()) return found(std::move(reported));
    }
    if (others++ == 0) why = std::move(trouble);
  };
  if (printed.is_object() && printed.contains("error") && printed["error"].is_object()) {
    const json message = printed["error"].value("message", json());
    return not_one("it is an error, not a result" +
                   (message.is_string() ? ": " + message.get<std::string>() : ""));
  }
  const json& all =
      printed.is_object() && printed.contains("results") ? printed["results"] : printed;
  if (!all.is_array())
    one(all);
  else
    for (const json& j : all)
      if (!j.is_object() || !j.contains("kind"))
        one(j);
      else if (j.contains("result"))  // from `kiln cache explain`; binaries have no result
        one(j["result"]);
  // Other tools' files may have thousands of entries.
  if (entries == 1 && others == 1) return not_one(why);
  if (others > 0)
    not_one(detail::format("{} of its {} entries are skipped, the first because {}", others,
                           entries, why));
}

}  // namespace kiln::runtime
