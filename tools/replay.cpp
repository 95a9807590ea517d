#include "kiln/replay.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "tools/commands.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

struct ReplayRequest {
  std::vector<std::string> files, prior;
  ReplayOptions options;
  std::int64_t budget = 200, repeats = 100, prior_evaluations = 0;
};

/// One strategy on every space.
struct Row {
  std::string strategy;
  std::vector<ReplayResult> results;  ///< by space

  double mean(std::size_t evaluations) const {
    double sum = 0;
    for (const ReplayResult& r : results) sum += r.at(evaluations).mean;
    return sum / static_cast<double>(results.size());
  }
  double min() const { return std::ranges::min_element(results, {}, &ReplayResult::min)->min; }
  double wall() const {
    double sum = 0;
    for (const ReplayResult& r : results) sum += r.wall_seconds;
    return sum;
  }
};

json replay_json(const ReplayResult& r, const RecordedSpace& space) {
  json curve = json::array();
  for (const ReplayPoint& p : r.curve) curve.push_back({p.evaluations, p.mean});
  return {{"strategy", r.strategy},
          {"space", space.name()},
          {"configs", space.size()},
          {"evaluations", r.evaluations},
          {"evaluations_used", r.used},
          {"repeats", r.repeats},
          {"optimum_ms", r.optimum * 1e3},
          {"fraction_of_optimum", {{"mean", r.mean}, {"min", r.min}}},
          {"curve", curve},
          {"device_s", r.device_seconds},
          {"wall_s", r.wall_seconds}};
}

json replay_json(const Row& row, const std::vector<SearchReplay>& spaces) {
  if (row.results.size() == 1) return replay_json(row.results[0], spaces[0].space());
  json each = json::array(), curve = json::array();
  for (std::size_t i = 0; i < spaces.size(); ++i)
    each.push_back(replay_json(row.results[i], spaces[i].space()));
  for (const ReplayPoint& p : row.results[0].curve)
    curve.push_back({p.evaluations, row.mean(p.evaluations)});
  return {
      {"strategy", row.strategy},
      {"evaluations", row.results[0].evaluations},
      {"repeats", row.results[0].repeats},
      {"fraction_of_optimum", {{"mean", row.mean(row.results[0].evaluations)}, {"min", row.min()}}},
      {"curve", curve},
      {"wall_s", row.wall()},
      {"spaces", each}};
}

/// The evaluations that get a column.
std::vector<std::size_t> columns(std::size_t budget, bool early) {
  std::vector<std::size_t> at;
  if (early)
    for (std::size_t n : {5, 10})
      if (n < budget) at.push_back(n);
  for (std::size_t n : {25, 50, 100, 200, 500, 1000})
    if (n < budget) at.push_back(n);
  at.push_back(budget);
  return at;
}

void print(const std::vector<Row>& rows, const std::vector<SearchReplay>& spaces,
           const ReplayOptions& options) {
  for (const SearchReplay& s : spaces)
    std::printf("%s: %zu configs, %zu work, optimum %.6g ms\n", s.space().name().c_str(),
                s.space().size(), s.space().works(), s.space().optimum() * 1e3);
  std::printf("mean fraction of the optimum after N evaluations, %zu searches%s%s\n\n",
              options.repeats, spaces.size() > 1 ? " on each space" : "",
              options.noise ? ", told single noisy repeats" : "");
  std::size_t width = 8;
  for (const Row& row : rows) width = std::max(width, row.strategy.size());
  const auto at = columns(options.budget, !options.prior.empty());
  std::printf("%-*s", static_cast<int>(width), "strategy");
  for (std::size_t n : at) std::printf(" %7zu", n);
  std::printf(" %7s %7s", "worst", "wall s");
  if (spaces.size() > 1)
    for (const SearchReplay& s : spaces) std::printf(" %14.14s", s.space().name().c_str());
  std::puts("");
  for (const Row& row : rows) {
    std::printf("%-*s", static_cast<int>(width), row.strategy.c_str());
    for (std::size_t n : at) std::printf(" %7.4f", row.mean(n));
    std::printf(" %7.4f %7.2f", row.min(), row.wall());
    if (spaces.size() > 1)
      for (const ReplayResult& r : row.results) std::printf(" %14.4f", r.mean);
    std::puts("");
  }
}

