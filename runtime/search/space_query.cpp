#include "kiln/space_query.hpp"

#include "runtime/search/search_space.hpp"

namespace kiln {

bool for_each_config(const DynamicSpace& space, std::span<const std::int64_t> problem,
                     const DeviceLimits& limits, const ConfigVisitor& visit) {
  const DynamicSpace own = space.on(limits.target_kind());
  runtime::Cursor cursor(own);
  do {
    if (!visit(cursor.values(), own.violated(cursor.values(), problem, limits))) return false;
  } while (cursor.advance());
  return true;
}

SpaceCount count_configs(const DynamicSpace& space, std::span<const std::int64_t> problem,
                         const DeviceLimits& limits) {
  return runtime::SearchSpace(space, problem, limits).count();
}

}  // namespace kiln
