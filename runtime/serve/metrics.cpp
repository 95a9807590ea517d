#include "runtime/serve/metrics.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kiln/version.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

namespace {

std::size_t sum_of(const PerKernel& numbers) {
  std::size_t sum = 0;
  for (const auto& [kernel, count] : numbers.read()) sum += count;
  return sum;
}

}  // namespace

RuntimeMetrics metrics_of(detail::Engine& engine) {
  RuntimeMetrics metrics;
  engine.workshop().telemetry().counters.read(metrics);
  std::string driver;
  for (const KeyField& field : engine.device()->info().software)
    if (field.name == "cuda_driver") driver = field.value;
  metrics
      .build_info[{KILN_VERSION, engine.builder().compiler_version(Target::Kind::cuda), driver}] =
      1;
  const StoreStatistics stats = engine.store()->stats();
  metrics.store_lookups_total = {{{"memory", "hit"}, stats.memory_hits},
                                 {{"disk", "hit"}, stats.disk_hits},
                                 {{"roots", "hit"}, stats.root_hits},
                                 {{"disk", "damaged"}, stats.damaged},
                                 {{"all", "miss"}, stats.misses}};
  metrics.store_bytes = stats.bytes;
  metrics.store_files = stats.binaries + stats.records;
  metrics.store_failed_writes_total = stats.failed_writes;
  const LoadedModules& loaded = *engine.device()->loaded_modules();
  metrics.modules_loaded = static_cast<std::uint64_t>(std::max<std::int64_t>(0, loaded.modules));
  metrics.module_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, loaded.bytes));
  metrics.provisional_graph_nodes = engine.captures().provisional_nodes();
  if (const Background* const background = engine.background())
    metrics.generation = background->generation();
  return metrics;
}

RuntimeStatistics statistics_of(detail::Engine& engine) {
  RuntimeStatistics now;
  now.compiled = engine.builder().compiled();
  now.tuned = engine.workshop().tuned();
  const Counters& counters = engine.workshop().telemetry().counters;
  now.unprepared_served = sum_of(counters.unprepared_served);
  now.unprepared_refused = sum_of(counters.unprepared_refused);
  now.provisional = engine.captures().refreshable();
  now.capture_errors = engine.captures().errors();
  now.store = engine.store()->stats();
  return now;
}

}  // namespace kiln::runtime
