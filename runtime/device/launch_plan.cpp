#include "kiln/detail/launch_plan.hpp"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/types.hpp"
#include "runtime/device/resource_check.hpp"

namespace kiln::detail {

using Span = std::span<const std::int64_t>;

namespace {

/// The element type of a pointer as the source spells it; nothing for a type that is not Kiln's.
std::optional<DataType> element_type(std::string_view spelled) {
  constexpr std::string_view kConst = "const ";
  if (spelled.starts_with(kConst)) spelled.remove_prefix(kConst.size());
  while (spelled.ends_with('*') || spelled.ends_with(' ')) spelled.remove_suffix(1);
  static const std::array<std::pair<std::string, DataType>, 14> kTypes{{
      {device_name<float>(), DataType::f32},
      {device_name<double>(), DataType::f64},
      {device_name<float16>(), DataType::f16},
      {device_name<bfloat16>(), DataType::bf16},
      {device_name<float8_e4m3>(), DataType::fp8_e4m3},
      {device_name<float8_e5m2>(), DataType::fp8_e5m2},
      {device_name<std::int8_t>(), DataType::i8},
      {device_name<std::uint8_t>(), DataType::u8},
      {device_name<std::int16_t>(), DataType::i16},
      {device_name<std::uint16_t>(), DataType::u16},
      {device_name<std::int32_t>(), DataType::i32},
      {device_name<std::uint32_t>(), DataType::u32},
      {device_name<std::int64_t>(), DataType::i64},
      {device_name<std::uint64_t>(), DataType::u64},
  }};
  for (const auto& [name, type] : kTypes)
    if (spelled == name) return type;
  return {};
}

void check_type(const KernelDefinition& kernel, const PlannedMap& planned) {
  const std::string& spelled = kernel.arguments.at(planned.argument);
  const auto type = element_type(spelled);
  if (type && *type != planned.map.type)
    throw UserError(
        format("kernel {}: the tensor map of argument {} has elements of {}, but the "
               "argument is {}",
               kernel.name, planned.argument, to_string(planned.map.type), spelled));
}

}  // namespace

std::vector<PlannedMap> planned_maps(const KernelDefinition& kernel, Span config, Span problem) {
  std::vector<PlannedMap> maps;
  for (const MapRule& rule : kernel.maps)
    if (rule.applies(config))
      check_type(kernel, maps.emplace_back(rule.argument, rule.map(config, problem)));
  return maps;
}

std::optional<WorkspaceSize> planned_workspace(const KernelDefinition& kernel, Span config,
                                               Span problem, const DeviceLimits& limits) {
  if (!kernel.workspace.applies(config)) return {};
  return kernel.workspace.size(config, problem, limits);
}

std::vector<std::string> step_entries(const KernelDefinition& kernel) {
  std::vector<std::string> entries;
  for (const KernelStep& step : kernel.steps) entries.push_back(step.entry);
  return entries;
}

bool LaunchPlan::empty() const noexcept { return runtime::empty(launch); }

std::string LaunchPlan::obstacle(const DeviceLimits& limits) const {
  if (std::string why = runtime::launch_obstacle(launch, limits); !why.empty()) return why;
  if (empty()) return {};  // the maps of an empty problem have no elements
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (const std::string why = runtime::launch_obstacle(steps[i], limits);
        !runtime::empty(steps[i]) && !why.empty())
      return runtime::step_obstacle(step_names.at(i), why);
  if (workspace)
    if (std::string why = runtime::workspace_obstacle(*workspace, limits); !why.empty()) return why;
  for (const PlannedMap& planned : maps) {
    if (!limits.tensor_maps)
      return format("argument {} as a tensor map, which the device does not support",
                    planned.argument);
    if (const std::string why = planned.map.obstacle(); !why.empty())
      return format("argument {} as a tensor map with {}", planned.argument, why);
  }
  return {};
}

LaunchPlan plan(const KernelDefinition& kernel, Span config, Span problem,
                const DeviceLimits& limits) {
  LaunchPlan made{kernel.launch(config, problem, limits), planned_maps(kernel, config, problem),
                  planned_workspace(kernel, config, problem, limits)};
  for (const KernelStep& step : kernel.steps)
    if (step.applies(config)) {
      made.steps.push_back(step.launch(config, problem, limits));
      made.step_names.push_back(step.entry);
    }
  return made;
}

}  // namespace kiln::detail
