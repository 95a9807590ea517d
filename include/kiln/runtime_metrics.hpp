// What a runtime has done so far, as numbers under stable names, for an engine's own monitoring.
//
//   const kiln::RuntimeMetrics now = runtime.metrics();
//   kiln::write_prometheus(std::cout, now);
//
// docs/reference.md lists every name with its unit and labels. Labels are bounded: kernels,
// statuses, levels of the store, and never problems.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "kiln/version.hpp"

namespace kiln {

/// One number per combination of label values, in the order in which docs/reference.md names the
/// labels: `metrics.store_lookups_total.at({"disk", "hit"})`.
using MetricSeries = std::map<std::vector<std::string>, std::uint64_t>;

/// How often something took how long.
struct Histogram {
  std::vector<double> bounds;         ///< upper bounds of the buckets in seconds, ascending
  std::vector<std::uint64_t> counts;  ///< of each bucket alone; one more than bounds: the rest
  double sum = 0;                     ///< seconds of all
  std::uint64_t count() const noexcept;
};

/// The counts of one Runtime since it was made; names ending in `_total` only grow. A member is a
/// metric's name without `kiln_`. A snapshot: numbers that are counted together may differ by what
/// happened while they were read.
struct RuntimeMetrics {
  MetricSeries build_info;  ///< by version, nvrtc and driver; always 1
  MetricSeries compiles_total;
  Histogram compile_seconds;
  MetricSeries tunings_total;
  Histogram tuning_seconds;
  MetricSeries candidates_total;
  MetricSeries store_lookups_total;
  std::uint64_t store_bytes = 0;
  std::uint64_t store_files = 0;
  std::uint64_t store_failed_writes_total = 0;
  std::uint64_t modules_loaded = 0;
  std::uint64_t module_bytes = 0;
  MetricSeries problems;
  MetricSeries unprepared_launches_total;
  std::uint64_t wanted_cut_total = 0;
  MetricSeries prepare_keys;
  std::uint64_t provisional_graph_nodes = 0;
  std::uint64_t swaps_total = 0;
  std::uint64_t generation = 0;
  MetricSeries worker_restarts_total;
  std::uint64_t problems_evicted_total = 0;
  std::uint64_t modules_unloaded_total = 0;
  std::uint64_t workspace_allocations_total = 0;
  MetricSeries agreements_total;
  Histogram agreement_seconds;
  std::uint64_t background_errors_total = 0;
  std::uint64_t overdue_calls = 0;
  std::uint64_t overdue_calls_total = 0;
};

/// The text that Prometheus scrapes (exposition format 0.0.4). What could not be written shows in
/// the state of `out`.
void write_prometheus(std::ostream& out, const RuntimeMetrics& metrics);

}  // namespace kiln
