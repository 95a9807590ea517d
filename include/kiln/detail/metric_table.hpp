// Internal: every figure that the command's JSON gives of a candidate, a tuning, a device and a
// store, in one table each. The JSON is written from the tables, `kiln reference` prints them, and
// docs/reference.md holds what it prints. No public header includes this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "kiln/metrics.hpp"
#include "kiln/roofline.hpp"
#include "kiln/store.hpp"
#include "kiln/tune.hpp"

namespace kiln::detail {

/// Empty when the figure is not known; the JSON then leaves it out.
using MetricValue = std::variant<std::monostate, double, std::uint64_t, const char*>;

template <class Subject>
struct Metric {
  const char* name;     ///< in JSON
  const char* unit;     ///< empty for ratios and words
  const char* meaning;  ///< Markdown
  MetricValue (*value)(const Subject&);
};

constexpr MetricValue positive_metric(double value) {
  return value > 0 ? MetricValue(value) : MetricValue();
}

inline constexpr Metric<Metrics> kCandidateMetrics[] = {
    {"time_ms", "ms", "median time of a launch",
     [](auto& m) -> MetricValue { return m.seconds * 1e3; }},
    {"host_ms", "ms",
     "the host's time for a launch, which it need not wait for; of a choice's candidates",
     [](auto& m) { return positive_metric(m.host_seconds * 1e3); }},
    {"tflops", "TFLOP/s", "operations per second, where the kernel says how many it needs",
     [](auto& m) { return positive_metric(m.tflops); }},
    {"gb_per_s", "GB/s", "bytes per second, counting the least that the problem must move",
     [](auto& m) { return positive_metric(m.gbs); }},
    {"roofline_percent", "%",
     "the roofline's time over the candidate's; above 100 where the data fits a cache",
     [](auto& m) -> MetricValue {
       if (m.bound == BoundBy::unknown) return {};
       return 100 * m.roofline_fraction;
     }},
    {"bound", "", "what limits the kernel at its roofline: `compute` or `memory`",
     [](auto& m) -> MetricValue {
       if (m.bound == BoundBy::unknown) return {};
       return to_string(m.bound);
     }},
};

inline constexpr Metric<TuneResult> kTuningMetrics[] = {
    {"speedup", "", "the default's time over the winner's",
     [](auto& r) -> MetricValue { return r.speedup(); }},
    {"wall_s", "s", "the whole tuning; the next four are parts of it",
     [](auto& r) -> MetricValue { return r.wall_seconds; }},
    {"compile_s", "s", "waiting for compilers",
     [](auto& r) -> MetricValue { return r.compile_seconds; }},
    {"verify_s", "s", "verifying candidates",
     [](auto& r) -> MetricValue { return r.verify_seconds; }},
    {"time_s", "s", "timing, the finals included",
     [](auto& r) -> MetricValue { return r.time_seconds; }},
    {"search_s", "s", "the search strategy",
     [](auto& r) -> MetricValue { return r.search_seconds; }},
};

inline constexpr Metric<Roofline> kRooflineMetrics[] = {
    {"gb_per_s", "GB/s", "bytes read and written by a copy that is larger than the caches",
     [](auto& r) -> MetricValue { return r.bytes_per_second * 1e-9; }},
    {"fma_gflops", "GFLOP/s", "fused multiply-adds of floats outside of tensor cores",
     [](auto& r) -> MetricValue { return r.flops_per_second * 1e-9; }},
    {"tensor_gflops", "GFLOP/s", "multiply-adds of 2-byte elements on tensor cores",
     [](auto& r) { return positive_metric(r.tensor_flops_per_second * 1e-9); }},
    {"ridge_flop_per_byte", "FLOP/B", "above it computing takes longer than moving the data",
     [](auto& r) -> MetricValue { return r.ridge(); }},
};

inline constexpr Metric<StoreStatistics> kStoreMetrics[] = {
    {"binaries", "entries", "compiled kernels on disk",
     [](auto& s) -> MetricValue { return s.binaries; }},
    {"records", "entries", "tuning records on disk",
     [](auto& s) -> MetricValue { return s.records; }},
    {"bytes", "B", "the size of both", [](auto& s) -> MetricValue { return s.bytes; }},
    {"max_bytes", "B", "the largest size allowed",
     [](auto& s) -> MetricValue { return s.max_bytes; }},
    {"files", "entries", "binaries and records, a file each",
     [](auto& s) -> MetricValue { return s.files; }},
    {"max_files", "entries", "the largest number allowed",
     [](auto& s) -> MetricValue { return s.max_files; }},
};

/// Adds what is known of `subject` to a JSON object.
template <class Json, class Subject, std::size_t N>
void add_metrics(Json& object, const Metric<Subject> (&table)[N], const Subject& subject) {
  for (const Metric<Subject>& metric : table)
    std::visit(
        [&]<class Value>(const Value& value) {
          if constexpr (!std::is_same_v<Value, std::monostate>) object[metric.name] = value;
        },
        metric.value(subject));
}

}  // namespace kiln::detail
