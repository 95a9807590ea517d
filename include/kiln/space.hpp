// The values each field of a config may take, the constraints between them, and the default.
//
//   constexpr auto space = kiln::Space<VectorAdd, Elementwise>{{256, 4}}     // the default
//       .values(&VectorAdd::block, {64, 128, 256, 512})
//       .values(&VectorAdd::items, {1, 2, 4, 8})
//       .where("a tile is at most 4096 elements",
//              [](const VectorAdd& c, const Elementwise&, const kiln::DeviceLimits&) {
//                return c.tile() <= 4096; })
//       .checked();
//
// In a constexpr space a default outside it, a field that KILN_CONFIG does not list, a field given
// twice or an empty list is a compile error; at run time it is a UserError.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
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
  std::vector<std::int64_t> values;  ///< fields without a list keep their default
  std::vector<std::string> names{};  ///< how `values` are shown, one each; empty: as numbers

  /// A value as messages show it: its name, else the number.
  std::string show(std::int64_t value) const;
};

/// True when the config may be used; pure, and callable from any thread.
using Predicate = std::function<bool(std::span<const std::int64_t> config,
                                     std::span<const std::int64_t> problem, const DeviceLimits&)>;

struct Constraint {
  std::string reason;  ///< what must hold; shown when a candidate is rejected
  Predicate holds;
};

/// The form every space takes inside Kiln, and the one for kernels described at run time:
///
///   kiln::DynamicSpace s;
///   s.parameter("block", {64, 128, 256}, 256).parameter("items", {1, 2, 4}, 4);
class DynamicSpace {
 public:
  /// `names`: how the values are shown, one each; none: as numbers.
  /// @throws UserError on an empty or duplicate name, an empty list, a value given twice, a default
  /// outside it, or another number of names than of values.
  DynamicSpace& parameter(std::string name, std::vector<std::int64_t> values,
                          std::int64_t default_value, FieldKind kind = FieldKind::integer,
                          std::vector<std::string> names = {});
  DynamicSpace& where(std::string reason, Predicate holds);
  /// A default of its own for one kind of target; the parameters must be there already.
  /// @throws UserError when it lies outside the space.
  DynamicSpace& default_on(Target::Kind kind, Values config);

  const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
  const std::vector<Constraint>& constraints() const noexcept { return constraints_; }
  const Values& default_config(Target::Kind kind = Target::Kind::cuda) const noexcept {
    return kind == Target::Kind::host ? host_default_ : default_;
  }

  /// Combinations before constraints; saturates at the largest double-exact integer.
  double combinations() const noexcept;
  /// The first constraint that fails; nullptr when the config is allowed.
  const Constraint* violated(std::span<const std::int64_t> config,
                             std::span<const std::int64_t> problem,
                             const DeviceLimits& limits) const;
  /// `{{"block", 256}, ...}` to field order; fields left out take their default.
  /// @throws UserError naming an unknown field or a value outside the field's list.
  Values config(const std::map<std::string, std::int64_t>& named) const;
  /// `block=256,body=mma`.
  std::string describe(std::span<const std::int64_t> config) const;
  /// The config of such a text; parameters left out are as in the default of a kind of target.
  /// @throws UserError naming what is not of this form, unknown, given twice or outside the space.
  Values parse(std::string_view text, Target::Kind kind = Target::Kind::cuda) const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<Constraint> constraints_;
  Values default_, host_default_;
};

/// A space over a config struct. A literal type: keep it in a constexpr variable.
template <Reflected Config, Reflected Problem>
class Space {
 public:
  using Check = bool (*)(const Config&, const Problem&, const DeviceLimits&);
  static constexpr std::size_t kMaxValues = 32;  ///< per field
  static constexpr std::size_t kMaxConstraints = 32;

  constexpr explicit Space(Config default_config) : defaults_{default_config, default_config} {}

