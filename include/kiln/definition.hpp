// A kernel described at run time: source text or file, named parameters, argument types. Typed
// kernels (kernel.hpp) turn into this, too: there is one tuner, and this is what it knows of a
// kernel.
//
//   kiln::KernelDefinition k;
//   k.name = "scale";
//   k.source.text = "__global__ void scale(float* x, float a, int n) { /* ... BLOCK ... */ }";
//   k.entry = "scale";
//   k.passing = kiln::Passing::constants;                  // constexpr int BLOCK = 256;
//   k.arguments = {"float*", "float", "int"};
//   k.space.parameter("BLOCK", {64, 128, 256}, 128);
//   k.problem_fields = {"n"};
//   k.launch = k.by_name([](auto config, auto problem) {
//     return kiln::Launch{{unsigned(problem["n"] / config["BLOCK"])},
//                                 {unsigned(config["BLOCK"])}};
//   });
#pragma once

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/device.hpp"
#include "kiln/launch_rule.hpp"
#include "kiln/named.hpp"
#include "kiln/problem_values.hpp"
#include "kiln/space.hpp"
#include "kiln/step.hpp"
#include "kiln/tensor_map.hpp"
#include "kiln/workload.hpp"
#include "kiln/workspace.hpp"

namespace kiln {

/// Where a template's source is.
struct KernelSource {
  std::filesystem::path file{};  ///< a file, or
  std::string text{};            ///< the source itself (exactly one of the two)
  std::vector<std::filesystem::path> include_dirs{};  ///< besides the file's own folder
  std::vector<std::string> options{};                 ///< more compiler options
};

/// How the parameters' values reach the source.
enum class Passing {
  config_struct,       ///< `entry<Config{.block=256,...}, types...>`
  template_arguments,  ///< `entry<256, 4, types...>`, in parameter order
  constants,  ///< `constexpr int block = 256;` before the source, which must define no such macro
  macros      ///< `#define block 256` before the source; right where that says `#ifndef block`
};

/// How far an output may be from the reference: |got - want| <= absolute + relative * |want|, for
/// integers |got - want| <= absolute (an index is not nearly right).
struct Tolerance {
  double relative = 1e-5;
  double absolute = 1e-6;
  /// Share of an output's elements that may be farther off (1e-4: one of 10,000, rounded down), for
  /// kernels that may legitimately decide otherwise at an edge. At least 0, less than 1. Elements
  /// that are never written count like any others.
  double mismatches = 0;
  /// Largest ||got - want|| of an output of floats, as a part of ||want||, both of them the square
  /// root of the sum of squares; besides `absolute` for each element and, because few elements do
  /// not even out, `relative` by the root of their count. Finds what is a little wrong everywhere.
  /// At least 0; 0: it is not judged.
  double norm = 0;
};

/// A by-value argument that is a field of the problem, e.g. {3, "n"}.
struct ArgumentIsField {
  std::size_t argument = 0;  ///< its place in the signature, from 0; of an integer type
  std::string field{};       ///< a problem field
};

struct KernelDefinition;

/// A slower implementation that replaces `reference` where that would take long on the host: a
/// config of the kernel itself, or another kernel. It runs on the device that is tuned for, and is
/// trusted once its result for a small problem agrees with `reference`, which is tried once per
/// runtime. Where it cannot be built, fails, or disagrees, `reference` is used, and the result's
/// warnings say so.
///
///   kernel.device_reference = {.config = "body=plain", .problem = {{"m", 64}, {"n", 48}}};
///
/// It is used for problems of more `flops` than the small one; without `flops`, for all problems
/// but that one. Its results are rounded like the kernel's. `tolerance` bounds how far a candidate
/// may be from them, and how far they may be from `reference`.
struct DeviceReference {
  std::string config{};  ///< `body=plain,block=64`; parameters left out are as in the default
  std::map<std::string, std::int64_t> problem{};  ///< the small one: a value per problem field
  /// Null: the kernel itself. Another kernel must have the same arguments and problem fields; only
  /// its source, entry, types, space and launch are used.
  std::shared_ptr<const KernelDefinition> kernel{};
};

struct KernelDefinition {
  std::string name;  ///< letters, digits, '_'; names records and files
  KernelSource source;
  std::string entry;  ///< function or function template, qualified if in a namespace
  Passing passing = Passing::template_arguments;
  std::string config_type;         ///< for `config_struct`: the struct's name in the source
  std::vector<std::string> types;  ///< type arguments after the config, as the source spells them
  std::vector<std::string> arguments;  ///< argument types, as the source spells them
  DynamicSpace space;

  /// The configs that a search for this problem may try, for spaces of millions of combinations of
  /// which few make sense. All lie in the space; a search skips those that break a constraint. The
  /// function is pure. Without one, or where it returns an empty list, searches try the whole
  /// space.
  std::function<std::vector<Values>(std::span<const std::int64_t> problem, const DeviceLimits&)>
      configs;

  /// True for devices on which a problem that was never measured runs with the config of the least
  /// `cost` instead of the default, because that has been shown to be faster there. The function is
  /// pure, so that ranks with like devices choose alike. The default still runs where that config's
  /// binary is missing or does not work. Without a function the default runs on all devices.
  std::function<bool(const DeviceLimits&)> untuned_by_cost;

  /// The default for a problem on a device, where one default per target (`space`) is not enough: a
  /// config of the space that works there, or an empty list for the space's own default. The
  /// function is pure, so that ranks with like devices have the same default. Without a function
  /// all problems have the space's default.
  std::function<Values(std::span<const std::int64_t> problem, const DeviceLimits&)> default_for;

