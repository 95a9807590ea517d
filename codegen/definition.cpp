#include "kiln/definition.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/detail/typed_rules.hpp"
#include "kiln/error.hpp"

namespace kiln {

using detail::format;

namespace {

template <class Fail>
void check_device_reference(const KernelDefinition& kernel, const Fail& fail) {
  const DeviceReference& trusted = *kernel.device_reference;
  if (!kernel.reference)
    fail("`device_reference` has no `reference` that it could be held against");
  const KernelDefinition& other = trusted.kernel ? *trusted.kernel : kernel;
  if (other.arguments != kernel.arguments || other.problem_fields != kernel.problem_fields)
    fail(format("`device_reference` is kernel {}, which has other arguments or problem fields",
                other.name));
  if (trusted.kernel) trusted.kernel->validate();
  kernel.problem(trusted.problem);
  other.space.parse(trusted.config);
}

bool is_identifier(const std::string& text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return false;
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return (c < 128 && std::isalnum(c)) || c == '_'; });
}

}  // namespace

void Named::refuse(std::string_view name) const {
  std::string known;
  for (const std::string& n : names_) known += (known.empty() ? "" : ", ") + n;
  throw UserError(format("there is no field '{}' (known: {})", name, known));
}

KernelDefinition detail::plain_definition(const PlainParts& parts,
                                          std::span<std::string (*const)()> arguments) {
  KernelDefinition d;
  d.name = parts.name;
  d.source = parts.source;
  d.entry = parts.entry;
  d.passing = Passing::config_struct;
  d.config_type = parts.config_type;
  d.types = parts.types;
  for (const auto argument : arguments) d.arguments.push_back(argument());
  d.relations = parts.relations;
  d.draws = parts.draws;
  d.device_reference = parts.device_reference;
  d.tolerance = parts.tolerance;
  d.data_version = parts.data_version;
  if (parts.untuned_by_cost) d.untuned_by_cost = parts.untuned_by_cost;
  d.deterministic = parts.deterministic;
  return d;
}

std::shared_ptr<const KernelDefinition::FieldNames> KernelDefinition::field_names() const {
  FieldNames names{{}, problem_fields};
  for (const Parameter& p : space.parameters()) names.parameters.push_back(p.name);
  return std::make_shared<const FieldNames>(std::move(names));
}

std::string KernelDefinition::signature() const {
  std::string text = "void(";
  for (std::size_t i = 0; i < arguments.size(); ++i) text += (i ? ", " : "") + arguments[i];
  return text + ")";
}

std::string detail::problem_text(const std::vector<std::string>& fields,
                                 std::span<const std::int64_t> problem) {
  if (fields.empty()) return "(its only problem)";
  std::string text;
  for (std::size_t i = 0; i < fields.size(); ++i)
    text += format("{}{}={}", i ? "," : "", fields[i],
                   i < problem.size() ? std::to_string(problem[i]) : "?");
  return text;
}

void detail::check_names(const std::string& subject, const std::string& name,
                         const std::vector<std::string>& problem_fields) {
  const auto fail = [&](const std::string& what) { throw UserError(subject + ": " + what); };
  if (!is_identifier(name))
    fail("`name` must be letters, digits and '_', not starting with a digit");
  for (std::size_t i = 0; i < problem_fields.size(); ++i) {
    if (problem_fields[i].empty()) fail(format("`problem_fields[{}]` is empty", i));
    if (std::count(problem_fields.begin(), problem_fields.end(), problem_fields[i]) > 1)
      fail(format("problem field '{}' is given twice", problem_fields[i]));
  }
}

std::string KernelDefinition::describe_problem(std::span<const std::int64_t> values) const {
  return detail::problem_text(problem_fields, values);
}

Values KernelDefinition::problem(const std::map<std::string, std::int64_t>& named) const {
  for (const auto& [field, value] : named)
    if (std::find(problem_fields.begin(), problem_fields.end(), field) == problem_fields.end()) {
      std::string known;
      for (const std::string& f : problem_fields) known += (known.empty() ? "" : ", ") + f;
      throw UserError(
          format("kernel {}: unknown problem field '{}' (known: {})", name, field, known));
    }
  Values values;
  for (const std::string& field : problem_fields) {
    const auto found = named.find(field);
    if (found == named.end())
      throw UserError(format("kernel {}: problem field '{}' is missing", name, field));
    if (found->second < 0)
      throw UserError(
          format("kernel {}: problem field '{}' is negative ({})", name, field, found->second));
    values.push_back(found->second);
  }
  return values;
}

