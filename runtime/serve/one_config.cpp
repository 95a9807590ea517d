#include "runtime/serve/one_config.hpp"

#include <string>
#include <utility>
#include <vector>

#include "codegen/instance.hpp"
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
  DynamicSpace space = codegen::space_of_one(kernel.space, config);
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
