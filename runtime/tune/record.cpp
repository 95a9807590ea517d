#include "runtime/tune/record.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "cache/plain_json.hpp"
#include "codegen/instance.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/function_core.hpp"
#include "kiln/detail/key_builder.hpp"
#include "runtime/support/infinity.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/result_json.hpp"

namespace kiln::runtime {

using detail::format;
using detail::KeyBuilder;
using detail::Tunable;
using nlohmann::json;

namespace {

constexpr std::int64_t kRecordSchema = 4, kKeySchema = 4;
/// Samples kept per candidate; the median is over all of them.
constexpr std::size_t kKeptSamples = 64;

/// A digest of a set of configs, whatever their order. A launch that finds its record computes it,
/// so each config is first reduced to a number.
std::string digest_of(std::span<const Values> configs) {
  std::vector<std::uint64_t> hashes;
  for (const Values& config : configs) {
    std::uint64_t hash = config.size();
    for (const std::int64_t value : config) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0xbf58476d1ce4e5b9;
      hash ^= hash >> 29;
    }
    hashes.push_back(hash);
  }
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  return to_hex(sha256(std::as_bytes(std::span(hashes))));
}

/// What is searched: the parameters' values, the constraints' reasons, and the configs that the
/// kernel's author lists for this problem and device, if there is a list.
json describe_space(const Tunable& subject, std::span<const std::int64_t> problem,
                    const DeviceInfo& device) {
  const DynamicSpace space = subject.space().on(device.target.kind);
  json parameters = json::object(), constraints = json::array();
  for (const Parameter& p : space.parameters()) parameters[p.name] = p.values;
  for (const Constraint& c : space.constraints()) constraints.push_back(c.reason);
  json described = {{"parameters", parameters}, {"constraints", constraints}};
  if (const auto authored = subject.configs(problem, device.limits); !authored.empty())
    described["configs"] = digest_of(authored);
  return described;
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

/// What every launch has, as a list; what few have, behind it and by name.
json launch_json(const Launch& g, json more = json::object()) {
  json j = {g.grid.x, g.grid.y, g.grid.z, g.block.x, g.block.y, g.block.z, g.shared_bytes};
  if (g.cluster != Dim3{}) more["cluster"] = {g.cluster.x, g.cluster.y, g.cluster.z};
  if (g.cooperative) more["cooperative"] = true;
  if (g.programmatic) more["programmatic"] = true;
  if (g.shared_carveout != -1) more["shared_carveout"] = g.shared_carveout;
  if (!more.empty()) j.push_back(std::move(more));
  return j;
}

json plan_json(const detail::LaunchPlan& plan) {
  json more = json::object();
  for (const detail::PlannedMap& planned : plan.maps) {
    const TensorMap& m = planned.map;
    more["maps"].push_back({{"argument", planned.argument},
                            {"type", to_string(m.type)},
                            {"rank", m.rank},
                            {"size", m.size},
                            {"stride", m.stride},
                            {"box", m.box},
                            {"swizzle", static_cast<int>(m.swizzle)},
                            {"l2_bytes", m.l2_bytes}});
  }
  if (plan.workspace)
    more["workspace"] = {{"bytes", plan.workspace->bytes},
                         {"semaphores", plan.workspace->semaphores}};
  for (const Launch& step : plan.steps) more["steps"].push_back(launch_json(step));
  return launch_json(plan.launch, std::move(more));
}

/// Whether `j` is plan_json(plan), which is seldom made for that.
bool is_plan(const json& j, const detail::LaunchPlan& plan) {
  const Launch& g = plan.launch;
  Launch bare;  // with what every launch has
  bare.grid = g.grid;
  bare.block = g.block;
  bare.shared_bytes = g.shared_bytes;
  const bool is_bare = g == bare && plan.maps.empty() && !plan.workspace && plan.steps.empty();
  if (!is_bare) return j == plan_json(plan);
  const std::array<unsigned, 7> numbers{g.grid.x,  g.grid.y,  g.grid.z,      g.block.x,
                                        g.block.y, g.block.z, g.shared_bytes};
  return j.is_array() && std::equal(j.begin(), j.end(), numbers.begin(), numbers.end());
}

/// What was launched is what would be launched today.
bool same_launch(const json& j, const Candidate& c, const Tunable& subject,
                 std::span<const std::int64_t> problem, const DeviceLimits& limits) {
  if (!is_kept(c)) return true;
  if (subject.space().violated(c.config, problem, limits)) return false;
  const auto plan = subject.plan(c.config, problem, limits);
  return !plan || is_plan(j.at("launch"), *plan);
}

/// The alternatives of a choice whose kernels run with another config than when they met.
std::set<std::string> changed_kernels(const TuneResult& met, const TuneResult& today) {
  std::set<std::string> changed;
  for (const KernelOfChoice& then : met.kernels)
    for (const KernelOfChoice& now : today.kernels)
      if (then.alternative == now.alternative && !then.config.empty() && !now.config.empty() &&
          then.config != now.config)
        changed.insert(then.alternative);
  return changed;
}

/// A choice's default or winner has gone, such as an algorithm with its library's version. What
/// else was measured is a start for the next search. False: there is nothing.
bool keep_what_holds(TuneResult& result, const Values& base) {
  std::vector<Candidate>& all = result.candidates;
  const auto seconds = [](const Candidate& c) {
    return c.status == CandidateStatus::measured ? c.seconds : kInfinity;
  };
  if (std::ranges::none_of(all, [&](const Candidate& c) { return seconds(c) < kInfinity; }))
    return false;
  auto found = std::ranges::find(all, base, &Candidate::config);
  if (found == all.end()) {
    Candidate untried;
    untried.config = base;
    found = all.insert(all.begin(), std::move(untried));
  }
  result.default_index = static_cast<std::size_t>(found - all.begin());
  result.winner_index =
      static_cast<std::size_t>(std::ranges::min_element(all, {}, seconds) - all.begin());
  return true;
}

/// What was tried of today's space, or of what the author lists today.
void count_tried(Recall& recall, const Tunable& subject, std::span<const std::int64_t> problem,
                 const DeviceLimits& limits) {
  const TuneResult& result = recall.result;
  const std::vector<Values> authored = subject.configs(problem, limits);
  std::set<Values> open(authored.begin(), authored.end());
  std::size_t tried = 0;
  for (std::size_t i = 0; i < result.candidates.size(); ++i) {
    const Candidate& c = result.candidates[i];
    if (c.status == CandidateStatus::not_tried) continue;
    ++tried;
    const bool of_the_list = open.erase(c.config) > 0;
    if (was_built(c) && (authored.empty() || of_the_list || i == result.default_index))
      ++recall.evaluated;
  }
  std::erase_if(open, [&](const Values& config) {
    return !in_space(subject.space(), config) ||
           subject.space().violated(config, problem, limits) ||
           !subject.launch_obstacle(config, problem, limits).empty();
  });
  recall.exhausted =
      authored.empty() ? static_cast<double>(tried) >= result.space.allowed : open.empty();
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

using Texts = std::span<const std::string>;

/// `2 draws, of weights 3 1`.
std::string draws_text(const KernelDefinition& kernel) {
  std::string text = format("{} draws, of weights", kernel.draws.size());
  for (const double weight : kernel.draws) text += format(" {}", weight);
  return text;
}

void identify(KeyBuilder& key, const KernelDefinition& kernel) {
  key.add("kernel", kernel.name)
      .add("entry", kernel.entry)
      .add("passing", codegen::to_string(kernel.passing))
      .add("config type", kernel.config_type)
      .add("parameters", Texts(declared(kernel.space)))
      .add("types", Texts(kernel.types))
      .add("arguments", Texts(kernel.arguments))
      .add("options", Texts(kernel.source.options))
      .add("tolerance",
           format("{} relative, {} absolute, {} mismatches{}{}", kernel.tolerance.relative,
                  kernel.tolerance.absolute, kernel.tolerance.mismatches,
                  kernel.tolerance.norm > 0 ? format(", {} norm", kernel.tolerance.norm) : "",
                  kernel.check ? ", a check of its own" : ""))
      .add("data", kernel.data_version);
  if (kernel.deterministic) key.add("deterministic", std::int64_t{1});
  if (!kernel.draws.empty()) key.add("draws", draws_text(kernel));
  if (!kernel.steps.empty()) key.add("steps", Texts(detail::step_entries(kernel)));
  if (kernel.device_reference) {
    const DeviceReference& trusted = *kernel.device_reference;
    const KernelDefinition& code = trusted.kernel ? *trusted.kernel : kernel;
    key.add("device reference", code.name).add("device reference's config", trusted.config);
    if (trusted.kernel)
      key.add("device reference's entry", code.entry)
          .add("device reference's types", Texts(code.types))
          .add("device reference's options", Texts(code.source.options));
  }
}

void identify(KeyBuilder& key, const detail::FunctionDescription& function) {
  key.add("kernel", function.name)
      .add("kind", function.of_a_choice ? "choice" : "function")
      .add("version", function.version)
      .add("measured", function.in_a_region ? "in a region" : "alone")
      .add("parameters", Texts(declared(function.space)));
  if (function.deterministic) key.add("deterministic", std::int64_t{1});
}

void identify(KeyBuilder& key, const Tunable& subject) {
  if (const KernelDefinition* kernel = subject.kernel())
    identify(key, *kernel);
  else
    identify(key, *subject.function());
}

void add_sources(KeyBuilder& key, const SourceDigests& sources) {
  if (sources.kernel) key.add(codegen::kKernelSourceField, *sources.kernel);
  if (sources.reference) key.add(kReferenceSourceField, *sources.reference);
}

}  // namespace

Digest definition_digest(const Tunable& subject, const SourceDigests& sources) {
  KeyBuilder key("definition", 1);
  identify(key, subject);
  add_sources(key, sources);
  return key.finish().digest;
}

bool same_space(const Tunable& a, const Tunable& b, std::span<const std::int64_t> problem,
                const DeviceInfo& device) {
  return describe_space(a, problem, device) == describe_space(b, problem, device);
}

Key record_key(const Tunable& subject, std::span<const std::int64_t> problem,
               const DeviceInfo& device, const SourceDigests& sources) {
  KeyBuilder key("record", kKeySchema);
  identify(key, subject);
  for (std::size_t i = 0; i < problem.size(); ++i)
    key.add(std::string(kProblemField) + subject.problem_fields()[i], problem[i]);
  key.add("target", device.target.arch);
  for (const KeyField& f : device.fingerprint) key.add("device." + f.name, f.value);
  key.made_with();
  add_sources(key, sources);
  return key.finish();
}

json record_json(const TuneResult& result, const Tunable& subject,
                 std::span<const Version> versions, const DeviceInfo& device,
                 const MeasuringPolicy& policy) {
  json record = result_json(result), software = json::object();
  for (const Version& v : versions)
    software[v.name] = {{"value", v.value},
                        {"rule", v.rule == Version::Rule::retune ? "retune" : "ignore"}};
  record["schema"] = kRecordSchema;
  record["space"] = describe_space(subject, result.problem, device);
  record["versions"] = std::move(software);
  record["measured"] = {{"cold_cache", policy.cold_cache},
                        {"overlap_launches", policy.overlap_launches}};
  if (policy.launching == Launching::eager) record["measured"]["eager"] = true;
  if (const KernelDefinition* kernel = subject.kernel(); kernel && !kernel->draws.empty())
    record["draws"] = kernel->draws;
  for (std::size_t i = 0; i < result.candidates.size(); ++i) {
    const Candidate& c = result.candidates[i];
    json& kept = record["candidates"][i];
    if (is_kept(c))
      if (const auto plan = subject.plan(c.config, result.problem, device.limits))
        kept["launch"] = plan_json(*plan);
    if (c.samples.size() > kKeptSamples && kept.contains("samples"))
      kept["samples"] = std::vector(c.samples.begin(), c.samples.begin() + kKeptSamples);
  }
  return record;
}

bool in_space(const DynamicSpace& space, const Values& config) {
  for (std::size_t i = 0; i < config.size(); ++i) {
    const auto& values = space.parameters()[i].values;
    if (std::find(values.begin(), values.end(), config[i]) == values.end()) return false;
  }
  return true;
}

bool differs_in_problem_alone(const Key& a, const Key& b) {
  return std::ranges::equal(a.fields, b.fields, [](const KeyField& x, const KeyField& y) {
    return x == y || (x.name == y.name && x.name.starts_with(kProblemField));
  });
}

std::optional<TuneResult> result_in(const json& record, const Key& key) try {
  std::vector<std::string> fields;
  for (const KeyField& field : key.fields)
    if (field.name.starts_with(kProblemField))
      fields.push_back(field.name.substr(kProblemField.size()));
  return read(record, fields);
} catch (const std::exception&) {  // json's type and range errors: a record from elsewhere
  return {};
}

std::optional<Recall> recall_from(const json& record, const Tunable& subject,
                                  std::span<const std::int64_t> problem, const DeviceInfo& device,
                                  std::span<const Version> versions) try {
  for (const Version& v : versions)
    if (v.rule == Version::Rule::retune && record.at("versions").at(v.name).at("value") != v.value)
      return {};
  TuneResult found = read(record, subject.problem_fields());
  Recall recall{empty_result(subject, problem, device)};
  TuneResult& result = recall.result;
  const Values base = subject.default_config(problem, device.target, device.limits);
  const bool same_default = found.default_candidate().config == base;
  const bool of_a_choice = subject.function() && subject.function()->of_a_choice;
  // Records of choices did not always have types; their keys tell those of one name apart.
  const bool same_types = found.types == result.types || (of_a_choice && found.types.empty());
  if (found.kernel != result.kernel || !same_types || found.problem != result.problem ||
      found.parameters != result.parameters || (!same_default && !of_a_choice))
    return {};
  // If it has won before, it wins with what its own tuning has found since.
  const std::set<std::string> changed = changed_kernels(found, result);
  const auto is_changed = [&](std::size_t i) {
    return !changed.empty() && i != found.winner_index &&
           changed.contains(result.enumerators.at(result.parameters.front())
                                .at(found.candidates[i].config.front()));
  };
  bool default_found = false, winner_found = false, all_hold = true;
  for (std::size_t i = 0; i < found.candidates.size(); ++i) {
    Candidate& c = found.candidates[i];
    if (!in_space(subject.space(), c.config) ||
        !same_launch(record.at("candidates").at(i), c, subject, problem, device.limits))
      continue;
    if (is_changed(i)) {
      all_hold = false;
      continue;
    }
    if (c.config == base) {
      result.default_index = result.candidates.size();
      default_found = true;
    }
    if (i == found.winner_index && c.status == CandidateStatus::measured) {
      result.winner_index = result.candidates.size();
      winner_found = true;
    }
    result.candidates.push_back(std::move(c));
  }
  const bool holds = same_default && default_found && winner_found;
  if (!holds && !(of_a_choice && keep_what_holds(result, base))) return {};
  result.complete = holds && found.complete;
  result.strategy = std::move(found.strategy);
  result.end = found.end;
  result.space = std::move(found.space);
  result.from_store = true;
  result.versions = std::move(found.versions);
  json space = describe_space(subject, problem, device);
  recall.same_space = holds && all_hold && record.at("space") == space;
  cache::discard(space);
  const json& measured = record.at("measured");
  recall.policy = {measured.at("cold_cache"), measured.at("overlap_launches"),
                   measured.value("eager", false) ? Launching::eager : Launching::graph};
  recall.faulted = record.value(kFaulted, false);
  count_tried(recall, subject, problem, device.limits);
  return recall;
} catch (const std::exception&) {  // json's type and range errors: a record from elsewhere
  return {};
}

TuneResult empty_result(const Tunable& subject, std::span<const std::int64_t> problem,
                        const DeviceInfo& device) {
  TuneResult result;
  result.kernel = subject.name();
  result.types = subject.types();
  result.problem_fields = subject.problem_fields();
  result.problem.assign(problem.begin(), problem.end());
  result.device = device.id;
  for (const Parameter& p : subject.space().parameters()) {
    result.parameters.push_back(p.name);
    for (std::size_t i = 0; i < p.names.size(); ++i)
      result.enumerators[p.name].emplace(p.values[i], p.names[i]);
  }
  if (const detail::FunctionDescription* function = subject.function()) {
    result.left_out = function->left_out;
    if (function->kernels) result.kernels = function->kernels(problem);
  }
  result.flops = subject.flops(problem);
  result.bytes = subject.bytes(problem);
  result.norm_permitted = subject.norm_permitted();
  return result;
}

bool has_faulted(const Recall& known) {
  return known.faulted || std::ranges::any_of(known.result.candidates, [](const Candidate& c) {
           return c.status == CandidateStatus::crashed || c.status == CandidateStatus::hung ||
                  c.status == CandidateStatus::out_of_memory || c.cut_seconds > 0;
         });
}

}  // namespace kiln::runtime
