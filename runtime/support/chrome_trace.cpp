// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event
// Format"): complete events, flow events that bind to the slice around them, and names.
#include "runtime/support/chrome_trace.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln/error.hpp"

namespace kiln::runtime {

namespace {

using nlohmann::json;

class Events {
 public:
  explicit Events(double start) : start_(start) {}

  void add(const TraceSlice& slice) {
    const Place at = place(slice);
    list_.push_back({{"name", slice.name},
                     {"cat", slice.kernel.empty() ? "kiln" : slice.kernel},
                     {"ph", "X"},
                     {"pid", at.process},
                     {"tid", at.lane},
                     {"ts", time(slice.begin)},
                     {"dur", slice.seconds * 1e6},
                     {"args", {{"kernel", slice.kernel}, {"detail", slice.detail}}}});
    if (slice.failed) list_.back()["args"]["failed"] = true;
    const auto config = std::tuple(at.process, slice.kernel, slice.detail);
    if (slice.name == "compile" || slice.name == "find") {
      made_.insert_or_assign(config, std::pair(at, slice.begin));
    } else if (slice.name == "load") {
      if (const auto made = made_.find(config); made != made_.end())
        arrow(made->second.first, made->second.second, at, slice.begin);
      loaded_.insert_or_assign(config, std::pair(at, slice.begin));
    } else if (const auto loaded = loaded_.find(config);
               slice.name == "swap" && loaded != loaded_.end()) {
      arrow(loaded->second.first, loaded->second.second, at, slice.begin);
    }
  }

  /// After the slice that ended last.
  void add_dropped(const TraceSlice& last, std::uint64_t count) {
    const Place at = place(last);
    list_.push_back({{"name", std::to_string(count) + " later spans are not in this trace"},
                     {"ph", "i"},
                     {"s", "g"},
                     {"pid", at.process},
                     {"tid", at.lane},
                     {"ts", time(last.begin + last.seconds)}});
  }

  json take() { return std::move(list_); }

 private:
  struct Place {
    int process, lane;
  };

  double time(double seconds) const { return (seconds - start_) * 1e6; }

  Place place(const TraceSlice& slice) {
    const int process = slice.process.number;
    const auto [lanes, new_process] = lanes_.try_emplace(process);
    if (new_process && !slice.process.name.empty())
      list_.push_back({{"name", "process_name"},
                       {"ph", "M"},
                       {"pid", process},
                       {"args", {{"name", slice.process.name}}}});
    const auto [lane, new_lane] =
        lanes->second.try_emplace(slice.lane, static_cast<int>(lanes->second.size()));
    if (new_lane)
      list_.push_back({{"name", "thread_name"},
                       {"ph", "M"},
                       {"pid", process},
                       {"tid", lane->second},
                       {"args", {{"name", slice.lane}}}});
    return {process, lane->second};
  }

  void arrow(Place from, double begin, Place to, double end) {
    const int id = ++arrows_;
    const auto event = [&](const char* phase, Place at, double when) {
      return json{{"name", "binary"},  {"cat", "binary"}, {"ph", phase},     {"id", id},
                  {"pid", at.process}, {"tid", at.lane},  {"ts", time(when)}};
    };
    list_.push_back(event("s", from, begin));
    list_.push_back(event("f", to, end));
    list_.back()["bp"] = "e";
  }

  const double start_;
  json list_ = json::array();
  std::map<int, std::map<std::string, int>> lanes_;  ///< by process
  /// Where configs were compiled last: process, kernel, config.
  std::map<std::tuple<int, std::string, std::string>, std::pair<Place, double>> made_;
  /// Likewise, where they were loaded last.
  std::map<std::tuple<int, std::string, std::string>, std::pair<Place, double>> loaded_;
  int arrows_ = 0;
};

}  // namespace

void ChromeTrace::write(const std::filesystem::path& file, double start,
                        std::uint64_t dropped) const {
  // A load must not be met before its compile: spans are added when they end, on many threads.
  std::vector<const TraceSlice*> ordered;
  for (const TraceSlice& slice : slices_) ordered.push_back(&slice);
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto* a, const auto* b) { return a->begin < b->begin; });
  Events events(start);
  for (const TraceSlice* slice : ordered) events.add(*slice);
  json trace{{"displayTimeUnit", "ms"}};
  if (dropped > 0 && !ordered.empty()) {
    events.add_dropped(**std::ranges::max_element(
                           ordered, {}, [](const auto* s) { return s->begin + s->seconds; }),
                       dropped);
    trace["otherData"] = {{"dropped", dropped}};
  }
  trace["traceEvents"] = events.take();
  std::ofstream out(file, std::ios::trunc);
  out << trace.dump(1, ' ', false, json::error_handler_t::replace) << '\n';
  out.close();
  if (!out) throw EnvironmentError("the trace could not be written to " + file.string());
}

}  // namespace kiln::runtime
