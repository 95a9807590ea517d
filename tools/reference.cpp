// `kiln reference`: the tables of variables, metrics and exit codes, which the rest of Kiln uses as
// well. docs/reference.md holds their Markdown, and tests/command/reference.py compares the two.
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/metric_table.hpp"
#include "kiln/detail/runtime_metric_table.hpp"
#include "tools/commands.hpp"
#include "tools/output.hpp"

namespace kiln::tools {

namespace {

using kiln::detail::VariableEntry;
using nlohmann::json;

struct Table {
  std::string name;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;

  std::string markdown() const {
    std::string text = row(columns) + "|" + [&] {
      std::string rule;
      for (std::size_t i = 0; i < columns.size(); ++i) rule += "---|";
      return rule;
    }() + "\n";
    for (const auto& cells : rows) text += row(cells);
    return text;
  }

  json objects() const {
    json list = json::array();
    for (const auto& cells : rows) {
      json object = json::object();
      for (std::size_t i = 0; i < columns.size(); ++i) object[columns[i]] = cells[i];
      list.push_back(std::move(object));
    }
    return list;
  }

 private:
  static std::string row(const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + cell + " |";
    return text + "\n";
  }
};

std::string code(const std::string& text) { return "`" + text + "`"; }

Table variables(const char* name, VariableEntry::Of of) {
  Table table{name, {"variable", "means", "default", "read when"}, {}};
  for (const VariableEntry& v : kiln::detail::kVariables)
    if (v.of == of) table.rows.push_back({code(v.name), v.meaning, v.fallback, v.read});
  return table;
}

template <class Subject, std::size_t N>
Table metrics_table(const char* name, const kiln::detail::Metric<Subject> (&metrics)[N]) {
  Table table{name, {"metric", "unit", "means"}, {}};
  for (const auto& m : metrics) table.rows.push_back({code(m.name), m.unit, m.meaning});
  return table;
}

Table runtime_metrics() {
  using kiln::detail::RuntimeMetric;
  Table table{"metrics of a runtime", {"metric", "type", "unit", "labels", "means"}, {}};
  for (const RuntimeMetric& m : kiln::detail::kRuntimeMetrics) {
    std::string labels = *m.labels ? code(m.labels) : std::string();
    for (std::size_t at = 0; (at = labels.find(',', at)) != std::string::npos; at += 4)
      labels.replace(at, 1, "`, `");
    table.rows.push_back({code(m.name), to_string(m.type), m.unit, labels, m.help});
  }
  return table;
}

Table exit_codes() {
  Table table{"exit codes", {"exit code", "means", "that is"}, {}};
  for (const ExitMeaning& e : kExitCodes)
    table.rows.push_back({std::to_string(e.code), e.meaning, e.detail});
  return table;
}

int run_reference(const Context& context) {
  const Table tables[] = {
      exit_codes(),
      variables("variables", VariableEntry::Of::kiln),
      variables("variables of others", VariableEntry::Of::system),
      metrics_table("metrics of a candidate", kiln::detail::kCandidateMetrics),
      metrics_table("metrics of a tuning", kiln::detail::kTuningMetrics),
      metrics_table("metrics of a device", kiln::detail::kRooflineMetrics),
      metrics_table("metrics of a store", kiln::detail::kStoreMetrics),
      runtime_metrics(),
  };
  json all = json::object();
  for (const Table& table : tables) {
    if (context.json)
      all[table.name] = table.objects();
    else
      print("<!-- kiln reference: " + table.name + " -->\n" + table.markdown() +
            "<!-- end -->\n\n");
  }
  if (context.json) print_json(all);
  return kDone;
}

}  // namespace

void add_reference(CLI::App& app, Context& context) {
  auto* reference =
      app.add_subcommand("reference", "Show all variables, metrics and exit codes, as Markdown");
  reference->add_flag("--json", context.json, "Print JSON");
  reference->callback([&context] { context.run = [&context] { return run_reference(context); }; });
}

}  // namespace kiln::tools
