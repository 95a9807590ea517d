// A checker of Prometheus' text format, written from its description and not from Kiln's writer:
// https://prometheus.io/docs/instrumenting/exposition_formats/ and, for names and units,
// https://prometheus.io/docs/practices/naming/
#pragma once

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kiln::test {

class PrometheusText {
 public:
  using Labels = std::map<std::string, std::string>;
  struct Sample {
    std::string name;
    Labels labels;
    double value;
  };
  struct Family {
    std::string type, help;
    std::vector<Sample> samples;
  };

  explicit PrometheusText(const std::string& text) {
    if (text.empty() || text.back() != '\n') wrong("the last line does not end");
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      line(text.substr(begin, end - begin));
    for (const auto& [name, family] : families) check(name, family);
  }

  std::map<std::string, Family> families;
  std::vector<std::string> problems;

  std::optional<double> value(const std::string& name, const Labels& labels = {}) const {
    for (const auto& [_, family] : families)
      for (const Sample& sample : family.samples)
        if (sample.name == name && sample.labels == labels) return sample.value;
    return {};
  }

 private:
  void wrong(const std::string& what) { problems.push_back(what); }

  static bool is_name(const std::string& text, bool colons) {
    if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
    for (const char c : text)
      if (!(c == '_' || (c == ':' && colons) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
            (c >= 'A' && c <= 'Z')))
        return false;
    return true;
  }

  void line(const std::string& text) {
    if (text.empty()) return;
    if (text[0] == '#') return comment(text);
    sample(text);
  }

  void comment(const std::string& text) {
    const bool help = text.starts_with("# HELP "), type = text.starts_with("# TYPE ");
    if (!help && !type) return wrong("a comment that means nothing: " + text);
    const std::size_t end = text.find(' ', 7);
    if (end == std::string::npos) return wrong("nothing follows the name: " + text);
    const std::string name = text.substr(7, end - 7), rest = text.substr(end + 1);
    if (!is_name(name, true)) return wrong("no name of a metric: " + text);
    if (help) {
      if (!seen_.insert(name).second) wrong("a family stands there twice: " + name);
      current_ = name;
      for (std::size_t i = 0; i < rest.size(); ++i)
        if (rest[i] == '\\' && (++i == rest.size() || (rest[i] != '\\' && rest[i] != 'n')))
          wrong("an escape that there is not: " + text);
      families[name].help = rest;
    } else {
      if (name != current_ || !families[name].samples.empty())
        wrong("TYPE does not follow HELP: " + text);
      if (rest != "counter" && rest != "gauge" && rest != "histogram")
        wrong("an unknown type: " + text);
      families[name].type = rest;
    }
  }

  void sample(const std::string& text) {
    std::size_t at = text.find_first_of("{ ");
    if (at == std::string::npos) return wrong("a sample without a value: " + text);
    Sample sample{text.substr(0, at), {}, 0};
    if (!is_name(sample.name, true)) return wrong("no name of a metric: " + text);
    if (text[at] == '{') {
      ++at;
      while (at < text.size() && text[at] != '}') {
        const std::size_t equals = text.find("=\"", at);
        if (equals == std::string::npos) return wrong("a label without a value: " + text);
        const std::string label = text.substr(at, equals - at);
        if (!is_name(label, false)) return wrong("no name of a label: " + text);
        std::string value;
        for (at = equals + 2; at < text.size() && text[at] != '"'; ++at) {
          if (text[at] != '\\') {
            value += text[at];
          } else if (const char c = ++at < text.size() ? text[at] : '?'; c == 'n') {
            value += '\n';
          } else if (c == '\\' || c == '"') {
            value += c;
          } else {
            return wrong("an escape that there is not: " + text);
          }
        }
        if (at >= text.size()) return wrong("a label value that does not end: " + text);
        if (!sample.labels.emplace(label, value).second) wrong("a label twice: " + text);
        if (++at < text.size() && text[at] == ',') ++at;
      }
      if (at >= text.size()) return wrong("labels that do not end: " + text);
      ++at;
    }
    if (at >= text.size() || text[at] != ' ') return wrong("no space before the value: " + text);
    const std::string number = text.substr(at + 1);
    char* end = nullptr;
    sample.value = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0' || number[0] == ' ') wrong("no number: " + text);
    if (!sample.name.starts_with(current_)) return wrong("a sample outside its family: " + text);
    if (!samples_.emplace(sample.name, sample.labels).second) wrong("a sample twice: " + text);
    families[current_].samples.push_back(std::move(sample));
  }

  void check(const std::string& name, const Family& family) {
    if (family.type.empty()) wrong(name + " has no TYPE");
    if (family.help.empty()) wrong(name + " has no HELP");
    if ((family.type == "counter") != name.ends_with("_total"))
      wrong(name + ": counters, and nothing else, end in _total");
    for (const char* unit : {"_ms", "_us", "_milliseconds", "_kb", "_mb", "_kilobytes"})
      if (name.find(unit) != std::string::npos) wrong(name + " is not in a base unit");
    if (family.type == "histogram") return check_histogram(name, family);
    std::set<std::set<std::string>> label_sets;
    for (const Sample& sample : family.samples) {
      if (sample.name != name) wrong(sample.name + " does not belong to " + name);
      if (!(sample.value >= 0) || std::isinf(sample.value)) wrong(name + " is no count");
      std::set<std::string> labels;
      for (const auto& [label, _] : sample.labels) labels.insert(label);
      label_sets.insert(labels);
    }
    if (label_sets.size() > 1) wrong(name + ": its samples have different labels");
  }

  void check_histogram(const std::string& name, const Family& family) {
    double bound = -INFINITY, below = 0, infinite = -1, count = -2;
    bool sum = false;
    for (const Sample& sample : family.samples) {
      if (sample.name == name + "_bucket") {
        if (!sample.labels.contains("le")) return wrong(name + ": a bucket without le");
        const std::string& le = sample.labels.at("le");
        const double here = le == "+Inf" ? INFINITY : std::strtod(le.c_str(), nullptr);
        if (here <= bound) wrong(name + ": buckets out of order at " + le);
        if (sample.value < below) wrong(name + ": buckets do not add up at " + le);
        bound = here, below = sample.value;
        if (std::isinf(here)) infinite = sample.value;
      } else if (sample.name == name + "_count") {
        count = sample.value;
      } else if (sample.name == name + "_sum") {
        sum = true;
      } else {
        wrong(sample.name + " does not belong to a histogram");
      }
    }
    if (infinite != count) wrong(name + ": the last bucket is not the count");
    if (!sum) wrong(name + " has no _sum");
  }

  std::string current_ = "nothing";
  std::set<std::string> seen_;
  std::set<std::pair<std::string, Labels>> samples_;
};

}  // namespace kiln::test