  template <class Field>
  constexpr Space values(Field Config::* field,
                         std::type_identity_t<std::initializer_list<Field>> list) const {
    Space next = *this;
    Axis& axis = next.axes_[index_of(field)];
    if (axis.count != 0) throw UserError("space: a field is given values twice");
    if (list.size() == 0) throw UserError("space: a field has an empty list of values");
    if (list.size() > kMaxValues) throw UserError("space: a field has more than 32 values");
    for (Field value : list) axis.values[axis.count++] = static_cast<std::int64_t>(value);
    return next;
  }

  /// `reason` says what must hold; it must outlive the space (a literal does).
  constexpr Space where(std::string_view reason, Check holds) const {
    Space next = *this;
    if (constraint_count_ == kMaxConstraints) throw UserError("space: more than 32 constraints");
    next.reasons_[constraint_count_] = reason;
    next.checks_[next.constraint_count_++] = holds;
    return next;
  }

  /// A default of its own for one kind of target: what suits a GPU rarely suits a CPU.
  constexpr Space default_on(Target::Kind kind, Config config) const {
    Space next = *this;
    next.defaults_[static_cast<std::size_t>(kind)] = config;
    return next;
  }

  /// The space itself, if its defaults are inside it and no value is listed twice.
  constexpr Space checked() const {
    const auto first = to_values(defaults_[0]);
    for (const Config& config : defaults_) {
      const auto defaults = to_values(config);
      for (std::size_t f = 0; f < axes_.size(); ++f)
        if (axes_[f].count != 0 ? !axes_[f].contains(defaults[f]) : defaults[f] != first[f])
          throw UserError("space: the default lies outside the listed values");
    }
    for (const Axis& axis : axes_)
      for (std::size_t i = 0; i < axis.count; ++i)
        for (std::size_t j = 0; j < i; ++j)
          if (axis.values[i] == axis.values[j]) throw UserError("space: a value is listed twice");
    return *this;
  }

  constexpr const Config& default_config(Target::Kind kind = Target::Kind::cuda) const {
    return defaults_[static_cast<std::size_t>(kind)];
  }

  /// The form used inside Kiln. @throws UserError naming the field and value of any mistake.
  DynamicSpace dynamic() const {
    DynamicSpace space;
    const auto infos = field_infos<Config>();
    const auto defaults = to_values(defaults_[0]);
    for (std::size_t f = 0; f < infos.size(); ++f) {
      const Axis& axis = axes_[f];
      const std::int64_t* listed = axis.count ? axis.values.data() : &defaults[f];
      const std::span<const std::int64_t> values(listed, axis.count ? axis.count : 1);
      space.parameter(std::string(infos[f].name), detail::copy(values), defaults[f], infos[f].kind,
                      detail::show_values(infos[f], values));
    }
    for (std::size_t i = 0; i < constraint_count_; ++i)
      space.where(
          std::string(reasons_[i]),
          [check = checks_[i]](std::span<const std::int64_t> config,
                               std::span<const std::int64_t> problem, const DeviceLimits& limits) {
            return check(from_values<Config>(config), from_values<Problem>(problem), limits);
          });
    const auto on_host = to_values(default_config(Target::Kind::host));
    space.default_on(Target::Kind::host, detail::copy(on_host));
    return space;
  }

 private:
  struct Axis {
    std::array<std::int64_t, kMaxValues> values{};
    std::size_t count = 0;

    constexpr bool contains(std::int64_t value) const {
      for (std::size_t i = 0; i < count; ++i)
        if (values[i] == value) return true;
      return false;
    }
  };

  template <class Field>
  static constexpr std::size_t index_of(Field Config::* field) {
    Config probe{};
    std::size_t index = 0, found = detail::kFieldCount<Config>;
    detail::for_each_field(probe, [&](FieldInfo, auto& member) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, Field>)
        if (&member == &(probe.*field)) found = index;
      ++index;
    });
    if (found == detail::kFieldCount<Config>)
      throw UserError("space: a field is not listed in KILN_CONFIG");
    return found;
  }

  std::array<Config, 2> defaults_;  ///< by Target::Kind
  std::array<Axis, detail::kFieldCount<Config>> axes_{};
  std::array<std::string_view, kMaxConstraints> reasons_{};
  std::array<Check, kMaxConstraints> checks_{};
  std::size_t constraint_count_ = 0;
};

}  // namespace kiln
