// The values each field of a config may take, the constraints between them, and the default.
//
//   constexpr auto space = kiln::Space<VectorAdd, Elementwise>{{256, 4}}     // the default
//       .values(&VectorAdd::block, {64, 128, 256, 512})
//       .values(&VectorAdd::items, {1, 2, 4, 8})
//       .where("a tile is at most 4096 elements",
//              [](const VectorAdd& c, const Elementwise&, const kiln::DeviceLimits&) {
//                return c.tile() <= 4096; })
//       .where_on(kiln::Target::Kind::cuda, "whole warps",
//                 [](const VectorAdd& c, const Elementwise&, const kiln::DeviceLimits&) {
//                   return c.block % 32 == 0; })
//       .values_on(kiln::Target::Kind::host, &VectorAdd::items, {16, 64})
//       .default_on(kiln::Target::Kind::host, {64, 16})
//       .default_on(kiln::ComputeCapability{90}, {512, 4})                    // sm_90 and later
//       .checked();
//
// In a constexpr space a default outside it, a field that KILN_CONFIG does not list, a field given
// twice or an empty list is a compile error; at run time it is a UserError.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/dynamic_space.hpp"

namespace kiln {

/// A space over a config struct. A literal type: keep it in a constexpr variable.
template <Reflected Config, Reflected Problem>
class Space {
 public:
  using Check = bool (*)(const Config&, const Problem&, const DeviceLimits&);
  static constexpr std::size_t kMaxValues = 32;       ///< per field
  static constexpr std::size_t kMaxConstraints = 64;  ///< of all targets together
  static constexpr std::size_t kMaxCapabilities = 8;  ///< with a default of their own

  constexpr explicit Space(Config default_config) : defaults_{default_config, default_config} {}

  template <class Field>
  constexpr Space values(Field Config::* field,
                         std::type_identity_t<std::initializer_list<Field>> list) const {
    Space next = *this;
    next.lists_[0][index_of(field)].take(list);
    return next;
  }
  /// Instead of `values`, on one kind of target.
  template <class Field>
  constexpr Space values_on(Target::Kind target, Field Config::* field,
                            std::type_identity_t<std::initializer_list<Field>> list) const {
    Space next = *this;
    next.lists_[place(target)][index_of(field)].take(list);
    return next;
  }

  /// `reason` says what must hold; it must outlive the space (a literal does).
  constexpr Space where(std::string_view reason, Check holds) const {
    return constrained({reason, holds, {}});
  }
  /// Asked on one kind of target alone.
  constexpr Space where_on(Target::Kind target, std::string_view reason, Check holds) const {
    return constrained({reason, holds, target});
  }

  /// A default of its own for one kind of target: what suits a GPU rarely suits a CPU.
  constexpr Space default_on(Target::Kind kind, Config config) const {
    Space next = *this;
    next.defaults_[static_cast<std::size_t>(kind)] = config;
    return next;
  }
  /// As DynamicSpace::default_on.
  constexpr Space default_on(ComputeCapability gpus, Config config) const {
    Space next = *this;
    if (gpus.at_least <= 0) throw UserError("space: a compute capability is not positive");
    if (capability_count_ == kMaxCapabilities)
      throw UserError("space: more than 8 compute capabilities have a default");
    for (std::size_t i = 0; i < capability_count_; ++i)
      if (capabilities_[i] == gpus.at_least)
        throw UserError("space: a compute capability has two defaults");
    next.capabilities_[capability_count_] = gpus.at_least;
    next.capability_defaults_[next.capability_count_++] = config;
    return next;
  }

