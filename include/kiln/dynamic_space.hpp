// A space as every kernel has it inside Kiln, and as kernels described at run time give it.
//
//   kiln::DynamicSpace s;
//   s.parameter("block", {64, 128, 256}, 256).parameter("items", {1, 2, 4}, 4);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/reflect.hpp"

namespace kiln {

/// Values of a config, or of a problem, in field order.
using Values = std::vector<std::int64_t>;

namespace detail {
/// Out of line: inlined into users' code, it makes GCC 12 warn without cause.
Values copy(std::span<const std::int64_t> values);
/// Enumerators' names; none for other fields.
std::vector<std::string> show_values(const FieldInfo& field, std::span<const std::int64_t> values);
}  // namespace detail

/// One field of a space described at run time.
struct Parameter {
  std::string name;
  FieldKind kind = FieldKind::integer;
  std::vector<std::int64_t> values;  ///< on any target; fields without a list keep their default
  std::vector<std::string> names{};  ///< how `values` are shown, one each; empty: as numbers
  /// The values on each kind of target, by Target::Kind; both empty: `values` on all of them.
  std::array<std::vector<std::int64_t>, 2> only{};

  /// A value as messages show it: its name, else the number.
  std::string show(std::int64_t value) const;
  const std::vector<std::int64_t>& values_on(Target::Kind target) const noexcept {
    const auto& list = only[static_cast<std::size_t>(target)];
    return list.empty() ? values : list;
  }
};

/// True when the config may be used; pure, and callable from any thread.
using Predicate = std::function<bool(std::span<const std::int64_t> config,
                                     std::span<const std::int64_t> problem, const DeviceLimits&)>;

struct Constraint {
  std::string reason;  ///< what must hold; shown when a candidate is rejected
  Predicate holds;
  std::optional<Target::Kind> on{};  ///< on this kind of target alone; none: on all of them
};

/// GPUs of at least this compute capability: 90 for sm_90, sm_90a, sm_100, ...
struct ComputeCapability {
  int at_least = 0;
};

/// The form every space takes inside Kiln, and the one for kernels described at run time.
class DynamicSpace {
 public:
  /// `names`: how the values are shown, one each; none: as numbers.
  /// @throws UserError on an empty or duplicate name, an empty list, a value given twice, a default
  /// outside it, or another number of names than of values.
  DynamicSpace& parameter(std::string name, std::vector<std::int64_t> values,
                          std::int64_t default_value, FieldKind kind = FieldKind::integer,
                          std::vector<std::string> names = {});
  /// Other values of a parameter for one kind of target, instead of those that it has. A default
  /// of that kind that is not among them becomes the first of them. `names` are needed if the
  /// parameter has some.
  /// @throws UserError on an unknown parameter, one with such a list already, an empty list, a
  /// value given twice, or another number of names than of values.
  DynamicSpace& values_on(Target::Kind target, const std::string& name,
                          std::vector<std::int64_t> values, std::vector<std::string> names = {});
  DynamicSpace& where(std::string reason, Predicate holds);
  /// A constraint that is asked on only one kind of target.
  DynamicSpace& where_on(Target::Kind target, std::string reason, Predicate holds);
  /// A default of its own for one kind of target; the parameters must be there already.
  /// @throws UserError when it lies outside the space.
  DynamicSpace& default_on(Target::Kind kind, Values config);
  /// A default of its own for GPUs from a compute capability on. Of several that fit a GPU, the one
  /// of the highest capability counts; each of them takes precedence over the default of a kind of
  /// target.
  /// @throws UserError when it lies outside the space, when the capability is not positive, or has
  /// a default already.
  DynamicSpace& default_on(ComputeCapability gpus, Values config);

  const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
  const std::vector<Constraint>& constraints() const noexcept { return constraints_; }
  /// The default of a kind of target, whatever GPU it is.
  const Values& default_config(Target::Kind kind = Target::Kind::cuda) const noexcept {
    return kind == Target::Kind::host ? host_default_ : default_;
  }
  /// The most specific default for a target.
  const Values& default_config(const Target& target) const noexcept;
  /// The space of one kind of target: its values, constraints and defaults, and no others.
  DynamicSpace on(Target::Kind kind) const;

  /// Combinations before constraints; saturates at the largest double-exact integer.
  double combinations() const noexcept;
  /// The first constraint that fails, of those that the device's kind of target has; nullptr when
  /// the config is allowed.
  const Constraint* violated(std::span<const std::int64_t> config,
                             std::span<const std::int64_t> problem,
                             const DeviceLimits& limits) const;
  /// `{{"block", 256}, ...}` to field order; fields left out take their default on CUDA devices.
  /// @throws UserError naming an unknown field or a value outside the field's list.
  Values config(const std::map<std::string, std::int64_t>& named) const;
  /// `block=256,body=mma`.
  std::string describe(std::span<const std::int64_t> config) const;
  /// The config of such a text; parameters left out are as in the default of a kind of target, or
  /// of a target. @throws UserError naming what is not of this form, unknown, given twice or
  /// outside the space.
  Values parse(std::string_view text, Target::Kind kind = Target::Kind::cuda) const;
  Values parse(std::string_view text, const Target& target) const;

 private:
  Values parse_over(std::string_view text, const Values& defaults) const;
  void check_default(Target::Kind kind, const Values& config) const;

  std::vector<Parameter> parameters_;
  std::vector<Constraint> constraints_;
  std::vector<std::pair<std::size_t, Target::Kind>> own_lists_;  ///< parameters with values_on
  Values default_, host_default_;
  std::vector<std::pair<int, Values>> capability_defaults_;  ///< the highest capability first
};

}  // namespace kiln
