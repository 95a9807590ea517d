#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/dynamic_space.hpp"

namespace kiln {

using detail::format;

Values detail::copy(std::span<const std::int64_t> values) {
  return Values(values.begin(), values.end());
}

std::vector<std::string> detail::show_values(const FieldInfo& field,
                                             std::span<const std::int64_t> values) {
  std::vector<std::string> names;
  if (!field.enumerator) return names;
  for (const std::int64_t value : values) {
    const std::string_view name = field.enumerator(value);
    names.push_back(name.empty() ? std::to_string(value) : std::string(name));
  }
  return names;
}

std::string Parameter::show(std::int64_t value) const {
  const auto place = std::find(values.begin(), values.end(), value);
  return names.empty() || place == values.end()
             ? std::to_string(value)
             : names[static_cast<std::size_t>(place - values.begin())];
}

namespace {

bool contains(const std::vector<std::int64_t>& values, std::int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

void check_list(const std::string& name, const std::vector<std::int64_t>& values,
                const std::vector<std::string>& names) {
  if (values.empty())
    throw UserError(format("space: parameter '{}' has an empty list of values", name));
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (values[i] == values[j])
        throw UserError(format("space: parameter '{}' lists the value {} twice", name, values[i]));
  if (!names.empty() && names.size() != values.size())
    throw UserError(format("space: parameter '{}' has {} names for {} values", name, names.size(),
                           values.size()));
}

const char* plural(Target::Kind kind) { return kind == Target::Kind::host ? "hosts" : "GPUs"; }

std::string own_values_reason(const std::string& parameter, Target::Kind kind) {
  return format("on {} parameter '{}' has values of its own", plural(kind), parameter);
}

Predicate is_one_of(std::size_t parameter, std::vector<std::int64_t> values) {
  return [parameter, values = std::move(values)](auto config, auto, const DeviceLimits&) {
    return contains(values, config[parameter]);
  };
}

}  // namespace

DynamicSpace& DynamicSpace::parameter(std::string name, std::vector<std::int64_t> values,
                                      std::int64_t default_value, FieldKind kind,
                                      std::vector<std::string> names) {
  if (name.empty()) throw UserError("space: a parameter has an empty name");
  for (const Parameter& p : parameters_)
    if (p.name == name) throw UserError(format("space: parameter '{}' is given twice", name));
  check_list(name, values, names);
  if (!contains(values, default_value))
    throw UserError(format("space: the default {} of parameter '{}' is not among its values",
                           default_value, name));
  parameters_.push_back({std::move(name), kind, std::move(values), std::move(names)});
  default_.push_back(default_value);
  host_default_.push_back(default_value);
  return *this;
}

DynamicSpace& DynamicSpace::values_on(Target::Kind target, const std::string& name,
                                      std::vector<std::int64_t> values,
                                      std::vector<std::string> names) {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const Parameter& p) { return p.name == name; });
  if (found == parameters_.end())
    throw UserError(
        format("space: there is no parameter '{}' to give values on {}", name, plural(target)));
  Parameter& p = *found;
  const auto parameter = static_cast<std::size_t>(found - parameters_.begin());
  if (std::find(own_lists_.begin(), own_lists_.end(), std::pair(parameter, target)) !=
      own_lists_.end())
    throw UserError(
        format("space: parameter '{}' is given values on {} twice", name, plural(target)));
  check_list(name, values, names);
  if (p.names.empty() != names.empty())
    throw UserError(
        format("space: parameter '{}' has names for values on some targets only", name));
  own_lists_.emplace_back(parameter, target);
  // From now on, configs that come from elsewhere may have a value of another kind of target.
  if (p.only[0].empty())
    for (const Target::Kind kind : {Target::Kind::cuda, Target::Kind::host})
      where_on(kind, own_values_reason(name, kind), is_one_of(parameter, p.values));
  for (auto& list : p.only)
    if (list.empty()) list = p.values;
  auto& own = p.only[static_cast<std::size_t>(target)];
  own = values;
  for (Constraint& c : constraints_)
    if (c.on == target && c.reason == own_values_reason(name, target))
      c.holds = is_one_of(parameter, values);
  // A value that is listed for no target any more is removed.
  std::vector<std::int64_t> all;
  std::vector<std::string> shown;
  for (const auto& list : p.only)
    for (const std::int64_t value : list) {
      if (contains(all, value)) continue;
      all.push_back(value);
      if (names.empty()) continue;
      const auto place = std::find(own.begin(), own.end(), value);
      shown.push_back(place == own.end() ? p.show(value)
                                         : names[static_cast<std::size_t>(place - own.begin())]);
    }
  p.values = std::move(all);
  p.names = std::move(shown);
  const auto keep_inside = [&](Values& config) {
    if (!contains(values, config[parameter])) config[parameter] = values.front();
  };
  if (target == Target::Kind::host) {
    keep_inside(host_default_);
  } else {
    keep_inside(default_);
    for (auto& [capability, config] : capability_defaults_) keep_inside(config);
  }
  return *this;
}

DynamicSpace& DynamicSpace::where(std::string reason, Predicate holds) {
  if (reason.empty()) throw UserError("space: a constraint has no reason");
  if (!holds) throw UserError(format("space: the constraint '{}' has no predicate", reason));
  constraints_.push_back({std::move(reason), std::move(holds)});
  return *this;
}

DynamicSpace& DynamicSpace::where_on(Target::Kind target, std::string reason, Predicate holds) {
  where(std::move(reason), std::move(holds));
  constraints_.back().on = target;
  return *this;
}

