#include "runtime/support/trace.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "kiln/error.hpp"
#include "kiln/tune.hpp"

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
  using nlohmann::json;
  double start = std::numeric_limits<double>::infinity();
  for (const TuneResult& r : results)
    for (const TraceSpan& s : r.spans) start = std::min(start, s.begin);

  std::map<std::string, int> lanes;
  json events = json::array();
  for (const TuneResult& r : results)
    for (const TraceSpan& s : r.spans) {
      const auto [lane, fresh] = lanes.try_emplace(s.lane, static_cast<int>(lanes.size()));
      if (fresh)
        events.push_back({{"name", "thread_name"},
                          {"ph", "M"},
                          {"pid", 1},
                          {"tid", lane->second},
                          {"args", {{"name", s.lane}}}});
      events.push_back({{"name", s.name},
                        {"cat", r.kernel},
                        {"ph", "X"},
                        {"pid", 1},
                        {"tid", lane->second},
                        {"ts", (s.begin - start) * 1e6},
                        {"dur", s.seconds * 1e6},
                        {"args", {{"kernel", r.kernel}, {"detail", s.detail}}}});
    }
  std::ofstream out(file, std::ios::trunc);
  out << json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(
             1, ' ', false, json::error_handler_t::replace)
      << '\n';
  out.close();
  if (!out) throw EnvironmentError("the trace could not be written to " + file.string());
}

}  // namespace kiln
