// A kernel whose config, problem and signature are C++ types: a wrong argument is a compile error.
//
//   const kiln::Kernel<VectorAdd, Elementwise, void(float*, const float*, const float*, int)> add{
//       .name = "vector_add",
//       .source = {.file = "vector_add.cuh"},
//       .entry = "vector_add",
//       .config_type = "VectorAdd",
//       .types = {"float"},
//       .space = space,
//       .launch =
//           [](const VectorAdd& c, const Elementwise& p) {
//             return kiln::Launch{{unsigned((p.n + c.tile() - 1) / c.tile())},
//                                         {unsigned(c.block)}};
//           },
//       .problem = [](float*, const float*, const float*, int n) { return Elementwise{n}; },
//       .workload =
//           [](const Elementwise& p, kiln::Workload& w) {
//             w.output<float>(p.n).input<float>(p.n).input<float>(p.n).scalar<int>(p.n);
//           },
//       .reference =
//           [](float* out, const float* a, const float* b, int n) {
//             for (int i = 0; i < n; ++i) out[i] = a[i] + b[i];
//           }};
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/config.hpp"
#include "kiln/definition.hpp"
#include "kiln/types.hpp"

namespace kiln {

template <Reflected Config, Reflected Problem, class Signature>
struct Kernel {
  static_assert(!std::is_same_v<Signature, Signature>,
                "a kernel's signature has the form void(Arguments...)");
};

/// An aggregate: fill in what applies. Immutable once used; may be shared between threads.
template <Reflected Config, Reflected Problem, class... Args>
struct Kernel<Config, Problem, void(Args...)> {
  static_assert((std::is_trivially_copyable_v<Args> && ...),
                "kernel arguments are pointers or trivially copyable values");

  using ConfigType = Config;
  using ProblemType = Problem;

  std::string name{};
  KernelSource source{};
  std::string entry{};
  std::string config_type{};
  std::vector<std::string> types{};
  Space<Config, Problem> space;
  /// As KernelDefinition::configs.
  std::vector<Config> (*configs)(const Problem&, const DeviceLimits&) = nullptr;
  /// `Launch(const Config&, const Problem&)`, with `const DeviceLimits&` as a third if need be.
  TypedLaunchRule<Config, Problem> launch{};
  std::vector<TypedMapRule<Config, Problem>> maps{};      ///< as KernelDefinition::maps
  TypedWorkspaceRule<Config, Problem> workspace{};        ///< as KernelDefinition::workspace
  std::vector<TypedKernelStep<Config, Problem>> steps{};  ///< as KernelDefinition::steps
  /// Reads the problem off a launch's arguments; must not touch device memory.
  Problem (*problem)(Args...) = nullptr;
  /// As KernelDefinition::relations: `{{3, "n"}}`. Launches through `at` are checked, too.
  std::vector<ArgumentIsField> relations{};
  Problem (*bucket)(const Problem&) = nullptr;  ///< null: each problem is tuned for itself
  std::function<void(const Problem&, Workload&)> workload{};
  std::vector<double> draws{};  ///< as KernelDefinition::draws
  /// The kernel's equation on host arrays. Empty: `check` decides alone, or candidates are compared
  /// with the default's output.
  std::function<void(Args...)> reference{};
  std::optional<DeviceReference> device_reference{};  ///< as KernelDefinition::device_reference
  Tolerance tolerance{};
  /// As KernelDefinition::check: `const auto& [out, a, n] = got;`.
  std::function<std::string(const Problem&, const std::tuple<Args...>& got,
                            const std::tuple<Args...>& expected)>
      check{};
  std::string data_version{};                     ///< as KernelDefinition::data_version
  std::function<double(const Problem&)> flops{};  ///< operations of a problem
  std::function<double(const Problem&)> bytes{};  ///< least bytes moved for a problem
  /// As KernelDefinition::cost.
  std::function<double(const Config&, const Problem&, const DeviceLimits&)> cost{};
  bool (*untuned_by_cost)(const DeviceLimits&) = nullptr;  ///< as KernelDefinition has it
  /// As KernelDefinition::default_for; nothing: the space's own default.
  std::optional<Config> (*default_for)(const Problem&, const DeviceLimits&) = nullptr;
  /// As KernelDefinition::numerics.
  std::function<std::string(const Config&, const Problem&)> numerics{};
  bool deterministic = false;  ///< as KernelDefinition::deterministic

