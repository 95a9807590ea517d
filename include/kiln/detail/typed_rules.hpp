// What a typed kernel says over its structs, as rules over values in field order. This part knows a
// kernel's config and problem, but not its signature: kernels that differ in that alone, as in the
// type of their elements, are compiled with one instance of it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/definition.hpp"

namespace kiln::detail {

/// What of a typed kernel is as it is in a definition.
struct PlainParts {
  const std::string& name;
  const KernelSource& source;
  const std::string& entry;
  const std::string& config_type;
  const std::vector<std::string>& types;
  const std::vector<ArgumentIsField>& relations;
  const std::vector<double>& draws;
  const std::optional<DeviceReference>& device_reference;
  const Tolerance& tolerance;
  const std::string& data_version;
  bool (*untuned_by_cost)(const DeviceLimits&);
  bool deterministic;
};
/// A definition of which the rest is missing. `arguments` name the types of the kernel's arguments.
KernelDefinition plain_definition(const PlainParts& parts,
                                  std::span<std::string (*const)()> arguments);

/// The rules of a typed kernel, which outlives this.
template <Reflected Config, Reflected Problem>
struct TypedRules {
  using Span = std::span<const std::int64_t>;

  const Space<Config, Problem>& space;
  std::vector<Config> (*configs)(const Problem&, const DeviceLimits&);
  const TypedLaunchRule<Config, Problem>& launch;
  const std::vector<TypedMapRule<Config, Problem>>& maps;
  const TypedWorkspaceRule<Config, Problem>& workspace;
  const std::vector<TypedKernelStep<Config, Problem>>& steps;
  Problem (*bucket)(const Problem&);
  const std::function<void(const Problem&, Workload&)>& workload;
  const std::function<double(const Problem&)>& flops;
  const std::function<double(const Problem&)>& bytes;
  const std::function<double(const Config&, const Problem&, const DeviceLimits&)>& cost;
  std::optional<Config> (*default_for)(const Problem&, const DeviceLimits&);
  const std::function<std::string(const Config&, const Problem&)>& numerics;

  /// @throws UserError as Space::dynamic does.
  void add_to(KernelDefinition& d) const {
    d.space = space.dynamic();
    if (configs)
      d.configs = [f = configs](Span p, const DeviceLimits& limits) {
        std::vector<Values> listed;
        for (const Config& config : f(from_values<Problem>(p), limits))
          listed.push_back(copy(to_values(config)));
        return listed;
      };
    for (const FieldInfo& field : field_infos<Problem>()) d.problem_fields.emplace_back(field.name);
    if (bucket) d.bucket = [f = bucket](Span p) { return to_values(f(from_values<Problem>(p))); };
    if (launch) d.launch = untyped(launch);
    for (const TypedMapRule<Config, Problem>& rule : maps) {
      MapRule& added = d.maps.emplace_back();
      added.argument = rule.argument;
      if (rule.map)
        added.map = [f = rule.map](Span c, Span p) {
          return f(from_values<Config>(c), from_values<Problem>(p));
        };
      added.only_if = untyped(rule.only_if);
    }
    if (workspace.size) d.workspace.size = untyped(workspace.size);
    d.workspace.only_if = untyped(workspace.only_if);
    for (const TypedKernelStep<Config, Problem>& step : steps) {
      KernelStep& added = d.steps.emplace_back();
      added.entry = step.entry;
      if (step.launch) added.launch = untyped(step.launch);
      added.only_if = untyped(step.only_if);
    }
    if (workload)
      d.workload = [f = workload](Span p, Workload& w) { f(from_values<Problem>(p), w); };
    if (default_for)
      d.default_for = [f = default_for](Span p, const DeviceLimits& limits) {
        const std::optional<Config> config = f(from_values<Problem>(p), limits);
        return config ? copy(to_values(*config)) : Values{};
      };
    if (flops) d.flops = of_problem(flops);
    if (bytes) d.bytes = of_problem(bytes);
    if (cost) d.cost = untyped(cost);
    if (numerics)
      d.numerics = [f = numerics](Span c, Span p) {
        return f(from_values<Config>(c), from_values<Problem>(p));
      };
  }

 private:
  template <class Rule>
  static auto untyped(const Rule& rule) {
    return [rule](Span c, Span p, const DeviceLimits& limits) {
      return rule(from_values<Config>(c), from_values<Problem>(p), limits);
    };
  }
  static std::function<bool(Span)> untyped(bool (*only_if)(const Config&)) {
    if (!only_if) return nullptr;
    return [only_if](Span c) { return only_if(from_values<Config>(c)); };
  }
  static std::function<double(Span)> of_problem(const std::function<double(const Problem&)>& f) {
    return [f](Span p) { return f(from_values<Problem>(p)); };
  }
};

}  // namespace kiln::detail