  /// A name for the bits that a config computes: two configs that have the same name for a problem
  /// leave the same bits in all outputs on a device, and do so at each launch. Configs that sum in
  /// different orders have different names. An empty name means that the bits differ from launch to
  /// launch. The function is pure. Without one each config has a name of its own. Only
  /// `deterministic` uses it.
  std::function<std::string(std::span<const std::int64_t> config,
                            std::span<const std::int64_t> problem)>
      numerics;
  /// Only configs whose results are those of the untuned config, bit for bit, are tried and used:
  /// see RuntimeOptions::deterministic, which sets this for all kernels.
  bool deterministic = false;

  std::vector<std::string> problem_fields;  ///< none: the kernel has one problem, `Values{}`
  /// Arguments that are fields of the problem: each launch is checked for that.
  std::vector<ArgumentIsField> relations;
  /// The problem that one is tuned as, and whose own bucket it is; empty: each is tuned by itself.
  std::function<ProblemValues(std::span<const std::int64_t>)> bucket;
  /// `Launch(config, problem)` or `Launch(config, problem, limits)`, both spans in field order.
  LaunchRule launch;
  /// Arguments that some configs take as tensor maps; at most 8.
  std::vector<MapRule> maps;
  /// Memory that the entries of some configs take as their last parameter; needs `arguments`.
  WorkspaceRule workspace{};
  /// Further entries that run after `entry`, in this order.
  std::vector<KernelStep> steps{};
  /// Fills in the arguments of a launch for a problem, in signature order, and the variables of the
  /// source that the kernel reads. May be called by several threads at once.
  std::function<void(std::span<const std::int64_t> problem, Workload&)> workload;
  /// For sizes that depend on data (rows per expert, lengths of sequences): `workload` makes
  /// several draws of each problem, which differ by `Workload::draw()` and in their random
  /// elements. There are as many as there are weights here. A candidate must be right on each, and
  /// its time is the mean over all, each counted by its weight. All draws are launched alike.
  /// Empty: one draw.
  std::vector<double> draws;
  /// Computes what the kernel should, on the host: `args[i]` points to a by-value argument, or is
  /// an array's first element. Runs on the thread that tunes, while the first candidates compile.
  /// Empty: `check` decides alone, or candidates are compared with the default's output.
  std::function<void(std::span<const std::int64_t> problem, std::span<void* const> args)> reference;
  std::optional<DeviceReference> device_reference{};  ///< needs `reference`
  Tolerance tolerance;
  /// Judges the outputs instead of `tolerance`, of which `norm` alone still counts: returns why
  /// they are wrong, or an empty text; an exception is a reason, too. `got` is what a launch left,
  /// `expected` what `reference` computed, each as `reference` takes its arguments; inputs are the
  /// same in both. Without a reference `expected` holds in/out arrays as they were before the
  /// launch, and outputs undefined. Must change nothing. Called by one thread at a time, and not
  /// again for outputs that are bit for bit equal to some it has judged, where the device can tell.
  std::function<std::string(std::span<const std::int64_t> problem, std::span<void* const> got,
                            std::span<void* const> expected)>
      check;
  /// Names what `workload` (its variables included) and `reference` make, e.g. "sparse, 2":
  /// functions cannot be compared, so change the name when the data change. Otherwise winners that
  /// were measured on the old data are used.
  std::string data_version{};
  std::function<double(std::span<const std::int64_t>)> flops;  ///< operations of a problem
  std::function<double(std::span<const std::int64_t>)> bytes;  ///< least bytes moved for a problem
  /// A guess, before anything is compiled, at how long an allowed config takes: in seconds or any
  /// unit that grows with them; +infinity when it cannot work; NaN, for all configs on a device, to
  /// leave it to the general model. It decides what is tried first, not what wins. Pure, called
  /// from several threads. Empty: the general model.
  std::function<double(std::span<const std::int64_t> config, std::span<const std::int64_t> problem,
                       const DeviceLimits&)>
      cost;

  /// Turns a function that finds the values of a config and a problem by name (kiln::Named) into
  /// one that takes them in field order: for `launch`, `cost` and the constraints of `space`.
  /// Further arguments are passed on. The names are those that `space` and `problem_fields` have at
  /// this call, so set these first.
  template <class F>
  auto by_name(F f) const {
    return [f = std::move(f), names = field_names()](std::span<const std::int64_t> config,
                                                     std::span<const std::int64_t> problem,
                                                     auto&&... more)
      requires std::invocable<const F&, Named, Named, decltype(more)...>
    {
      return f(Named(names->parameters, config), Named(names->problem, problem),
               std::forward<decltype(more)>(more)...);
    };
  }
  /// The same for functions of a problem alone: `workload`, `reference`, `check`, `bucket`,
  /// `flops`, `bytes`.
  template <class F>
  auto by_field(F f) const {
    return [f = std::move(f), names = field_names()](std::span<const std::int64_t> problem,
                                                     auto&&... more) {
      return f(Named(names->problem, problem), std::forward<decltype(more)>(more)...);
    };
  }

  /// `void(float*, const float*, int)`.
  std::string signature() const;
  /// `n=1024`; for messages and tables.
  std::string describe_problem(std::span<const std::int64_t> problem) const;
  /// `{{"n", 1024}}` to field order. @throws UserError on an unknown or missing field.
  Values problem(const std::map<std::string, std::int64_t>& named) const;
  ProblemValues bucketed(std::span<const std::int64_t> problem) const;
  /// @throws UserError naming the first field that is missing or contradicts another.
  void validate() const;

 private:
  struct FieldNames {
    std::vector<std::string> parameters, problem;
  };
  std::shared_ptr<const FieldNames> field_names() const;
};

}  // namespace kiln
