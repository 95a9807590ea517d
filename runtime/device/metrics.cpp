#include "kiln/metrics.hpp"

#include <algorithm>
#include <cmath>

namespace kiln {

namespace {

double positive(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

/// Seconds to do `amount` at `rate`; 0 when either is unknown.
double time_at(double amount, double rate) {
  return positive(amount) > 0 && positive(rate) > 0 ? amount / rate : 0;
}

}  // namespace

const char* to_string(BoundBy bound) noexcept {
  switch (bound) {
    case BoundBy::unknown:
      return "unknown";
    case BoundBy::compute:
      return "compute";
    case BoundBy::memory:
      return "memory";
  }
  return "unknown";
}

double Roofline::ridge(bool tensor_cores) const noexcept {
  const double flops =
      tensor_cores && tensor_flops_per_second > 0 ? tensor_flops_per_second : flops_per_second;
  return time_at(flops, bytes_per_second);
}

double Roofline::seconds(double flops, double bytes, bool tensor_cores) const noexcept {
  const double rate =
      tensor_cores && tensor_flops_per_second > 0 ? tensor_flops_per_second : flops_per_second;
  return std::max(time_at(flops, rate), time_at(bytes, bytes_per_second));
}

Metrics metrics(const TuneResult& result, const Candidate& candidate,
                const Roofline* roofline) noexcept {
  Metrics m;
  if (candidate.status != CandidateStatus::measured || positive(candidate.seconds) == 0) return m;
  m.seconds = candidate.seconds;
  m.tflops = positive(result.flops) / m.seconds * 1e-12;
  m.gbs = positive(result.bytes) / m.seconds * 1e-9;
  m.host_seconds = candidate.host_seconds;
  if (!roofline) return m;
  const bool tensor_cores =
      std::any_of(result.types.begin(), result.types.end(), [](const std::string& type) {
        return type == "__half" || type == "__nv_bfloat16" || type.starts_with("__nv_fp8_") ||
               type.starts_with("kiln::templates::Fp8<");
      });
  const double compute = roofline->seconds(result.flops, 0, tensor_cores);
  const double memory = roofline->seconds(0, result.bytes, tensor_cores);
  if (compute == 0 && memory == 0) return m;
  m.roofline_fraction = std::max(compute, memory) / m.seconds;
  m.bound = compute > memory ? BoundBy::compute : BoundBy::memory;
  return m;
}

}  // namespace kiln