  /// @throws UserError as KernelDefinition::validate and Space::dynamic do.
  KernelDefinition definition() const;
};

namespace detail {

/// Hosts pass arrays as pointers and scalars by address; this restores an argument's type.
template <class T>
T host_argument(void* address) {
  if constexpr (std::is_pointer_v<T>)
    return static_cast<T>(address);
  else
    return *static_cast<const T*>(address);
}

}  // namespace detail

template <Reflected Config, Reflected Problem, class... Args>
KernelDefinition Kernel<Config, Problem, void(Args...)>::definition() const {
  using Span = std::span<const std::int64_t>;
  const auto untyped = []<class Rule>(Rule rule) {
    if constexpr (std::is_same_v<Rule, bool (*)(const Config&)>)
      return rule ? std::function<bool(Span)>(
                        [rule](Span c) { return rule(from_values<Config>(c)); })
                  : nullptr;
    else
      return [rule](Span c, Span p, const DeviceLimits& limits) {
        return rule(from_values<Config>(c), from_values<Problem>(p), limits);
      };
  };
  KernelDefinition d;
  d.name = name;
  d.source = source;
  d.entry = entry;
  d.passing = Passing::config_struct;
  d.config_type = config_type;
  d.types = types;
  d.arguments = {device_name<Args>()...};
  d.space = space.dynamic();
  if (configs)
    d.configs = [f = configs](Span p, const DeviceLimits& limits) {
      std::vector<Values> listed;
      for (const Config& config : f(from_values<Problem>(p), limits))
        listed.push_back(detail::copy(to_values(config)));
      return listed;
    };
  for (const FieldInfo& field : field_infos<Problem>()) d.problem_fields.emplace_back(field.name);
  d.relations = relations;
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
  if (workload) d.workload = [f = workload](Span p, Workload& w) { f(from_values<Problem>(p), w); };
  d.draws = draws;
  d.device_reference = device_reference;
  if (reference)
    d.reference = [f = reference](Span, std::span<void* const> args) {
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        f(detail::host_argument<Args>(args[I])...);
      }(std::index_sequence_for<Args...>{});
    };
  d.tolerance = tolerance;
  if (check)
    d.check = [f = check](Span p, std::span<void* const> got, std::span<void* const> expected) {
      const auto typed = [](std::span<void* const> args) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
          return std::tuple<Args...>(detail::host_argument<Args>(args[I])...);
        }(std::index_sequence_for<Args...>{});
      };
      return f(from_values<Problem>(p), typed(got), typed(expected));
    };
  d.data_version = data_version;
  if (default_for)
    d.default_for = [f = default_for](Span p, const DeviceLimits& limits) {
      const std::optional<Config> config = f(from_values<Problem>(p), limits);
      return config ? detail::copy(to_values(*config)) : Values{};
    };
  if (untuned_by_cost) d.untuned_by_cost = untuned_by_cost;
  if (flops) d.flops = [f = flops](Span p) { return f(from_values<Problem>(p)); };
  if (bytes) d.bytes = [f = bytes](Span p) { return f(from_values<Problem>(p)); };
  if (cost) d.cost = untyped(cost);
  if (numerics)
    d.numerics = [f = numerics](Span c, Span p) {
      return f(from_values<Config>(c), from_values<Problem>(p));
    };
  d.deterministic = deterministic;
  d.validate();
  return d;
}

}  // namespace kiln
