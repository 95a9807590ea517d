#include "runtime/serve/metrics.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kiln/version.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

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
  const LoadedModules& loaded = *engine.device()->loaded_modules();
  metrics.modules_loaded = static_cast<std::uint64_t>(std::max<std::int64_t>(0, loaded.modules));
  metrics.module_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, loaded.bytes));
  return metrics;
}

RuntimeStatistics statistics_of(detail::Engine& engine) {
  RuntimeStatistics now;
  now.compiled = engine.builder().compiled();
  now.tuned = engine.workshop().tuned();
  now.unprepared_served = engine.serving().unprepared_served();
  now.unprepared_refused = engine.serving().unprepared_refused();
  now.provisional = engine.captures().refreshable();
  now.capture_errors = engine.captures().errors();
  now.store = engine.store()->stats();
  return now;
}

}  // namespace kiln::runtime