void DynamicSpace::check_default(Target::Kind kind, const Values& config) const {
  if (config.size() != parameters_.size())
    throw UserError(format("space: a default has {} values for {} parameters", config.size(),
                           parameters_.size()));
  for (std::size_t i = 0; i < config.size(); ++i)
    if (!contains(parameters_[i].values_on(kind), config[i]))
      throw UserError(format("space: the default {} of parameter '{}' is not among its values",
                             config[i], parameters_[i].name));
}

DynamicSpace& DynamicSpace::default_on(Target::Kind kind, Values config) {
  check_default(kind, config);
  (kind == Target::Kind::host ? host_default_ : default_) = std::move(config);
  return *this;
}

DynamicSpace& DynamicSpace::default_on(ComputeCapability gpus, Values config) {
  if (gpus.at_least <= 0)
    throw UserError(format("space: there are no GPUs of compute capability {}", gpus.at_least));
  check_default(Target::Kind::cuda, config);
  const auto place = std::find_if(capability_defaults_.begin(), capability_defaults_.end(),
                                  [&](const auto& d) { return d.first <= gpus.at_least; });
  if (place != capability_defaults_.end() && place->first == gpus.at_least)
    throw UserError(format("space: compute capability {} is given a default twice", gpus.at_least));
  capability_defaults_.emplace(place, gpus.at_least, std::move(config));
  return *this;
}

const Values& DynamicSpace::default_config(const Target& target) const noexcept {
  if (target.kind == Target::Kind::cuda)
    for (const auto& [capability, config] : capability_defaults_)
      if (capability <= compute_capability(target)) return config;
  return default_config(target.kind);
}

DynamicSpace DynamicSpace::on(Target::Kind kind) const {
  DynamicSpace space = *this;
  for (Parameter& p : space.parameters_) {
    const Parameter all = p;
    p.values = all.values_on(kind);
    p.only = {};
    for (std::size_t i = 0; i < p.values.size() && !p.names.empty(); ++i)
      p.names[i] = all.show(p.values[i]);
    if (!p.names.empty()) p.names.resize(p.values.size());
  }
  std::erase_if(space.constraints_, [&](const Constraint& c) { return c.on && *c.on != kind; });
  (kind == Target::Kind::host ? space.default_ : space.host_default_) = default_config(kind);
  if (kind == Target::Kind::host) space.capability_defaults_.clear();
  return space;
}

double DynamicSpace::combinations() const noexcept {
  double count = 1;
  for (const Parameter& p : parameters_) count *= static_cast<double>(p.values.size());
  return std::min(count, 0x1p53);
}

const Constraint* DynamicSpace::violated(std::span<const std::int64_t> config,
                                         std::span<const std::int64_t> problem,
                                         const DeviceLimits& limits) const {
  const Target::Kind kind = limits.target_kind();
  for (const Constraint& c : constraints_)
    if ((!c.on || *c.on == kind) && !c.holds(config, problem, limits)) return &c;
  return nullptr;
}

Values DynamicSpace::config(const std::map<std::string, std::int64_t>& named) const {
  Values config = default_;
  for (const auto& [name, value] : named) {
    const auto p = std::find_if(parameters_.begin(), parameters_.end(),
                                [&](const Parameter& q) { return q.name == name; });
    if (p == parameters_.end()) {
      std::string known;
      for (const Parameter& q : parameters_) known += (known.empty() ? "" : ", ") + q.name;
      throw UserError(format("config: unknown parameter '{}' (known: {})", name, known));
    }
    if (std::find(p->values.begin(), p->values.end(), value) == p->values.end())
      throw UserError(format("config: {} is not among the values of parameter '{}'", value, name));
    config[static_cast<std::size_t>(p - parameters_.begin())] = value;
  }
  return config;
}

Values DynamicSpace::parse(std::string_view text, Target::Kind kind) const {
  return parse_over(text, default_config(kind));
}

Values DynamicSpace::parse(std::string_view text, const Target& target) const {
  return parse_over(text, default_config(target));
}

Values DynamicSpace::parse_over(std::string_view text, const Values& defaults) const {
  std::map<std::string, std::int64_t> named;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == item.npos || equals == 0)
      throw UserError(format("config: '{}' is not of the form parameter=value", item));
    const std::string name(item.substr(0, equals)), value(item.substr(equals + 1));
    const auto p = std::find_if(parameters_.begin(), parameters_.end(),
                                [&](const Parameter& q) { return q.name == name; });
    std::int64_t number = 0;
    if (p != parameters_.end()) {
      const auto shown = std::find(p->names.begin(), p->names.end(), value);
      const char* const end = value.data() + value.size();
      if (shown != p->names.end())
        number = p->values[static_cast<std::size_t>(shown - p->names.begin())];
      else if (const auto [rest, error] = std::from_chars(value.data(), end, number);
               error != std::errc{} || rest != end)
        throw UserError(format("config: '{}' is not a value of parameter '{}'", value, name));
    }
    if (!named.emplace(name, number).second)
      throw UserError(format("config: parameter '{}' is given twice", name));
  }
  for (std::size_t i = 0; i < defaults.size(); ++i) named.emplace(parameters_[i].name, defaults[i]);
  return config(named);
}

std::string DynamicSpace::describe(std::span<const std::int64_t> config) const {
  std::string text;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    text += format("{}{}={}", i ? "," : "", parameters_[i].name, parameters_[i].show(config[i]));
  return text;
}

}  // namespace kiln
