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

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/config.hpp"
#include "kiln/definition.hpp"
#include "kiln/detail/typed_rules.hpp"
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
  Problem (*bucket)(const Problem&) = nullptr;  ///< as KernelDefinition::bucket
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

/// As KernelDefinition::reference; `f` takes the arguments.
template <class... Args, class F>
auto untyped_reference(F f) {
  return [f = std::move(f)](std::span<const std::int64_t>, std::span<void* const> args) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      f(host_argument<Args>(args[I])...);
    }(std::index_sequence_for<Args...>{});
  };
}

/// Functions that name the types of a signature.
template <class... Args>
inline constexpr std::array<std::string (*)(), sizeof...(Args)> kDeviceNames{device_name<Args>...};

/// What of a kernel's definition does not depend on its signature, of which only names are needed.
template <class Config, class Problem, class Signature>
KernelDefinition without_signature(const Kernel<Config, Problem, Signature>& k,
                                   std::span<std::string (*const)()> arguments) {
  KernelDefinition d = plain_definition(
      {k.name, k.source, k.entry, k.config_type, k.types, k.relations, k.draws, k.device_reference,
       k.tolerance, k.data_version, k.untuned_by_cost, k.deterministic},
      arguments);
  TypedRules<Config, Problem>{k.space, k.configs,     k.launch,   k.maps,  k.workspace,
                              k.steps, k.bucket,      k.workload, k.flops, k.bytes,
                              k.cost,  k.default_for, k.numerics}
      .add_to(d);
  return d;
}

}  // namespace detail

template <Reflected Config, Reflected Problem, class... Args>
KernelDefinition Kernel<Config, Problem, void(Args...)>::definition() const {
  KernelDefinition d = detail::without_signature(*this, detail::kDeviceNames<Args...>);
  if (reference) d.reference = detail::untyped_reference<Args...>(reference);
  if (check)
    d.check = [f = check](std::span<const std::int64_t> p, std::span<void* const> got,
                          std::span<void* const> expected) {
      const auto typed = [](std::span<void* const> args) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
          return std::tuple<Args...>(detail::host_argument<Args>(args[I])...);
        }(std::index_sequence_for<Args...>{});
      };
      return f(from_values<Problem>(p), typed(got), typed(expected));
    };
  d.validate();
  return d;
}

}  // namespace kiln
