#include "runtime/tune/record.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "codegen/instance.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "runtime/tune/candidates.hpp"

namespace kiln::runtime {

using detail::format;
using nlohmann::json;

namespace {

constexpr std::int64_t kRecordSchema = 3, kKeySchema = 4;
/// Samples kept per candidate; the median is over all of them.
constexpr std::size_t kKeptSamples = 64;

json named(const std::vector<std::string>& names, std::span<const std::int64_t> values) {
  json object = json::object();
  for (std::size_t i = 0; i < names.size(); ++i) object[names[i]] = values[i];
  return object;
}

/// The parameter values of a space and the reasons of its constraints: what was searched.
json describe_space(const DynamicSpace& space) {
  json parameters = json::object(), constraints = json::array();
  for (const Parameter& p : space.parameters()) parameters[p.name] = p.values;
  for (const Constraint& c : space.constraints()) constraints.push_back(c.reason);
  return {{"parameters", parameters}, {"constraints", constraints}};
}

/// Names in order, each with its kind: template arguments go by place, and `true` is not `1`.
std::vector<std::string> declared(const DynamicSpace& space) {
  std::vector<std::string> parameters;
  for (const Parameter& p : space.parameters())
    parameters.push_back(p.name + (p.kind == FieldKind::boolean       ? " boolean"
                                   : p.kind == FieldKind::enumeration ? " enumeration"
                                                                      : " integer"));
  return parameters;
}

std::optional<CandidateStatus> status_from(const std::string& text) {
  for (int i = 0; i <= static_cast<int>(CandidateStatus::not_tried); ++i)
    if (text == to_string(static_cast<CandidateStatus>(i))) return static_cast<CandidateStatus>(i);
  return {};
}

json to_json(const LaunchGeometry& g) {
  return {g.grid.x, g.grid.y, g.grid.z, g.block.x, g.block.y, g.block.z, g.shared_bytes};
}

json to_json(const Candidate& c, const TuneResult& result, const KernelDefinition& kernel) {
  json j{{"config", named(result.parameters, c.config)}, {"status", to_string(c.status)}};
  if (was_built(c)) j["launch"] = to_json(kernel.geometry(c.config, result.problem));
  if (c.status == CandidateStatus::measured) {
    j["seconds"] = c.seconds;
    j["samples"] = std::vector<double>(
        c.samples.begin(),
        c.samples.begin() + static_cast<std::ptrdiff_t>(std::min(c.samples.size(), kKeptSamples)));
    j["max_error"] = c.max_error;
  } else {
    j["reason"] = c.reason;
  }
  if (c.resources.shared_bytes || c.resources.registers)
    j["resources"] = {{"registers", c.resources.registers},
                      {"spill_bytes", c.resources.spill_bytes},
                      {"shared_bytes", c.resources.shared_bytes}};
  return j;
}

/// The values of exactly these parameters; json's own conversion would round 64.5 down.
Values values_from(const json& object, const std::vector<std::string>& parameters) {
  Values values;
  if (object.size() != parameters.size()) throw std::out_of_range("parameters");
  for (const std::string& name : parameters) {
    const json& value = object.at(name);
    if (!value.is_number_integer()) throw std::out_of_range(name);
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

Candidate candidate_from(const json& j, const std::vector<std::string>& parameters) {
  Candidate c;
  c.config = values_from(j.at("config"), parameters);
  c.status = status_from(j.at("status")).value();
  if (c.status == CandidateStatus::measured) {
    c.seconds = j.at("seconds");
    c.samples = j.at("samples").get<std::vector<double>>();
    if (j.at("max_error").is_number()) c.max_error = j.at("max_error");
    if (c.samples.empty()) throw std::out_of_range("samples");
    for (double s : c.samples)
      if (!(s > 0)) throw std::out_of_range("samples");
    if (!(c.seconds > 0)) throw std::out_of_range("seconds");
  } else {
    c.reason = j.at("reason");
  }
  if (const auto r = j.find("resources"); r != j.end())
    c.resources = {r->at("registers"), r->at("spill_bytes"), r->at("shared_bytes")};
  return c;
}

bool in_space(const DynamicSpace& space, const Values& config) {
  for (std::size_t i = 0; i < config.size(); ++i) {
    const auto& values = space.parameters()[i].values;
    if (std::find(values.begin(), values.end(), config[i]) == values.end()) return false;
  }
  return true;
}

/// What was launched is what would be launched today.
bool same_launch(const json& j, const Candidate& c, const KernelDefinition& kernel,
                 std::span<const std::int64_t> problem, const DeviceLimits& limits) {
  if (!was_built(c)) return true;
  return !kernel.space.violated(c.config, problem, limits) &&
         j.at("launch") == to_json(kernel.geometry(c.config, problem));
}

json to_json(const SpaceCount& count) {
  json rejected = json::object();
  for (const auto& r : count.rejected) rejected[r.reason] = r.count;
  return {{"combinations", count.combinations},
          {"allowed", count.allowed},
          {"exact", count.exact},
          {"rejected", rejected}};
}

SpaceCount count_from(const json& j) {
  SpaceCount count{j.at("combinations"), j.at("allowed"), j.at("exact"), {}};
  for (const auto& [reason, refused] : j.at("rejected").items())
    count.rejected.push_back({reason, refused});
  return count;
}

std::optional<SearchEnd> end_from(const std::string& text) {
  for (int i = 0; i <= static_cast<int>(SearchEnd::stopped); ++i)
    if (text == to_string(static_cast<SearchEnd>(i))) return static_cast<SearchEnd>(i);
  return {};
}

/// How the search went that found it.
void read_search(const json& record, TuneResult& result) {
  result.complete = record.at("complete");
  result.strategy = record.at("strategy");
  result.end = end_from(record.at("end")).value();
  result.space = count_from(record.at("count"));
  result.from_store = true;
  for (const auto& [name, version] : record.at("versions").items())
    result.versions.push_back({name, version.at("value")});
}

/// How the key names the problem's fields.
constexpr std::string_view kProblemField = "problem.";

}  // namespace

Key record_key(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
               const DeviceInfo& device, const std::optional<Digest>& source) {
  using Texts = std::span<const std::string>;
  detail::KeyBuilder key("record", kKeySchema);
  key.add("kernel", kernel.name)
      .add("entry", kernel.entry)
      .add("passing", codegen::to_string(kernel.passing))
      .add("config type", kernel.config_type)
      .add("parameters", Texts(declared(kernel.space)))
      .add("types", Texts(kernel.types))
      .add("arguments", Texts(kernel.arguments))
      .add("options", Texts(kernel.source.options))
      .add("tolerance",
           format("{} relative, {} absolute, {} mismatches{}", kernel.tolerance.relative,
                  kernel.tolerance.absolute, kernel.tolerance.mismatches,
                  kernel.check ? ", a check of its own" : ""))
      .add("data", kernel.data_version);
  for (std::size_t i = 0; i < problem.size(); ++i)
    key.add(std::string(kProblemField) + kernel.problem_fields[i], problem[i]);
  key.add("target", device.target.arch);
  for (const KeyField& f : device.fingerprint) key.add("device." + f.name, f.value);
  key.made_with();
  if (source) key.add(codegen::kKernelSourceField, *source);
  return key.finish();
}

json to_json(const TuneResult& result, const KernelDefinition& kernel,
             std::span<const Version> versions) {
  json candidates = json::array(), software = json::object();
  for (const Candidate& c : result.candidates) candidates.push_back(to_json(c, result, kernel));
  for (const Version& v : versions)
    software[v.name] = {{"value", v.value},
                        {"rule", v.rule == Version::Rule::retune ? "retune" : "ignore"}};
  return {{"schema", kRecordSchema},
          {"kernel", result.kernel},
          {"types", result.types},
          {"problem", named(result.problem_fields, result.problem)},
          {"device", result.device},
          {"space", describe_space(kernel.space)},
          {"default", named(result.parameters, result.default_candidate().config)},
          {"winner", named(result.parameters, result.winner().config)},
          {"complete", result.complete},
          {"versions", software},
          {"parameters", result.parameters},
          {"enumerators", result.enumerators},
          {"flops", result.flops},
          {"bytes", result.bytes},
          {"strategy", result.strategy},
          {"end", to_string(result.end)},
          {"count", to_json(result.space)},
          {"candidates", candidates}};
}

std::optional<TuneResult> result_of(const json& record, const Key& key) try {
  if (record.at("schema") != kRecordSchema) return {};
  TuneResult result;
  result.kernel = record.at("kernel");
  result.types = record.at("types");
  result.device = record.at("device");
  result.parameters = record.at("parameters");
  result.enumerators = record.value("enumerators", result.enumerators);
  result.flops = record.value("flops", 0.0);
  result.bytes = record.value("bytes", 0.0);
  for (const KeyField& field : key.fields)
    if (field.name.starts_with(kProblemField))
      result.problem_fields.push_back(field.name.substr(kProblemField.size()));
  result.problem = values_from(record.at("problem"), result.problem_fields);
  read_search(record, result);
  const Values default_config = values_from(record.at("default"), result.parameters);
  const Values winner = values_from(record.at("winner"), result.parameters);
  bool default_found = false, winner_found = false;
  for (const json& j : record.at("candidates")) {
    Candidate c = candidate_from(j, result.parameters);
    if (c.config == default_config) {
      result.default_index = result.candidates.size();
      default_found = true;
    }
    if (c.config == winner) {
      result.winner_index = result.candidates.size();
      winner_found = true;
    }
    result.candidates.push_back(std::move(c));
  }
  if (!default_found || !winner_found) return {};
  return result;
} catch (const std::exception&) {  // json's type and range errors: a record from elsewhere
  return {};
}

std::optional<Recall> from_json(const json& record, const KernelDefinition& kernel,
                                std::span<const std::int64_t> problem, const DeviceInfo& device,
                                std::span<const Version> versions) try {
  if (record.at("schema") != kRecordSchema || record.at("kernel") != kernel.name ||
      record.at("types") != kernel.types ||
      record.at("problem") != named(kernel.problem_fields, problem))
    return {};
  for (const Version& v : versions)
    if (v.rule == Version::Rule::retune && record.at("versions").at(v.name).at("value") != v.value)
      return {};
  Recall recall;
  TuneResult& result = recall.result;
  describe_problem(result, kernel, problem, device);
  read_search(record, result);
  const Values default_config = values_from(record.at("default"), result.parameters);
  const Values winner = values_from(record.at("winner"), result.parameters);
  if (default_config != kernel.space.default_config(device.target.kind)) return {};
  bool default_found = false, winner_found = false;
  for (const json& j : record.at("candidates")) {
    Candidate c = candidate_from(j, result.parameters);
    if (!in_space(kernel.space, c.config) || !same_launch(j, c, kernel, problem, device.limits))
      continue;
    if (c.config == default_config) {
      result.default_index = result.candidates.size();
      default_found = true;
    }
    if (c.config == winner && c.status == CandidateStatus::measured) {
      result.winner_index = result.candidates.size();
      winner_found = true;
    }
    result.candidates.push_back(std::move(c));
  }
  if (!default_found || !winner_found) return {};
  recall.same_space = record.at("space") == describe_space(kernel.space);
  return recall;
} catch (const std::exception&) {  // json's type and range errors: a record from elsewhere
  return {};
}

void describe_problem(TuneResult& result, const KernelDefinition& kernel,
                      std::span<const std::int64_t> problem, const DeviceInfo& device) {
  result.kernel = kernel.name;
  result.types = kernel.types;
  result.problem_fields = kernel.problem_fields;
  result.problem.assign(problem.begin(), problem.end());
  result.device = device.id;
  for (const Parameter& p : kernel.space.parameters()) {
    result.parameters.push_back(p.name);
    for (std::size_t i = 0; i < p.names.size(); ++i)
      result.enumerators[p.name].emplace(p.values[i], p.names[i]);
  }
  if (kernel.flops) result.flops = kernel.flops(problem);
  if (kernel.bytes) result.bytes = kernel.bytes(problem);
}

}  // namespace kiln::runtime
