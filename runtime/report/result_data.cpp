#include "runtime/report/result_data.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/detail/metric_table.hpp"
#include "kiln/report.hpp"
#include "runtime/support/infinity.hpp"
#include "runtime/tune/candidates.hpp"

namespace kiln::runtime {

using detail::format;
using nlohmann::json;

namespace {

constexpr double kDeviations = 1.96;
/// All pairs of samples are looked at.
constexpr std::size_t kMostSamples = 128;
/// Of a compiler's log.
constexpr std::size_t kMostText = 2000;

bool measured(const Candidate& c) { return c.status == CandidateStatus::measured; }

bool winner_is_measured(const TuneResult& result) { return measured(result.winner()); }

/// Each text once; a column has its number.
class Texts {
 public:
  json add(const std::string& text) {
    if (text.empty()) return nullptr;
    const auto [place, added] = places_.emplace(text, texts_.size());
    if (added) texts_.push_back(text);
    return place->second;
  }
  json all() const { return texts_; }

 private:
  std::map<std::string, std::size_t> places_;
  json texts_ = json::array();
};

std::string cut(const std::string& text) {
  return text.size() <= kMostText ? text : text.substr(0, kMostText) + " ...";
}

/// Candidates in the order in which their outcomes were known: by time where all have one, else in
/// the order of the result.
std::vector<std::size_t> in_order(const TuneResult& result) {
  std::vector<std::size_t> order;
  bool timed = true;
  for (std::size_t i = 0; i < result.candidates.size(); ++i) {
    if (!was_built(result.candidates[i])) continue;
    order.push_back(i);
    timed = timed && result.candidates[i].after_seconds > 0;
  }
  if (timed)
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return result.candidates[a].after_seconds < result.candidates[b].after_seconds;
    });
  return order;
}

/// Each improvement, and where the search ended.
json best_so_far(const TuneResult& result, const std::vector<std::size_t>& order) {
  json path = json::array();
  double best = kInfinity;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const Candidate& c = result.candidates[order[place]];
    const bool better = measured(c) && c.seconds < best;
    if (better) best = c.seconds;
    if (best == kInfinity || (!better && place + 1 != order.size())) continue;
    json step{{"evaluation", place + 1}, {"best", shortened(best)}};
    if (c.after_seconds > 0) step["after"] = shortened(c.after_seconds);
    path.push_back(std::move(step));
  }
  return path;
}

/// What each alternative of a choice came to, and why others took no part. Null without a choice.
json alternatives_of(const TuneResult& result) {
  const auto names = result.enumerators.find(kAlternative);
  if (result.parameters.empty() || result.parameters[0] != kAlternative ||
      names == result.enumerators.end())
    return nullptr;
  json all = json::array();
  for (const auto& [id, name] : names->second) {
    std::size_t tried = 0, failed = 0;
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < result.candidates.size(); ++i) {
      const Candidate& c = result.candidates[i];
      if (c.config[0] != id) continue;
      ++tried;
      failed += measured(c) ? 0 : 1;
      if (measured(c) && (!best || c.seconds < result.candidates[*best].seconds)) best = i;
    }
    if (tried == 0) continue;
    // The winner stands for its alternative, though another of it may be listed faster.
    if (winner_is_measured(result) && result.winner().config[0] == id) best = result.winner_index;
    json j{{"name", name}, {"candidates", tried}, {"failed", failed}};
    if (best) j["best"] = *best;
    all.push_back(std::move(j));
  }
  for (const LeftOut& one : result.left_out)
    all.push_back(
        {{"name", one.name}, {"candidates", 0}, {"failed", 0}, {"why_not", cut(one.why)}});
  return all;
}

json candidates_by_columns(const TuneResult& result, Texts& texts) {
  json columns{{"config", json::array()}, {"status", json::array()}, {"seconds", json::array()},
               {"low", json::array()},    {"high", json::array()},   {"samples", json::array()},
               {"after", json::array()},  {"why", json::array()},    {"registers", json::array()},
               {"spill", json::array()},  {"shared", json::array()}, {"host", json::array()}};
  const auto number = [](bool known, double value) {
    return known ? json(shortened(value)) : json();
  };
  for (std::size_t i = 0; i < result.candidates.size(); ++i) {
    const Candidate& c = result.candidates[i];
    const auto interval = interval_of(c);
    columns["config"].push_back(c.config);
    columns["status"].push_back(texts.add(to_string(c.status)));
    columns["seconds"].push_back(number(measured(c), c.seconds));
    columns["low"].push_back(number(interval.has_value(), interval ? interval->low : 0));
    columns["high"].push_back(number(interval.has_value(), interval ? interval->high : 0));
    columns["samples"].push_back(c.samples.size());
    columns["after"].push_back(number(c.after_seconds > 0, c.after_seconds));
    columns["why"].push_back(texts.add(why_it_lost(result, i)));
    columns["registers"].push_back(c.resources.registers);
    columns["spill"].push_back(c.resources.spill_bytes);
    columns["shared"].push_back(c.resources.shared_bytes);
    columns["host"].push_back(number(c.host_seconds > 0, c.host_seconds));
  }
  return columns;
}

}  // namespace