ProblemValues KernelDefinition::bucketed(std::span<const std::int64_t> problem_values) const {
  if (problem_values.size() != problem_fields.size())
    throw UserError(format("kernel {}: a problem has {} fields, but {} values were given", name,
                           problem_fields.size(), problem_values.size()));
  if (!bucket) return problem_values;
  ProblemValues values = bucket(problem_values);
  if (values.size() != problem_fields.size())
    throw UserError(format("kernel {}: `bucket` returned {} values for {} problem fields", name,
                           values.size(), problem_fields.size()));
  return values;
}

namespace {

template <class F>
void check_maps(const KernelDefinition& kernel, const F& fail) {
  if (kernel.maps.size() > 8)
    fail(format("`maps` name {} arguments, at most 8 may be maps", kernel.maps.size()));
  for (const MapRule& rule : kernel.maps) {
    if (rule.argument >= kernel.arguments.size())
      fail(format("`maps` name argument {}, the signature {} has {}", rule.argument,
                  kernel.signature(), kernel.arguments.size()));
    if (!kernel.arguments[rule.argument].ends_with('*'))
      fail(format("`maps` make a map of argument {}, which is no pointer but {}", rule.argument,
                  kernel.arguments[rule.argument]));
    if (!rule.map) fail(format("`maps` have no `map` for argument {}", rule.argument));
  }
  for (std::size_t i = 0; i < kernel.maps.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (kernel.maps[i].argument == kernel.maps[j].argument)
        fail(format("`maps` name argument {} twice", kernel.maps[i].argument));
}

template <class F>
void check_workspace(const KernelDefinition& kernel, const F& fail) {
  if (!kernel.workspace.size) {
    if (kernel.workspace.only_if) fail("`workspace` has an `only_if`, but no `size`");
  } else if (kernel.arguments.empty()) {
    fail("`workspace` needs `arguments`: entries take the workspace after them");
  }
}

template <class F>
void check_steps(const KernelDefinition& kernel, const F& fail) {
  for (std::size_t i = 0; i < kernel.steps.size(); ++i) {
    const KernelStep& step = kernel.steps[i];
    if (step.entry.empty()) fail(format("`steps[{}].entry` is empty", i));
    if (!step.launch) fail(format("`steps[{}].launch` is missing", i));
    if (step.entry == kernel.entry)
      fail(format("`steps[{}]` is the kernel's own entry, {}", i, step.entry));
    for (std::size_t j = 0; j < i; ++j)
      if (step.entry == kernel.steps[j].entry)
        fail(format("`steps` have the entry {} twice", step.entry));
  }
}

}  // namespace

void KernelDefinition::validate() const {
  auto fail = [&](const std::string& what) {
    throw UserError(format("kernel '{}': {}", name, what));
  };
  detail::check_names(format("kernel '{}'", name), name, problem_fields);
  if (source.file.empty() == source.text.empty())
    fail(source.file.empty() ? "`source` has neither a file nor text"
                             : "`source` has both a file and text");
  if (entry.empty()) fail("`entry` is empty");
  if (passing == Passing::config_struct && config_type.empty())
    fail("`config_type` is empty, but parameters are passed as a config struct");
  if (!launch) fail("`launch` is missing");
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].empty()) fail(format("`arguments[{}]` is empty", i));
  check_maps(*this, fail);
  check_workspace(*this, fail);
  check_steps(*this, fail);
  for (std::size_t i = 0; i < types.size(); ++i)
    if (types[i].empty()) fail(format("`types[{}]` is empty", i));
  for (const ArgumentIsField& r : relations) {
    if (r.argument >= arguments.size())
      fail(format("`relations` name argument {}, but the signature {} has {}", r.argument,
                  signature(), arguments.size()));
    if (std::count(problem_fields.begin(), problem_fields.end(), r.field) == 0)
      fail(format("`relations` say that argument {} is '{}', which is not a problem field",
                  r.argument, r.field));
  }
  for (const Parameter& p : space.parameters())
    if (passing != Passing::template_arguments && !is_identifier(p.name))
      fail(format("parameter '{}' is not an identifier", p.name));
  for (const double weight : draws)
    if (!(weight > 0) || !std::isfinite(weight))
      fail(format("`draws` has the weight {}, which is no positive number", weight));
  if (device_reference) check_device_reference(*this, fail);
  if (!(tolerance.relative >= 0) || !(tolerance.absolute >= 0))
    fail("`tolerance` is negative or not a number");
  if (!(tolerance.norm >= 0) || std::isinf(tolerance.norm))
    fail(format("`tolerance.norm` is {}; it must be finite and at least 0", tolerance.norm));
  if (!(tolerance.mismatches >= 0 && tolerance.mismatches < 1))
    fail(format("`tolerance.mismatches` is {}; it must be at least 0 and less than 1",
                tolerance.mismatches));
}

}  // namespace kiln
