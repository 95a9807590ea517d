#include "runtime/tune/result_json.hpp"

#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

namespace kiln::runtime {

using nlohmann::json;

namespace {

/// The value of an enumeration that is written as `text`. `last` is its last one.
template <class Enum>
std::optional<Enum> enumerator_from(const std::string& text, Enum last) {
  for (int i = 0; i <= static_cast<int>(last); ++i)
    if (text == to_string(static_cast<Enum>(i))) return static_cast<Enum>(i);
  return {};
}

json count_json(const SpaceCount& count) {
  json rejected = json::array();
  for (const SpaceCount::Rejection& r : count.rejected)
    rejected.push_back({{"reason", r.reason}, {"count", r.count}});
  return {{"combinations", count.combinations},
          {"allowed", count.allowed},
          {"exact", count.exact},
          {"rejected", rejected}};
}

SpaceCount count_from(const json& j) {
  SpaceCount count{j.at("combinations"), j.at("allowed"), j.at("exact"), {}};
  // The first records of this schema have an object: numbers by reason.
  for (const auto& [reason, r] : j.at("rejected").items())
    count.rejected.push_back(r.is_object() ? SpaceCount::Rejection{r.at("reason"), r.at("count")}
                                           : SpaceCount::Rejection{reason, r});
  return count;
}

/// The values of exactly these parameters; json's own conversion would round 64.5 down.
Values values_from(const json& object, const std::vector<std::string>& names) {
  Values values;
  if (object.size() != names.size()) throw std::out_of_range("parameters");
  for (const std::string& name : names) {
    const json& value = object.at(name);
    if (!value.is_number_integer()) throw std::out_of_range(name);
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

Candidate candidate_from(const json& j, const std::vector<std::string>& parameters) {
  Candidate c;
  c.config = values_from(j.at("config"), parameters);
  c.status = enumerator_from(j.at("status"), CandidateStatus::not_tried).value();
  if (c.status == CandidateStatus::measured) {
    c.seconds = j.at("seconds");
    c.samples = j.at("samples").get<std::vector<double>>();
    if (j.at("max_error").is_number()) c.max_error = j.at("max_error");
    c.host_seconds = j.value("host_seconds", 0.0);
    if (!(c.host_seconds >= 0)) throw std::out_of_range("host_seconds");
    if (const auto e = j.find("norm_error"); e != j.end() && e->is_number()) c.norm_error = *e;
    if (c.samples.empty()) throw std::out_of_range("samples");
    for (double s : c.samples)
      if (!(s > 0)) throw std::out_of_range("samples");
    if (!(c.seconds > 0)) throw std::out_of_range("seconds");
  } else {
    c.reason = j.at("reason");
  }
  c.cut_seconds = j.value("cut_seconds", 0.0);
  if (!(c.cut_seconds >= 0)) throw std::out_of_range("cut_seconds");
  c.after_seconds = j.value("after_seconds", 0.0);
  if (!(c.after_seconds >= 0)) throw std::out_of_range("after_seconds");
  if (const auto r = j.find("resources"); r != j.end())
    c.resources = {r->at("registers"), r->at("spill_bytes"), r->at("shared_bytes")};
  return c;
}

std::size_t index_of(const std::vector<Candidate>& candidates, const Values& config) {
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (candidates[i].config == config) return i;
  throw std::out_of_range("candidates");
}

}  // namespace

json by_name(const std::vector<std::string>& names, std::span<const std::int64_t> values) {
  json object = json::object();
  for (std::size_t i = 0; i < names.size(); ++i) object[names[i]] = values[i];
  return object;
}

json candidate_json(const TuneResult& result, const Candidate& c) {
  json j{{"config", by_name(result.parameters, c.config)},
         {"status", to_string(c.status)},
         {"resources",
          {{"registers", c.resources.registers},
           {"spill_bytes", c.resources.spill_bytes},
           {"shared_bytes", c.resources.shared_bytes}}}};
  if (c.status == CandidateStatus::measured) {
    j["seconds"] = c.seconds;
    j["samples"] = c.samples;
    j["max_error"] = c.max_error;
    j["norm_error"] = c.norm_error;
    if (c.host_seconds > 0) j["host_seconds"] = c.host_seconds;
  } else {
    j["reason"] = c.reason;
  }
  if (c.cut_seconds > 0) j["cut_seconds"] = c.cut_seconds;
  if (c.after_seconds > 0) j["after_seconds"] = c.after_seconds;
  return j;
}

json result_json(const TuneResult& result) {
  json candidates = json::array();
  for (const Candidate& c : result.candidates) candidates.push_back(candidate_json(result, c));
  json j{{"kernel", result.kernel},
         {"types", result.types},
         {"problem", by_name(result.problem_fields, result.problem)},
         {"device", result.device},
         {"parameters", result.parameters},
         {"enumerators", result.enumerators},
         {"strategy", result.strategy},
         {"complete", result.complete},
         {"end", to_string(result.end)},
         {"count", count_json(result.space)},
         {"default", by_name(result.parameters, result.default_candidate().config)},
         {"winner", by_name(result.parameters, result.winner().config)},
         {"candidates", std::move(candidates)}};
  for (const LeftOut& one : result.left_out)
    j["left_out"].push_back({{"name", one.name}, {"why", one.why}});
  for (const KernelOfChoice& one : result.kernels) {
    json& kernel = j["kernels"].emplace_back(json{{"alternative", one.alternative},
                                                  {"kernel", one.kernel},
                                                  {"types", one.types},
                                                  {"problem", one.problem}});
    if (!one.config.empty()) kernel["config"] = one.config;
  }
  // JSON has no infinity.
  if (std::isfinite(result.flops)) j["flops"] = result.flops;
  if (std::isfinite(result.bytes)) j["bytes"] = result.bytes;
  if (result.norm_permitted) j["norm_permitted"] = *result.norm_permitted;
  return j;
}

TuneResult result_from(const json& j, const std::vector<std::string>& problem_fields) {
  TuneResult result;
  result.kernel = j.at("kernel");
  result.types = j.at("types");
  result.problem_fields = problem_fields;
  result.problem = values_from(j.at("problem"), problem_fields);
  result.device = j.at("device");
  result.parameters = j.at("parameters");
  result.enumerators = j.value("enumerators", result.enumerators);
  result.flops = j.value("flops", 0.0);
  result.bytes = j.value("bytes", 0.0);
  if (const auto norm = j.find("norm_permitted"); norm != j.end()) result.norm_permitted = *norm;
  // Kernels have none, nor had the first records of this schema.
  for (const json& one : j.value("left_out", json::array()))
    result.left_out.push_back({one.at("name"), one.at("why")});
  for (const json& one : j.value("kernels", json::array()))
    result.kernels.push_back({one.at("alternative"), one.at("kernel"), one.at("types"),
                              one.at("problem"),
                              one.value("config", std::map<std::string, std::int64_t>())});
  result.strategy = j.at("strategy");
  result.complete = j.at("complete");
  result.end = enumerator_from(j.at("end"), SearchEnd::stopped).value();
  result.space = count_from(j.at("count"));
  for (const json& c : j.at("candidates"))
    result.candidates.push_back(candidate_from(c, result.parameters));
  result.default_index =
      index_of(result.candidates, values_from(j.at("default"), result.parameters));
  result.winner_index = index_of(result.candidates, values_from(j.at("winner"), result.parameters));
  return result;
}

}  // namespace kiln::runtime
