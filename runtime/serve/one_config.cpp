#include "runtime/serve/one_config.hpp"

#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

using detail::format;

KernelDefinition with_one_config(const KernelDefinition& kernel,
                                 std::span<const std::int64_t> config) {
  const auto& parameters = kernel.space.parameters();
  if (config.size() != parameters.size())
    throw UserError(format("kernel {}: a config of {} values was given, it has {} parameters",
                           kernel.name, config.size(), parameters.size()));
  DynamicSpace space;
  for (std::size_t i = 0; i < config.size(); ++i) {
    const Parameter& p = parameters[i];
    std::vector<std::string> names;
    if (!p.names.empty()) names.push_back(p.show(config[i]));
    space.parameter(p.name, {config[i]}, config[i], p.kind, std::move(names));
  }
  for (const Constraint& c : kernel.space.constraints()) {
    if (c.on)
      space.where_on(*c.on, c.reason, c.holds);
    else
      space.where(c.reason, c.holds);
  }
  KernelDefinition one = kernel;
  one.space = std::move(space);
  one.default_for = nullptr;
  return one;
}

}  // namespace kiln::runtime
