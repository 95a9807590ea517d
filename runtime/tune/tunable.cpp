#include "kiln/detail/tunable.hpp"

#include <algorithm>
#include <limits>

#include "kiln/detail/format.hpp"
#include "kiln/detail/function_core.hpp"
#include "kiln/error.hpp"

namespace kiln::detail {

using Span = std::span<const std::int64_t>;

const std::string& Tunable::name() const noexcept {
  return kernel_ ? kernel_->name : function_->name;
}

const std::vector<std::string>& Tunable::types() const noexcept {
  return kernel_ ? kernel_->types : function_->types;
}

const DynamicSpace& Tunable::space() const noexcept {
  return kernel_ ? kernel_->space : function_->space;
}

const std::vector<std::string>& Tunable::problem_fields() const noexcept {
  return kernel_ ? kernel_->problem_fields : function_->problem_fields;
}

Values Tunable::default_config(Span problem, const Target& target,
                               const DeviceLimits& limits) const {
  Values config;
  if (kernel_ && kernel_->default_for) config = kernel_->default_for(problem, limits);
  if (config.empty()) return space().default_config(target);
  const auto& parameters = space().parameters();
  bool lies_in_space = config.size() == parameters.size();
  for (std::size_t i = 0; lies_in_space && i < config.size(); ++i)
    lies_in_space =
        std::ranges::find(parameters[i].values, config[i]) != parameters[i].values.end();
  if (lies_in_space) return config;
  throw UserError(format("{}: `default_for` gives a config for {} that does not lie in the space",
                         describe(), describe_problem(problem)));
}

std::vector<Values> Tunable::configs(Span problem, const DeviceLimits& limits) const {
  if (function_) return function_->configs;
  return kernel_->configs ? kernel_->configs(problem, limits) : std::vector<Values>{};
}

std::string Tunable::describe() const {
  return (kernel_ ? "kernel " : function_->of_a_choice ? "choice " : "function ") + name();
}

std::string Tunable::describe_problem(Span problem) const {
  return detail::problem_text(problem_fields(), problem);
}

std::map<std::string, std::int64_t> Tunable::named_problem(Span problem) const {
  std::map<std::string, std::int64_t> named;
  for (std::size_t i = 0; i < problem.size(); ++i) named[problem_fields()[i]] = problem[i];
  return named;
}

std::map<std::string, std::int64_t> Tunable::named_config(Span config) const {
  std::map<std::string, std::int64_t> named;
  for (std::size_t i = 0; i < config.size(); ++i) named[space().parameters()[i].name] = config[i];
  return named;
}

std::optional<LaunchPlan> Tunable::plan(Span config, Span problem,
                                        const DeviceLimits& limits) const {
  if (!kernel_) return {};
  return detail::plan(*kernel_, config, problem, limits);
}

std::optional<Launch> Tunable::launch(Span config, Span problem, const DeviceLimits& limits) const {
  if (!kernel_) return {};
  return kernel_->launch(config, problem, limits);
}

std::string Tunable::launch_obstacle(Span config, Span problem, const DeviceLimits& limits) const {
  return kernel_ ? detail::plan(*kernel_, config, problem, limits).obstacle(limits) : std::string();
}

double Tunable::flops(Span problem) const {
  const auto& flops = kernel_ ? kernel_->flops : function_->flops;
  return flops ? flops(problem) : 0;
}

double Tunable::bytes(Span problem) const {
  const auto& bytes = kernel_ ? kernel_->bytes : function_->bytes;
  return bytes ? bytes(problem) : 0;
}

std::optional<double> Tunable::norm_permitted() const {
  if (!kernel_) return {};
  const Tolerance& t = kernel_->tolerance;
  const bool same_bits = t.relative == 0 && t.absolute == 0 && t.mismatches == 0;
  if (t.norm > 0) return t.norm;
  return same_bits && !kernel_->check ? std::optional(0.0) : std::nullopt;
}

double Tunable::cost(Span config, Span problem, const DeviceLimits& limits) const {
  const auto& cost = kernel_ ? kernel_->cost : function_->cost;
  return cost ? cost(config, problem, limits) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace kiln::detail
