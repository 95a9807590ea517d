#include <algorithm>

#include <nlohmann/json.hpp>

#include "kiln/prepare.hpp"

namespace kiln {

using nlohmann::json;

const char* to_string(PrepareWork work) noexcept {
  switch (work) {
    case PrepareWork::tune:
      return "tune";
    case PrepareWork::compile:
      return "compile";
    case PrepareWork::look_up:
      return "look_up";
  }
  return "";
}

const char* to_string(PreparedState state) noexcept {
  switch (state) {
    case PreparedState::waiting:
      return "waiting";
    case PreparedState::tuned:
      return "tuned";
    case PreparedState::known:
      return "known";
    case PreparedState::untuned:
      return "untuned";
    case PreparedState::on_default:
      return "on_default";
    case PreparedState::missing:
      return "missing";
    case PreparedState::failed:
      return "failed";
  }
  return "";
}

const char* to_string(PrepareProgress::Step step) noexcept {
  switch (step) {
    case PrepareProgress::Step::check:
      return "check";
    case PrepareProgress::Step::compile:
      return "compile";
    case PrepareProgress::Step::load:
      return "load";
    case PrepareProgress::Step::tune:
      return "tune";
    case PrepareProgress::Step::done:
      return "done";
  }
  return "";
}

std::size_t PrepareReport::count(PreparedState state) const noexcept {
  return static_cast<std::size_t>(std::ranges::count(problems, state, &PreparedProblem::state));
}

std::size_t PrepareReport::ready() const noexcept {
  return count(PreparedState::tuned) + count(PreparedState::known) + count(PreparedState::untuned) +
         count(PreparedState::on_default);
}

bool PrepareReport::complete() const noexcept {
  return std::ranges::all_of(problems, [](const PreparedProblem& p) {
    const bool as_asked = p.state == PreparedState::tuned || p.state == PreparedState::known ||
                          p.state == PreparedState::untuned;
    return as_asked && p.why.empty();
  });
}

namespace {

json as_json(const Missing& missing) {
  json differences = json::array();
  for (const FieldDifference& d : missing.differences)
    differences.push_back({{"field", d.field}, {"wanted", d.wanted}, {"found", d.found}});
  return {{"instance", missing.instance}, {"why", missing.why}, {"differences", differences}};
}

json as_json(const PreparedProblem& p) {
  json j{{p.is_choice ? "choice" : "kernel", p.kernel},
         {"types", p.types},
         {"problem", p.problem},
         {"config", p.config},
         {"state", to_string(p.state)},
         {"wall_s", p.seconds}};
  if (p.is_choice) j["alternative"] = p.alternative;
  if (!p.why.empty()) j["why"] = p.why;
  if (p.missing) j["missing"] = as_json(*p.missing);
  return j;
}

}  // namespace

std::string to_json(const PrepareReport& report) {
  json counts = json::object(), problems = json::array();
  for (int i = 0; i <= static_cast<int>(PreparedState::failed); ++i) {
    const auto state = static_cast<PreparedState>(i);
    counts[to_string(state)] = report.count(state);
  }
  for (const PreparedProblem& p : report.problems) problems.push_back(as_json(p));
  json j{{"work", to_string(report.work)},
         {"complete", report.complete()},
         {"ready", report.ready()},
         {"counts", counts},
         {"instances", report.instances},
         {"compiled", report.compiled},
         {"searched", report.searched},
         {"evaluated", report.evaluated},
         {"wall_s", report.seconds},
         {"compile_s", report.compile_seconds},
         {"load_s", report.load_seconds},
         {"tune_s", report.tune_seconds},
         {"stopped", report.stopped},
         {"out_of_time", report.out_of_time},
         {"problems", problems}};
  if (report.device_bytes) j["device_bytes"] = *report.device_bytes;
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace kiln
