// What the Trace Event Format asks of a file, and what arrows must be for a viewer to draw them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace kiln::test {

/// What is wrong with a trace; empty: nothing.
inline std::vector<std::string> trace_problems(const nlohmann::json& trace) {
  std::vector<std::string> problems;
  const auto wrong = [&](const std::string& what, const nlohmann::json& event) {
    problems.push_back(what + ": " + event.dump());
  };
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
    return {"there is no list traceEvents"};
  struct Slice {
    double begin, end;
  };
  std::map<std::pair<int, int>, std::vector<Slice>> slices;
  std::map<int, nlohmann::json> starts, ends;
  std::set<std::pair<int, int>> named;
  for (const auto& event : trace["traceEvents"]) {
    if (!event.is_object() || !event.contains("ph") || !event["ph"].is_string() ||
        !event.contains("pid") || !event["pid"].is_number_integer() || !event.contains("name") ||
        !event["name"].is_string()) {
      wrong("an event without ph, pid or name", event);
      continue;
    }
    const std::string phase = event["ph"];
    if (phase == "M") {
      const std::string what = event["name"];
      if (what != "process_name" && what != "thread_name") wrong("unknown metadata", event);
      if (!event.contains("args") || !event["args"].value("name", nlohmann::json()).is_string())
        wrong("metadata without a name", event);
      if (what == "thread_name") named.emplace(event["pid"], event.value("tid", -1));
      continue;
    }
    if (!event.contains("tid") || !event["tid"].is_number_integer() || !event.contains("ts") ||
        !event["ts"].is_number()) {
      wrong("an event without tid or ts", event);
      continue;
    }
    const std::pair<int, int> lane(event["pid"], event["tid"]);
    if (!named.contains(lane)) wrong("a lane without a name before it", event);
    const double at = event["ts"];
    if (at < 0) wrong("a time before the start", event);
    if (phase == "i") {
      if (event.value("s", "") != "g") wrong("an instant that is not of the whole trace", event);
      continue;
    }
    if (phase == "X") {
      if (!event.contains("dur") || !event["dur"].is_number() || event["dur"] < 0)
        wrong("a slice without a duration", event);
      else
        slices[lane].push_back({at, at + event["dur"].get<double>()});
    } else if (phase == "s" || phase == "f") {
      if (!event.contains("id") || !event["id"].is_number_integer())
        wrong("an arrow without an id", event);
      else if (!(phase == "s" ? starts : ends).emplace(event["id"], event).second)
        wrong("an arrow with two ends of a kind", event);
      if (phase == "f" && event.value("bp", "") != "e") wrong("an arrow to the next slice", event);
    } else {
      wrong("an unknown phase", event);
    }
  }
  for (const auto& [id, start] : starts)
    if (!ends.contains(id))
      wrong("an arrow without an end", start);
    else if (ends[id]["ts"] < start["ts"])
      wrong("an arrow back in time", start);
    else if (ends[id]["cat"] != start["cat"] || ends[id]["name"] != start["name"])
      wrong("an arrow whose ends differ", start);
  for (const auto& all : {starts, ends})
    for (const auto& [id, arrow] : all) {
      if (!starts.contains(id)) wrong("an arrow without a start", arrow);
      bool inside = false;
      for (const Slice& s : slices[{arrow["pid"], arrow["tid"]}])
        inside = inside || (arrow["ts"] >= s.begin && arrow["ts"] <= s.end);
      if (!inside) wrong("an arrow that touches no slice", arrow);
    }
  return problems;
}

}  // namespace kiln::test
