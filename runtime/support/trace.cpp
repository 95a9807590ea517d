#include "runtime/support/trace.hpp"

#include <algorithm>
#include <limits>

#include "kiln/detail/format.hpp"
#include "kiln/tune.hpp"
#include "runtime/support/chrome_trace.hpp"

namespace kiln {

namespace runtime {

double TraceLog::add(std::string name, std::string lane, std::string detail,
                     Clock::time_point begin) {
  const double seconds = seconds_since(begin);
  const double at = std::chrono::duration<double>(begin.time_since_epoch()).count();
  std::lock_guard lock(mutex_);
  if (spans_.size() < kMaxSpans)
    spans_.push_back({std::move(name), std::move(lane), std::move(detail), at, seconds});
  return seconds;
}

std::vector<TraceSpan> TraceLog::take() {
  std::lock_guard lock(mutex_);
  return std::move(spans_);
}

}  // namespace runtime

void write_chrome_trace(const std::filesystem::path& file, std::span<const TuneResult> results) {
  double start = std::numeric_limits<double>::infinity();
  for (const TuneResult& r : results)
    for (const TraceSpan& s : r.spans) start = std::min(start, s.begin);
  runtime::ChromeTrace trace;
  for (const TuneResult& r : results) {
    runtime::TraceProcess process{0, "kiln"};
    if (r.agreed)
      process = {r.agreed->rank, detail::format("rank {} of {}", r.agreed->rank, r.agreed->size)};
    for (const TraceSpan& s : r.spans)
      trace.add({process, s.lane, s.name, r.kernel, s.detail, s.begin, s.seconds});
  }
  trace.write(file, start);
}

}  // namespace kiln
