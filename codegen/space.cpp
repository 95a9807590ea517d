#include "kiln/space.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "kiln/detail/format.hpp"

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

DynamicSpace& DynamicSpace::parameter(std::string name, std::vector<std::int64_t> values,
                                      std::int64_t default_value, FieldKind kind,
                                      std::vector<std::string> names) {
  if (name.empty()) throw UserError("space: a parameter has an empty name");
  for (const Parameter& p : parameters_)
    if (p.name == name) throw UserError(format("space: parameter '{}' is given twice", name));
  if (values.empty())
    throw UserError(format("space: parameter '{}' has an empty list of values", name));
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (values[i] == values[j])
        throw UserError(format("space: parameter '{}' lists the value {} twice", name, values[i]));
  if (std::find(values.begin(), values.end(), default_value) == values.end())
    throw UserError(format("space: the default {} of parameter '{}' is not among its values",
                           default_value, name));
  if (!names.empty() && names.size() != values.size())
    throw UserError(format("space: parameter '{}' has {} names for {} values", name, names.size(),
                           values.size()));
  parameters_.push_back({std::move(name), kind, std::move(values), std::move(names)});
  default_.push_back(default_value);
  host_default_.push_back(default_value);
  return *this;
}

DynamicSpace& DynamicSpace::where(std::string reason, Predicate holds) {
  if (reason.empty()) throw UserError("space: a constraint has no reason");
  if (!holds) throw UserError(format("space: the constraint '{}' has no predicate", reason));
  constraints_.push_back({std::move(reason), std::move(holds)});
  return *this;
}

DynamicSpace& DynamicSpace::default_on(Target::Kind kind, Values config) {
  if (config.size() != parameters_.size())
    throw UserError(format("space: a default has {} values for {} parameters", config.size(),
                           parameters_.size()));
  for (std::size_t i = 0; i < config.size(); ++i) {
    const auto& values = parameters_[i].values;
    if (std::find(values.begin(), values.end(), config[i]) == values.end())
      throw UserError(format("space: the default {} of parameter '{}' is not among its values",
                             config[i], parameters_[i].name));
  }
  (kind == Target::Kind::host ? host_default_ : default_) = std::move(config);
  return *this;
}

double DynamicSpace::combinations() const noexcept {
  double count = 1;
  for (const Parameter& p : parameters_) count *= static_cast<double>(p.values.size());
  return std::min(count, 0x1p53);
}

const Constraint* DynamicSpace::violated(std::span<const std::int64_t> config,
                                         std::span<const std::int64_t> problem,
                                         const DeviceLimits& limits) const {
  for (const Constraint& c : constraints_)
    if (!c.holds(config, problem, limits)) return &c;
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
  const Values& defaults = default_config(kind);
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
