#include "runtime/tune/record.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "codegen/instance.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/result_json.hpp"

namespace kiln::runtime {

using detail::format;
using nlohmann::json;

namespace {

constexpr std::int64_t kRecordSchema = 3, kKeySchema = 4;
/// Samples kept per candidate; the median is over all of them.
constexpr std::size_t kKeptSamples = 64;

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

json launch_json(const LaunchGeometry& g) {
  return {g.grid.x, g.grid.y, g.grid.z, g.block.x, g.block.y, g.block.z, g.shared_bytes};
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
         j.at("launch") == launch_json(kernel.geometry(c.config, problem));
}

/// The result in a record, in its own terms. @throws std::exception when it is not one of ours.
TuneResult read(const json& record, const std::vector<std::string>& problem_fields) {
  if (record.at("schema") != kRecordSchema) throw std::out_of_range("schema");
  TuneResult result = result_from(record, problem_fields);
  result.from_store = true;
  for (const auto& [name, version] : record.at("versions").items())
    result.versions.push_back({name, version.at("value")});
  return result;
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
  json record = result_json(result), software = json::object();
  for (const Version& v : versions)
    software[v.name] = {{"value", v.value},
                        {"rule", v.rule == Version::Rule::retune ? "retune" : "ignore"}};
  record["schema"] = kRecordSchema;
  record["space"] = describe_space(kernel.space);
  record["versions"] = std::move(software);
  for (std::size_t i = 0; i < result.candidates.size(); ++i) {
    const Candidate& c = result.candidates[i];
    json& kept = record["candidates"][i];
    if (was_built(c)) kept["launch"] = launch_json(kernel.geometry(c.config, result.problem));
    if (c.samples.size() > kKeptSamples && kept.contains("samples"))
      kept["samples"] = std::vector(c.samples.begin(), c.samples.begin() + kKeptSamples);
  }
  return record;
}

std::optional<TuneResult> result_of(const json& record, const Key& key) try {
  std::vector<std::string> fields;
  for (const KeyField& field : key.fields)
    if (field.name.starts_with(kProblemField))
      fields.push_back(field.name.substr(kProblemField.size()));
  return read(record, fields);
} catch (const std::exception&) {  // json's type and range errors: a record from elsewhere
  return {};
}

std::optional<Recall> from_json(const json& record, const KernelDefinition& kernel,
                                std::span<const std::int64_t> problem, const DeviceInfo& device,
                                std::span<const Version> versions) try {
  for (const Version& v : versions)
    if (v.rule == Version::Rule::retune && record.at("versions").at(v.name).at("value") != v.value)
      return {};
  TuneResult found = read(record, kernel.problem_fields);
  Recall recall;
  TuneResult& result = recall.result;
  describe_problem(result, kernel, problem, device);
  if (found.kernel != result.kernel || found.types != result.types ||
      found.problem != result.problem || found.parameters != result.parameters ||
      found.default_candidate().config != kernel.space.default_config(device.target.kind))
    return {};
  bool default_found = false, winner_found = false;
  for (std::size_t i = 0; i < found.candidates.size(); ++i) {
    Candidate& c = found.candidates[i];
    if (!in_space(kernel.space, c.config) ||
        !same_launch(record.at("candidates").at(i), c, kernel, problem, device.limits))
      continue;
    if (i == found.default_index) {
      result.default_index = result.candidates.size();
      default_found = true;
    }
    if (i == found.winner_index && c.status == CandidateStatus::measured) {
      result.winner_index = result.candidates.size();
      winner_found = true;
    }
    result.candidates.push_back(std::move(c));
  }
  if (!default_found || !winner_found) return {};
  result.complete = found.complete;
  result.strategy = std::move(found.strategy);
  result.end = found.end;
  result.space = std::move(found.space);
  result.from_store = true;
  result.versions = std::move(found.versions);
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
