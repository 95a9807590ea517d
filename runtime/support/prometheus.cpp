// https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4)
#include <algorithm>
#include <charconv>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/detail/runtime_metric_table.hpp"
#include "kiln/runtime_metrics.hpp"

namespace kiln {

namespace {

using detail::RuntimeMetric;

/// Label values are in quotation marks, help texts are not.
std::string escaped(std::string_view text, bool quoted) {
  std::string out;
  for (const char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\\' || (c == '"' && quoted))
      (out += '\\') += c;
    else
      out += c;
  }
  return out;
}

/// The shortest text that reads back as the same number, whatever the locale.
std::string text_of(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

std::vector<std::string_view> split(std::string_view names) {
  std::vector<std::string_view> parts;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(','), names.size());
    parts.push_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return parts;
}

class Writer {
 public:
  Writer(std::ostream& out, const RuntimeMetrics& metrics) : out_(out), metrics_(metrics) {}

  void write(const RuntimeMetric& metric) {
    metric_ = &metric;
    out_ << "# HELP " << metric.name << ' ' << escaped(metric.help, false) << "\n# TYPE "
         << metric.name << ' ' << to_string(metric.type) << '\n';
    std::visit([this](auto member) { samples(metrics_.*member); }, metric.member);
  }

 private:
  void samples(std::uint64_t value) { sample("", "", value); }

  void samples(const MetricSeries& series) {
    const std::vector<std::string_view> names = split(metric_->labels);
    for (const auto& [values, count] : series) {
      std::string labels;
      for (std::size_t i = 0; i < names.size() && i < values.size(); ++i)
        ((((labels += i ? "," : "") += names[i]) += "=\"") += escaped(values[i], true)) += '"';
      sample("", labels, count);
    }
  }

  void samples(const Histogram& histogram) {
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
      below += histogram.counts[i];
      const bool last = i >= histogram.bounds.size();
      sample("_bucket", "le=\"" + (last ? "+Inf" : text_of(histogram.bounds[i])) + "\"", below);
    }
    out_ << metric_->name << "_sum " << text_of(histogram.sum) << '\n';
    sample("_count", "", below);
  }

  void sample(const char* suffix, const std::string& labels, std::uint64_t value) {
    out_ << metric_->name << suffix;
    if (!labels.empty()) out_ << '{' << labels << '}';
    out_ << ' ' << std::to_string(value) << '\n';
  }

  std::ostream& out_;
  const RuntimeMetrics& metrics_;
  const RuntimeMetric* metric_ = nullptr;
};

}  // namespace

void write_prometheus(std::ostream& out, const RuntimeMetrics& metrics) {
  Writer writer(out, metrics);
  for (const RuntimeMetric& metric : detail::kRuntimeMetrics) writer.write(metric);
}

}  // namespace kiln