int run_replay(const Context& context, ReplayRequest request) {
  ReplayOptions& options = request.options;
  if (request.budget <= 0)
    throw UserError(format("--budget: {} evaluations find nothing", request.budget));
  if (request.repeats <= 0)
    throw UserError(format("--repeats: {} searches show nothing", request.repeats));
  options.budget = static_cast<std::size_t>(request.budget);
  options.repeats = static_cast<std::size_t>(request.repeats);
  if (request.prior_evaluations < 0 || (request.prior_evaluations > 0 && request.prior.empty()))
    throw UserError(request.prior.empty() ? "--prior-evaluations: there is no --prior"
                                          : format("--prior-evaluations: {} tell nothing",
                                                   request.prior_evaluations));
  options.prior_evaluations = static_cast<std::size_t>(request.prior_evaluations);
  for (const std::string& file : request.prior) options.prior.emplace_back(file);
  const bool all = options.strategy == "all";
  std::vector<std::string> strategies{options.strategy};
  if (all) strategies = search_strategies();
  if (options.strategy.empty()) strategies = {default_search_strategy()};

  std::vector<SearchReplay> spaces;
  for (const std::string& file : request.files) spaces.emplace_back(RecordedSpace(file));
  std::vector<Row> rows;
  for (const std::string& name : strategies) {
    Row& row = rows.emplace_back(Row{name, {}});
    options.strategy = name;
    for (const SearchReplay& space : spaces) row.results.push_back(space.run(options));
  }
  std::ranges::stable_sort(rows, std::greater(),
                           [&](const Row& row) { return row.mean(options.budget); });
  if (!context.json) {
    print(rows, spaces, options);
    return kDone;
  }
  json list = json::array();
  for (const Row& row : rows) {
    list.push_back(replay_json(row, spaces));
    list.back()["seed"] = options.seed;
    list.back()["noise"] = options.noise;
    list.back()["prior"] = request.prior;
  }
  std::puts((all ? list : list[0]).dump(2, ' ', false, json::error_handler_t::replace).c_str());
  return kDone;
}

}  // namespace

void add_replay(CLI::App& app, Context& context) {
  auto* replay = app.add_subcommand(
      "replay",
      "Run search strategies on measured spaces and show how close they get to the optimum");
  const auto request = std::make_shared<ReplayRequest>();
  replay->add_option("space", request->files, "T4 results files, plain or gzip")->required();
  replay->add_option("--strategy", request->options.strategy,
                     "Its name, or `all` for a table, best first; none: the default strategy");
  replay->add_option("--budget", request->budget, "Configs to evaluate, failing ones included")
      ->capture_default_str();
  replay->add_option("--repeats", request->repeats, "Number of searches, each with its own seed")
      ->capture_default_str();
  replay
      ->add_option("--seed", request->options.seed,
                   "Seed of the first search; each further search adds 1")
      ->capture_default_str();
  replay->add_option(
      "--prior", request->prior,
      "T4 files of the same kernel's other problems or devices, to learn from first");
  replay->add_option("--prior-evaluations", request->prior_evaluations,
                     "Use only what a search of this many configs finds out of each; 0: all");
  replay->add_flag("--noise", request->options.noise,
                   "Tell the strategy single raw repeats instead of their mean");
  replay->add_flag("--json", context.json, "Print JSON");
  replay->callback([&context, request] {
    context.run = [&context, request] { return run_replay(context, *request); };
  });
}

}  // namespace kiln::tools