  /// The space itself, if its defaults are inside it and no value is listed twice.
  constexpr Space checked() const {
    check_default(defaults_[0], Target::Kind::cuda);
    check_default(defaults_[1], Target::Kind::host);
    for (std::size_t i = 0; i < capability_count_; ++i)
      check_default(capability_defaults_[i], Target::Kind::cuda);
    for (const auto& lists : lists_)
      for (const Axis& axis : lists)
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
      const Axis& axis = lists_[0][f];
      const std::int64_t* listed = axis.count ? axis.values.data() : &defaults[f];
      const std::span<const std::int64_t> values(listed, axis.count ? axis.count : 1);
      // A list of the GPUs' own replaces this one, and then the default below this one's.
      const bool replaced = lists_[place(Target::Kind::cuda)][f].count != 0;
      space.parameter(std::string(infos[f].name), detail::copy(values),
                      replaced ? values.front() : defaults[f], infos[f].kind,
                      detail::show_values(infos[f], values));
    }
    for (const Target::Kind kind : {Target::Kind::cuda, Target::Kind::host})
      for (std::size_t f = 0; f < infos.size(); ++f) {
        const Axis& axis = lists_[place(kind)][f];
        if (axis.count == 0) continue;
        const std::span<const std::int64_t> values(axis.values.data(), axis.count);
        space.values_on(kind, std::string(infos[f].name), detail::copy(values),
                        detail::show_values(infos[f], values));
      }
    for (std::size_t i = 0; i < constraint_count_; ++i) {
      const auto& [reason, check, on] = constraints_[i];
      Predicate holds = [check = check](std::span<const std::int64_t> config,
                                        std::span<const std::int64_t> problem,
                                        const DeviceLimits& limits) {
        return check(from_values<Config>(config), from_values<Problem>(problem), limits);
      };
      if (on)
        space.where_on(*on, std::string(reason), std::move(holds));
      else
        space.where(std::string(reason), std::move(holds));
    }
    for (const Target::Kind kind : {Target::Kind::cuda, Target::Kind::host})
      space.default_on(kind, detail::copy(to_values(default_config(kind))));
    for (std::size_t i = 0; i < capability_count_; ++i)
      space.default_on(ComputeCapability{capabilities_[i]},
                       detail::copy(to_values(capability_defaults_[i])));
    return space;
  }

 private:
  struct Axis {
    std::array<std::int64_t, kMaxValues> values{};
    std::size_t count = 0;

    template <class Field>
    constexpr void take(std::initializer_list<Field> list) {
      if (count != 0) throw UserError("space: a field is given values twice");
      if (list.size() == 0) throw UserError("space: a field has an empty list of values");
      if (list.size() > kMaxValues) throw UserError("space: a field has more than 32 values");
      for (Field value : list) values[count++] = static_cast<std::int64_t>(value);
    }
    constexpr bool contains(std::int64_t value) const {
      for (std::size_t i = 0; i < count; ++i)
        if (values[i] == value) return true;
      return false;
    }
  };
  struct Limit {
    std::string_view reason{};
    Check holds = nullptr;
    std::optional<Target::Kind> on{};
  };
  using Lists = std::array<Axis, detail::kFieldCount<Config>>;

  /// In `lists_`.
  static constexpr std::size_t place(Target::Kind kind) {
    return 1 + static_cast<std::size_t>(kind);
  }

  constexpr Space constrained(Limit limit) const {
    Space next = *this;
    if (constraint_count_ == kMaxConstraints) throw UserError("space: more than 64 constraints");
    next.constraints_[next.constraint_count_++] = limit;
    return next;
  }

  constexpr void check_default(const Config& config, Target::Kind kind) const {
    const auto first = to_values(defaults_[0]), values = to_values(config);
    for (std::size_t f = 0; f < values.size(); ++f) {
      const Axis& own = lists_[place(kind)][f];
      const Axis& axis = own.count ? own : lists_[0][f];
      if (axis.count != 0 ? !axis.contains(values[f]) : values[f] != first[f])
        throw UserError("space: the default lies outside the listed values");
    }
  }

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
  std::array<Config, kMaxCapabilities> capability_defaults_{};
  std::array<int, kMaxCapabilities> capabilities_{};
  std::size_t capability_count_ = 0;
  std::array<Lists, 3> lists_{};  ///< common to all targets, then by Target::Kind
  std::array<Limit, kMaxConstraints> constraints_{};
  std::size_t constraint_count_ = 0;
};

}  // namespace kiln
