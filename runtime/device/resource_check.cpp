#include "runtime/device/resource_check.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

std::string extent(const Dim3& d) { return format("{}x{}x{}", d.x, d.y, d.z); }

bool exceeds(const Dim3& d, const Dim3& most) {
  return d.x > most.x || d.y > most.y || d.z > most.z;
}

/// Threads of a block, or blocks of a cluster; for absurd extents, whose product would overflow,
/// just a large number.
std::uint64_t thread_count(const Dim3& block) {
  const std::uint64_t layer = std::uint64_t{block.x} * block.y;
  return layer > UINT32_MAX ? layer : layer * block.z;
}

std::string cluster_obstacle(const Launch& g, const DeviceLimits& limits) {
  if (g.cluster == Dim3{}) return {};
  if (g.cluster.x == 0 || g.cluster.y == 0 || g.cluster.z == 0) return "a cluster has no blocks";
  const std::uint64_t blocks = thread_count(g.cluster);
  if (limits.max_cluster_blocks <= 1)
    return format("clusters of {} blocks, but the device has no clusters", blocks);
  if (blocks > static_cast<std::uint64_t>(limits.max_cluster_blocks))
    return format("clusters of {} blocks, but the device allows {}", blocks,
                  limits.max_cluster_blocks);
  if (g.grid.x % g.cluster.x != 0 || g.grid.y % g.cluster.y != 0 || g.grid.z % g.cluster.z != 0)
    return format("a grid of {}, which is no multiple of its clusters of {}", extent(g.grid),
                  extent(g.cluster));
  return {};
}

}  // namespace

bool empty(const Launch& g) noexcept { return g.grid.x == 0 || g.grid.y == 0 || g.grid.z == 0; }

std::string launch_obstacle(const Launch& g, const DeviceLimits& limits) {
  if (g.block.x == 0 || g.block.y == 0 || g.block.z == 0) return "a block has no threads";
  if (exceeds(g.block, limits.max_block))
    return format("a block of {}, but the device allows {}", extent(g.block),
                  extent(limits.max_block));
  const std::uint64_t threads = thread_count(g.block);
  if (limits.max_threads_per_block < 0 ||
      threads > static_cast<std::uint64_t>(limits.max_threads_per_block))
    return format("{} threads per block, but the device allows {}", threads,
                  limits.max_threads_per_block);
  if (exceeds(g.grid, limits.max_grid))
    return format("a grid of {}, but the device allows {}", extent(g.grid),
                  extent(limits.max_grid));
  if (std::int64_t{g.shared_bytes} > limits.shared_per_block_optin)
    return format("{} bytes of dynamic shared memory per block, but the device has {}",
                  g.shared_bytes, limits.shared_per_block_optin);
  if (std::string obstacle = cluster_obstacle(g, limits); !obstacle.empty()) return obstacle;
  if (g.cooperative && !limits.cooperative)
    return "a cooperative launch, which the device does not support";
  if (g.shared_carveout < -1 || g.shared_carveout > 100)
    return format("{} percent of the L1 cache as shared memory", g.shared_carveout);
  return {};
}

std::string describe(const WorkspaceSize& size) {
  const auto counted = [](std::size_t n, std::string_view what) {
    return format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  return format("{} and {}", counted(size.bytes, "byte"), counted(size.semaphores, "semaphore"));
}

std::string step_obstacle(std::string_view entry, std::string_view why) {
  return format("step `{}`: {}", entry, why);
}

std::string workspace_obstacle(const WorkspaceSize& size, const DeviceLimits& limits) {
  const auto most =
      static_cast<std::uint64_t>(limits.memory_bytes > 0 ? limits.memory_bytes : INT64_MAX / 2);
  if (size.semaphores <= most / sizeof(std::uint32_t) && size.bytes <= most && size.total() <= most)
    return {};
  return format("a workspace of {}, but the device has {} bytes", describe(size), most);
}

std::string resource_obstacle(const codegen::ResourceUsage& usage, const Launch& g,
                              const DeviceLimits& limits) {
  if (std::string obstacle = launch_obstacle(g, limits); !obstacle.empty()) return obstacle;
  const std::uint64_t threads = thread_count(g.block);
  if (usage.max_threads > 0 && threads > static_cast<std::uint64_t>(usage.max_threads))
    return format("{} threads per block, but __launch_bounds__ allows {}", threads,
                  usage.max_threads);
  const Occupancy o = occupancy(usage, g, limits);
  if (const std::uint64_t at_once = std::uint64_t{static_cast<unsigned>(std::max(0, o.blocks))} *
                                    static_cast<unsigned>(limits.usable_multiprocessors());
      g.cooperative && o.blocks > 0 && thread_count(g.grid) > at_once)
    return format("{} blocks at once for a cooperative launch, but {} fit {}", thread_count(g.grid),
                  at_once,
                  limits.reserved_multiprocessors > 0 ? "the multiprocessors that are not reserved"
                                                      : "the device");
  if (o.blocks > 0) return {};
  if (o.by_registers == 0)
    return format(
        "{} registers for each of {} threads come to {} as allocated, but the device has {} per "
        "block",
        usage.registers, threads, o.registers_per_block, limits.registers_per_block);
  if (o.by_shared_memory == 0)
    return format(
        "{} bytes of shared memory per block ({} static, {} dynamic), but the device has {}",
        std::int64_t{usage.static_shared} + g.shared_bytes, usage.static_shared, g.shared_bytes,
        limits.shared_per_block_optin);
  return format("not one block fits on a multiprocessor, which lacks {}", to_string(o.limit));
}

std::string resource_obstacle(std::span<const codegen::ResourceUsage> entries,
                              const kiln::detail::LaunchPlan& plan, const DeviceLimits& limits) {
  if (entries.size() != 1 + plan.steps.size())
    throw InternalError(format("a kernel was compiled with {} entries, but {} are launched",
                               entries.size(), 1 + plan.steps.size()));
  if (std::string obstacle = resource_obstacle(entries.front(), plan.launch, limits);
      !obstacle.empty())
    return obstacle;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (empty(plan.steps[i])) continue;
    const std::string obstacle = resource_obstacle(entries[i + 1], plan.steps[i], limits);
    if (!obstacle.empty()) return step_obstacle(plan.step_names.at(i), obstacle);
  }
  return {};
}

std::string loaded_obstacle(const codegen::ResourceUsage& usage, const Launch& g,
                            const DeviceLimits& limits) {
  return g.cooperative ? resource_obstacle(usage, g, limits) : launch_obstacle(g, limits);
}

std::vector<codegen::ResourceUsage> resources_of_entries(const codegen::Binary& binary) {
  std::vector<codegen::ResourceUsage> entries{binary.resources};
  for (const codegen::BinaryEntry& step : binary.steps) entries.push_back(step.resources);
  return entries;
}

Occupancy occupancy(const codegen::ResourceUsage& usage, const Launch& g,
                    const DeviceLimits& limits) noexcept {
  // Counts beyond an int become the largest int, which no device takes.
  const std::uint64_t threads = std::min<std::uint64_t>(thread_count(g.block), INT_MAX);
  return kiln::occupancy(limits,
                         {.threads = static_cast<int>(threads),
                          .registers = usage.registers,
                          .shared_bytes = std::int64_t{usage.static_shared} + g.shared_bytes});
}

}  // namespace kiln::runtime