double shortened(double value) {
  char text[32];
  const auto end =
      std::to_chars(std::begin(text), std::end(text), value, std::chars_format::general, 7).ptr;
  std::from_chars(std::begin(text), end, value);
  return value;
}

std::optional<Interval> interval_of(const Candidate& c) {
  if (!measured(c)) return {};
  std::vector<double> samples = c.samples;
  if (const std::size_t step = (samples.size() + kMostSamples - 1) / kMostSamples; step > 1) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < samples.size(); i += step) samples[kept++] = samples[i];
    samples.resize(kept);
  }
  Interval interval = hodges_lehmann(samples, kDeviations);
  if (!std::isfinite(interval.low) || !std::isfinite(interval.high) || !(interval.estimate > 0))
    return {};
  const double scale = c.seconds / interval.estimate;
  // A finalist's time does not follow from its samples alone.
  return Interval{c.seconds, std::min(interval.low * scale, c.seconds),
                  std::max(interval.high * scale, c.seconds)};
}

std::string why_it_lost(const TuneResult& result, std::size_t candidate) {
  const Candidate& c = result.candidates[candidate];
  if (candidate == result.winner_index && winner_is_measured(result)) return {};
  if (!measured(c)) return c.reason.empty() ? to_string(c.status) : cut(c.reason);
  if (!winner_is_measured(result)) return "there is no winner";
  const double behind = c.seconds / result.winner().seconds - 1;
  if (behind < 0) return format("listed {:.2g} % faster, but not certainly", -100 * behind);
  const std::string slower = behind >= 1 ? format("{:.1f} times the winner's time", behind + 1)
                                         : format("{:.2g} % slower", 100 * behind);
  const auto own = interval_of(c), best = interval_of(result.winner());
  // If samples are few, as losers' are, the extreme ones count.
  std::vector<double> few = c.samples, winners = result.winner().samples;
  few.push_back(c.seconds);
  winners.push_back(result.winner().seconds);
  const double least = own ? own->low : *std::min_element(few.begin(), few.end());
  const double most = best ? best->high : *std::max_element(winners.begin(), winners.end());
  return least <= most ? slower + ", but not certainly: their samples overlap" : slower;
}

json result_data(const Reported& reported, const Roofline* roofline) {
  const TuneResult& result = reported.result;
  Texts texts;
  json parameters = json::array(), versions = json::object(), hardware = json::object(),
       counts = json::object(), rejected = json::array();
  for (const std::string& name : result.parameters) {
    json names = json::object();
    if (const auto known = result.enumerators.find(name); known != result.enumerators.end())
      for (const auto& [value, shown] : known->second) names[std::to_string(value)] = shown;
    parameters.push_back({{"name", name}, {"names", names}});
  }
  for (const KeyField& f : result.versions) versions[f.name] = f.value;
  for (const KeyField& f : reported.hardware) hardware[f.name] = f.value;
  for (const Candidate& c : result.candidates) {
    json& count = counts[to_string(c.status)];
    count = count.is_null() ? 1 : count.get<int>() + 1;
  }
  for (const SpaceCount::Rejection& r : result.space.rejected)
    rejected.push_back({{"reason", r.reason}, {"count", r.count}});
  const std::vector<std::size_t> order = in_order(result);
  json j{{"source", reported.source},
         {"kernel", result.kernel},
         {"device", result.device},
         {"hardware", hardware},
         {"versions", versions},
         {"parameters", parameters},
         {"candidates", candidates_by_columns(result, texts)},
         {"order", order},
         {"best_so_far", best_so_far(result, order)},
         {"alternatives", alternatives_of(result)},
         {"default", result.default_index},
         {"winner", winner_is_measured(result) ? json(result.winner_index) : json()},
         {"speedup", shortened(result.speedup())},
         {"why_not_the_fastest", why_not_the_fastest(result)},
         {"counts", counts},
         {"space",
          {{"combinations", result.space.combinations},
           {"allowed", result.space.allowed},
           {"exact", result.space.exact},
           {"rejected", rejected}}},
         {"strategy", result.strategy},
         {"complete", result.complete},
         {"end", to_string(result.end)},
         {"warnings", result.warnings},
         {"flops", std::isfinite(result.flops) ? result.flops : 0},
         {"bytes", std::isfinite(result.bytes) ? result.bytes : 0}};
  if (winner_is_measured(result))
    detail::add_metrics(j["rates"], detail::kCandidateMetrics,
                        metrics(result, result.winner(), roofline));
  if (result.wall_seconds > 0) detail::add_metrics(j["tuning"], detail::kTuningMetrics, result);
  if (const auto& a = result.agreed)
    j["ranks"] = {{"rank", a->rank},         {"size", a->size},
                  {"why", a->why},           {"outcome", to_string(a->outcome)},
                  {"measured", a->measured}, {"plan_digest", a->plan_digest}};
  j["texts"] = texts.all();
  return j;
}

}  // namespace kiln::runtime
