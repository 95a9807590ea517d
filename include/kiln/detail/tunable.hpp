// A kernel or function that is tuned, as searches, records and ranks see it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/definition.hpp"
#include "kiln/detail/launch_plan.hpp"
#include "kiln/device.hpp"

namespace kiln::detail {

struct FunctionDescription;

/// `n=1024,m=16`; for messages and tables. A field without a value has `?`.
std::string problem_text(const std::vector<std::string>& fields,
                         std::span<const std::int64_t> problem);
/// @throws UserError beginning with `subject` when the name is no identifier, or when a problem
/// field has no name or is given twice
void check_names(const std::string& subject, const std::string& name,
                 const std::vector<std::string>& problem_fields);

/// A kernel, or a function with knobs: its space and its problems, without source, compiler or
/// callable. A view: what it was made of must outlive it. Converts from both, so that a caller
/// passes what it has.
class Tunable {
 public:
  Tunable(const KernelDefinition& kernel) noexcept : kernel_(&kernel) {}
  Tunable(const FunctionDescription& function) noexcept : function_(&function) {}

  /// Null: it is a function.
  const KernelDefinition* kernel() const noexcept { return kernel_; }
  /// Null: it is a kernel.
  const FunctionDescription* function() const noexcept { return function_; }

  const std::string& name() const noexcept;
  const std::vector<std::string>& types() const noexcept;
  const DynamicSpace& space() const noexcept;
  const std::vector<std::string>& problem_fields() const noexcept;
  /// As KernelDefinition::default_for; where there is none, the space's.
  Values default_config(std::span<const std::int64_t> problem, const Target& target,
                        const DeviceLimits& limits) const;
  /// As KernelDefinition::configs.
  std::vector<Values> configs(std::span<const std::int64_t> problem,
                              const DeviceLimits& limits) const;
  /// `kernel add`, `function reduce`; for messages.
  std::string describe() const;
  /// `n=1024`.
  std::string describe_problem(std::span<const std::int64_t> problem) const;
  /// Values by field or parameter, as manifests and reports have them. An empty span gives an empty
  /// map.
  std::map<std::string, std::int64_t> named_problem(std::span<const std::int64_t> problem) const;
  std::map<std::string, std::int64_t> named_config(std::span<const std::int64_t> config) const;

  /// How a config is launched; nothing for a function, which launches by itself.
  std::optional<LaunchPlan> plan(std::span<const std::int64_t> config,
                                 std::span<const std::int64_t> problem,
                                 const DeviceLimits& limits) const;
  /// The launch alone: without the maps, which cost memory.
  std::optional<Launch> launch(std::span<const std::int64_t> config,
                               std::span<const std::int64_t> problem,
                               const DeviceLimits& limits) const;
  /// Why no device with these limits could launch a config, whatever the compiler makes of it;
  /// empty: it may be.
  std::string launch_obstacle(std::span<const std::int64_t> config,
                              std::span<const std::int64_t> problem,
                              const DeviceLimits& limits) const;

  /// 0: unknown.
  double flops(std::span<const std::int64_t> problem) const;
  double bytes(std::span<const std::int64_t> problem) const;
  /// As Tolerance::norm.
  std::optional<double> norm_permitted() const;
  /// As KernelDefinition::cost; NaN where there is none.
  double cost(std::span<const std::int64_t> config, std::span<const std::int64_t> problem,
              const DeviceLimits& limits) const;

 private:
  const KernelDefinition* kernel_ = nullptr;
  const FunctionDescription* function_ = nullptr;
};

}  // namespace kiln::detail
