// Internal: every metric of Runtime::metrics() in one table. write_prometheus() writes from it,
// `kiln reference` prints it, and docs/reference.md holds what it prints. No public header includes
// this.
#pragma once

#include <cstdint>
#include <variant>

#include "kiln/runtime_metrics.hpp"

namespace kiln::detail {

/// A metric as Prometheus names it.
struct RuntimeMetric {
  enum class Type { counter, gauge, histogram };
  /// Where RuntimeMetrics has it.
  using Member = std::variant<MetricSeries RuntimeMetrics::*, std::uint64_t RuntimeMetrics::*,
                              Histogram RuntimeMetrics::*>;

  const char* name;
  Type type;
  const char* unit;    ///< empty for counts
  const char* labels;  ///< separated by commas, in the order of MetricSeries
  const char* help;
  Member member;
};

constexpr const char* to_string(RuntimeMetric::Type type) {
  return type == RuntimeMetric::Type::counter ? "counter"
         : type == RuntimeMetric::Type::gauge ? "gauge"
                                              : "histogram";
}

inline constexpr RuntimeMetric kRuntimeMetrics[] = {
    {"kiln_build_info", RuntimeMetric::Type::gauge, "", "version,nvrtc,driver",
     "always 1; the versions of Kiln, of NVRTC once it compiles, and of the CUDA driver",
     &RuntimeMetrics::build_info},
    {"kiln_compiles_total", RuntimeMetric::Type::counter, "", "result",
     "instances that a compiler was asked for: `compiled`, `failed` (they do not compile), `error` "
     "(the compiler could not be used)",
     &RuntimeMetrics::compiles_total},
    {"kiln_compile_seconds", RuntimeMetric::Type::histogram, "seconds", "",
     "how long a compiler took for an instance", &RuntimeMetrics::compile_seconds},
    {"kiln_tunings_total", RuntimeMetric::Type::counter, "", "end",
     "searches of a problem by this process alone, by what ended them: `finished`, `evaluations`, "
     "`seconds`, `target`, `stopped`, or `failed` (no result)",
     &RuntimeMetrics::tunings_total},
    {"kiln_tuning_seconds", RuntimeMetric::Type::histogram, "seconds", "",
     "how long these searches took", &RuntimeMetrics::tuning_seconds},
    {"kiln_candidates_total", RuntimeMetric::Type::counter, "", "status",
     "candidates that this process tried, by what became of them",
     &RuntimeMetrics::candidates_total},
    {"kiln_store_lookups_total", RuntimeMetric::Type::counter, "", "level,result",
     "look-ups in the store: `hit` in level `memory`, `disk` or `roots`, or `miss` in `all`; a "
     "`damaged` file on `disk`, and a `miss` by the whole key of what a root has by its portable "
     "half, are counted besides what the look-up came to",
     &RuntimeMetrics::store_lookups_total},
    {"kiln_store_bytes", RuntimeMetric::Type::gauge, "bytes", "", "the size of the writable store",
     &RuntimeMetrics::store_bytes},
    {"kiln_store_files", RuntimeMetric::Type::gauge, "", "",
     "binaries and records in the writable store", &RuntimeMetrics::store_files},
    {"kiln_store_failed_writes_total", RuntimeMetric::Type::counter, "", "",
     "binaries and records that could not be written to the store: the folder is refused, "
     "read-only or full",
     &RuntimeMetrics::store_failed_writes_total},
    {"kiln_modules_loaded", RuntimeMetric::Type::gauge, "", "",
     "kernels that are loaded on the device now, by handles and tunings",
     &RuntimeMetrics::modules_loaded},
    {"kiln_module_bytes", RuntimeMetric::Type::gauge, "bytes", "", "the size of their binaries",
     &RuntimeMetrics::module_bytes},
    {"kiln_problems", RuntimeMetric::Type::gauge, "", "kernel",
     "problems that handles of a kernel hold; `other`: those of all kernels after the first 256",
     &RuntimeMetrics::problems},
    {"kiln_unprepared_launches_total", RuntimeMetric::Type::counter, "", "kernel,served",
     "launches on the sealed runtime of problems that were not prepared: `true`, something else "
     "was launched; `false`, UnpreparedError; `other`: as for `kiln_problems`",
     &RuntimeMetrics::unprepared_launches_total},
    {"kiln_wanted_cut_total", RuntimeMetric::Type::counter, "", "",
     "launches of problems that were not prepared, and requests for missing instances, that "
     "`Runtime::wanted()` has no room to list: beyond 1024 problems of a handle, 4096 of handles "
     "that have ended, 65,536 instances",
     &RuntimeMetrics::wanted_cut_total},
    {"kiln_prepare_keys", RuntimeMetric::Type::gauge, "", "state",
     "distinct instances that the last `prepare` needs: `waiting` (not looked for yet, or no time "
     "was left), `found`, `compiled`, `missing`, `failed` (they do not compile, or cannot be made)",
     &RuntimeMetrics::prepare_keys},
    {"kiln_provisional_graph_nodes", RuntimeMetric::Type::gauge, "", "",
     "launches in living graphs that `refresh` can exchange and has not exchanged yet",
     &RuntimeMetrics::provisional_graph_nodes},
    {"kiln_swaps_total", RuntimeMetric::Type::counter, "", "",
     "times that what launches of a problem get was exchanged for another config or alternative",
     &RuntimeMetrics::swaps_total},
    {"kiln_generation", RuntimeMetric::Type::gauge, "", "",
     "how often the background has published what it found (mode `background`), as "
     "CommitReport::generation",
     &RuntimeMetrics::generation},
    {"kiln_worker_restarts_total", RuntimeMetric::Type::counter, "", "cause",
     "workers (`kiln-worker`) that took the place of one that was gone: `fault` (a signal, an "
     "exit, a senseless answer), `killed` by others, `late`, `stopped`, `memory` (too much), "
     "`device` (lost), `peer` (that of another rank ended)",
     &RuntimeMetrics::worker_restarts_total},
    {"kiln_problems_evicted_total", RuntimeMetric::Type::counter, "", "",
     "problems that have left their handle because of `max_problems` or `max_module_bytes`",
     &RuntimeMetrics::problems_evicted_total},
    {"kiln_modules_unloaded_total", RuntimeMetric::Type::counter, "", "",
     "kernels that handles had loaded and that no problem, held kernel or graph uses any more",
     &RuntimeMetrics::modules_unloaded_total},
    {"kiln_workspace_allocations_total", RuntimeMetric::Type::counter, "", "",
     "launches that had to get device memory for their workspace, because their stream had none, "
     "or too little",
     &RuntimeMetrics::workspace_allocations_total},
    {"kiln_agreements_total", RuntimeMetric::Type::counter, "", "outcome",
     "agreements between ranks: on a `plan`, on `defaults`, or `failed` (this rank took no part)",
     &RuntimeMetrics::agreements_total},
    {"kiln_agreement_seconds", RuntimeMetric::Type::histogram, "seconds", "",
     "how long agreements took, what was measured for them included",
     &RuntimeMetrics::agreement_seconds},
    {"kiln_background_errors_total", RuntimeMetric::Type::counter, "", "",
     "errors behind the launches (mode `background`): tunings that failed, and exceptions of the "
     "program's functions",
     &RuntimeMetrics::background_errors_total},
    {"kiln_overdue_calls", RuntimeMetric::Type::gauge, "", "",
     "trials in this process (of callables, and of kernels without a worker) that have taken "
     "longer than a candidate may, and have not ended",
     &RuntimeMetrics::overdue_calls},
    {"kiln_overdue_calls_total", RuntimeMetric::Type::counter, "", "",
     "trials in this process that have taken longer than a candidate may, those that have ended "
     "included",
     &RuntimeMetrics::overdue_calls_total},
};

}  // namespace kiln::detail
