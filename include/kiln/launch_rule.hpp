// How a config is launched for a problem, as a kernel's author says it:
//
//   kernel.launch = [](const VectorAdd& c, const Elementwise& p) {
//     return kiln::Launch{{unsigned((p.n + c.tile() - 1) / c.tile())}, {unsigned(c.block)}};
//   };
//
// A launch that depends on the device takes its limits, too:
//
//   kernel.launch = [](const Copy& c, const Elementwise&, const kiln::DeviceLimits& d) {
//     return kiln::Launch{{unsigned(d.usable_multiprocessors())}, {unsigned(c.block)}};
//   };
//
// Rules are pure: load, occupancy, checks, launches, records and precompiling ask them again and
// must get the same answer.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

#include "kiln/device.hpp"

namespace kiln {

/// A rule over values in field order (KernelDefinition). Empty, or callable from any thread.
class LaunchRule {
  using Span = std::span<const std::int64_t>;

 public:
  LaunchRule() = default;
  LaunchRule(std::nullptr_t) {}
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, LaunchRule> &&
             (std::is_invocable_r_v<Launch, F&, Span, Span, const DeviceLimits&> ||
              std::is_invocable_r_v<Launch, F&, Span, Span>))
  LaunchRule(F rule) {
    if constexpr (std::is_invocable_r_v<Launch, F&, Span, Span, const DeviceLimits&>)
      rule_ = std::move(rule);
    else
      rule_ = [rule = std::move(rule)](Span config, Span problem, const DeviceLimits&) {
        return rule(config, problem);
      };
  }

  explicit operator bool() const noexcept { return static_cast<bool>(rule_); }
  Launch operator()(Span config, Span problem, const DeviceLimits& limits) const {
    return rule_(config, problem, limits);
  }

 private:
  std::function<Launch(Span, Span, const DeviceLimits&)> rule_;
};

/// A rule over a typed kernel's structs: a function, or a lambda without captures.
template <class Config, class Problem>
class TypedLaunchRule {
  using Plain = Launch (*)(const Config&, const Problem&);
  using WithLimits = Launch (*)(const Config&, const Problem&, const DeviceLimits&);

 public:
  constexpr TypedLaunchRule() = default;
  constexpr TypedLaunchRule(std::nullptr_t) {}
  template <class F>
    requires std::convertible_to<F, Plain>
  constexpr TypedLaunchRule(F rule) : plain_(rule) {}
  template <class F>
    requires std::convertible_to<F, WithLimits>
  constexpr TypedLaunchRule(F rule) : with_limits_(rule) {}

  constexpr explicit operator bool() const noexcept { return plain_ || with_limits_; }
  constexpr Launch operator()(const Config& config, const Problem& problem,
                              const DeviceLimits& limits) const {
    return plain_ ? plain_(config, problem) : with_limits_(config, problem, limits);
  }

 private:
  Plain plain_ = nullptr;
  WithLimits with_limits_ = nullptr;
};

}  // namespace kiln
