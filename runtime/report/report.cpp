// kiln::Report: results by problem and device, totals, and the page around them.
#include "kiln/report.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/detail/installation.hpp"
#include "kiln/error.hpp"
#include "kiln/version.hpp"
#include "runtime/report/reported.hpp"
#include "runtime/report/result_data.hpp"

namespace kiln {

using detail::format;
using nlohmann::json;
using runtime::Reported;

namespace {

namespace fs = std::filesystem;

constexpr int kReportVersion = 1;

std::string kind_of(const Reported& r) {
  return r.result.device.substr(0, r.result.device.find(':'));
}

/// `host: AMD EPYC, level x86-64-v3, threads 2`; without what is known of the hardware just the
/// kind.
std::string device_of(const Reported& r) {
  std::string text = kind_of(r);
  for (const KeyField& field : r.hardware)
    text +=
        &field == &r.hardware.front() ? ": " + field.value : ", " + field.name + " " + field.value;
  return text;
}

bool is_choice(const TuneResult& result) {
  return !result.parameters.empty() && result.parameters[0] == runtime::kAlternative;
}

int rank_of(const Reported& r) { return r.result.agreed ? r.result.agreed->rank : 0; }

bool has_winner(const TuneResult& result) {
  return result.winner().status == CandidateStatus::measured;
}

/// A result that does not know its hardware counts for the only known device of its kind, if any.
std::vector<std::string> devices_of(const std::vector<Reported>& all) {
  std::map<std::string, std::set<std::string>> known;
  for (const Reported& r : all)
    if (!r.hardware.empty()) known[kind_of(r)].insert(device_of(r));
  std::vector<std::string> devices;
  for (const Reported& r : all) {
    const auto& of_kind = known[kind_of(r)];
    devices.push_back(r.hardware.empty() && of_kind.size() == 1 ? *of_kind.begin() : device_of(r));
  }
  return devices;
}

/// A disturbance only ever adds time.
double fastest(const Candidate& c) {
  return c.samples.empty()
             ? c.seconds
             : std::min(c.seconds, *std::min_element(c.samples.begin(), c.samples.end()));
}

/// Adds what a kernel of the roofline's has measured. False: it is another kernel.
bool tells_roofline(const TuneResult& result, Roofline& roofline) {
  struct Part {
    const char* kernel;
    double Roofline::* rate;
    double TuneResult::* amount;
  };
  static constexpr Part kParts[] = {
      {"roofline_copy", &Roofline::bytes_per_second, &TuneResult::bytes},
      {"roofline_fma", &Roofline::flops_per_second, &TuneResult::flops},
      {"roofline_mma", &Roofline::tensor_flops_per_second, &TuneResult::flops}};
  for (const Part& part : kParts) {
    if (result.kernel != part.kernel) continue;
    if (has_winner(result))
      roofline.*part.rate =
          std::max(roofline.*part.rate, result.*part.amount / fastest(result.winner()));
    return true;
  }
  return false;
}

json seconds_of(const Candidate& c) {
  return c.status == CandidateStatus::measured ? json(runtime::shortened(c.seconds)) : json();
}

/// Sums over a device's problems.
struct Totals {
  std::size_t problems = 0, untimed_defaults = 0;
  bool weighted = false;
  double base = 0, winner = 0;

  void add(const TuneResult& result, double weight) {
    if (!has_winner(result)) return;
    ++problems;
    const bool timed = result.default_candidate().status == CandidateStatus::measured;
    untimed_defaults += timed ? 0 : 1;
    winner += weight * result.winner().seconds;
    base += weight * (timed ? result.default_candidate() : result.winner()).seconds;
  }
};

json roofline_data(const Roofline& roof) {
  if (roof.bytes_per_second <= 0 && roof.flops_per_second <= 0) return nullptr;
  return {{"bytes_per_second", runtime::shortened(roof.bytes_per_second)},
          {"flops_per_second", runtime::shortened(roof.flops_per_second)},
          {"tensor_flops_per_second", runtime::shortened(roof.tensor_flops_per_second)}};
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in || text.empty())
    throw EnvironmentError(
        format("{} cannot be read: the installation of Kiln is not complete", file.string()));
  return text;
}

/// Whether the text has something that a script element may not hold.
bool ends_a_script(const std::string& text) {
  const auto has = [&](std::string_view what) {
    return std::search(text.begin(), text.end(), what.begin(), what.end(), [](char a, char b) {
             return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b;
           }) != text.end();
  };
  return has("</script") || has("<!--");
}

}  // namespace

struct Report::Data {
  struct Weight {
    std::string kernel;
    std::vector<std::string> types;
    Values problem;
    double weight;
  };
  std::vector<Reported> all;
  std::vector<PassedOver> passed_over;
  std::vector<Weight> weights;

  void add(Reported reported) {
    if (!(reported.weight >= 0) || !std::isfinite(reported.weight)) reported.weight = 0;
    all.push_back(std::move(reported));
  }

  /// What weigh() was given. Several problems may be measured as one: they add up.
  double given(const std::string& kernel, const std::vector<std::string>& types,
               const Values& problem) const {
    double sum = 0;
    for (const Weight& w : weights)
      if (w.kernel == kernel && w.types == types && w.problem == problem) sum += w.weight;
    return sum;
  }

  double weight_of(const std::vector<const Reported*>& results) const {
    const TuneResult& first = results.front()->result;
    if (const double own = given(first.kernel, first.types, first.problem); own > 0) return own;
    double weight = 0;
    // Other sources and ranks tell of the same launches.
    std::map<std::pair<std::string, int>, double> sums;
    for (const Reported* r : results) sums[{r->source, rank_of(*r)}] += r->weight;
    for (const auto& [from, sum] : sums) weight = std::max(weight, sum);
    return weight;
  }
};

Report::Report() : data_(std::make_unique<Data>()) {}
Report::Report(Report&&) noexcept = default;
Report& Report::operator=(Report&&) noexcept = default;
Report::~Report() = default;

void Report::add(const TuneResult& result, const std::string& source) {
  data_->add({.result = result, .source = source, .written = fs::file_time_type::clock::now()});
}

void Report::read(const fs::path& source) {
  const std::size_t before = data_->all.size(), passed_before = data_->passed_over.size();
  runtime::read_reported(
      source, [this](Reported reported) { data_->add(std::move(reported)); },
      [this](PassedOver passed) { data_->passed_over.push_back(std::move(passed)); });
  if (data_->all.size() > before) return;
  if (data_->passed_over.size() == passed_before)
    throw UserError(format("{} has no results of tunings", source.string()));
  const PassedOver& why = data_->passed_over[passed_before];
  throw UserError(format("{} has no results of tunings: {}{}", source.string(),
                         why.path == source ? "" : why.path.string() + ": ", why.why));
}

void Report::weigh(const std::string& kernel, const std::vector<std::string>& types,
                   std::span<const std::int64_t> problem, double weight) {
  if (!(weight >= 0) || !std::isfinite(weight))
    throw UserError(
        format("report: the weight of kernel {} is {}; it must be finite and not negative", kernel,
               weight));
  data_->weights.push_back({kernel, types, Values(problem.begin(), problem.end()), weight});
}

std::size_t Report::results() const noexcept { return data_->all.size(); }
const std::vector<Report::PassedOver>& Report::passed_over() const noexcept {
  return data_->passed_over;
}

std::string Report::json() const {
  using nlohmann::json;
  const std::vector<std::string> devices = devices_of(data_->all);
  std::map<std::string, Roofline> rooflines;
  std::map<std::string, Totals> totals;
  using Subject = std::tuple<std::string, bool, std::string, std::vector<std::string>,
                             std::vector<std::string>, Values>;
  std::map<Subject, std::vector<const Reported*>> problems;
  for (std::size_t i = 0; i < data_->all.size(); ++i) {
    const Reported& r = data_->all[i];
    Roofline& roofline = rooflines[devices[i]];
    if (r.roofline && roofline.bytes_per_second == 0) roofline = *r.roofline;
    if (tells_roofline(r.result, roofline)) continue;
    problems[{devices[i], is_choice(r.result), r.result.kernel, r.result.types,
              r.result.problem_fields, r.result.problem}]
        .push_back(&r);
  }
  // The first of several speaks for the problem: the lowest rank, else the latest.
  for (auto& [subject, results] : problems)
    std::stable_sort(results.begin(), results.end(), [](const Reported* a, const Reported* b) {
      const int x = rank_of(*a), y = rank_of(*b);
      return x != y ? x < y : a->written > b->written;
    });
  std::map<Subject, double> weights;
  for (const auto& [subject, results] : problems) weights[subject] = data_->weight_of(results);
  // Kernels of a choice are told of beside it: their launches are its launches, of the first one's
  // where several have a kernel. One is launched by itself, too, where both have a weight.
  std::set<Subject> parts, named;
  for (auto& [subject, results] : problems) {
    const TuneResult& first = results.front()->result;
    double& weight = weights[subject];
    const bool has_own = weight > 0;
    for (const KernelOfChoice& k : first.kernels) {
      const Subject kernel{std::get<0>(subject), false,    k.kernel, k.types,
                           first.problem_fields, k.problem};
      const auto part = problems.find(kernel);
      if (part == problems.end()) {
        if (!has_own && named.insert(kernel).second)
          weight += data_->given(k.kernel, k.types, k.problem);
        continue;
      }
      results.insert(results.end(), part->second.begin(), part->second.end());
      double& of_kernel = weights[kernel];
      if (has_own && of_kernel > 0) continue;
      weight += std::exchange(of_kernel, 0);
      parts.insert(kernel);
    }
  }
  for (const Subject& part : parts) problems.erase(part);
  for (auto& [subject, results] : problems) {
    Totals& total = totals[std::get<0>(subject)];
    total.weighted =
        total.weighted || (has_winner(results.front()->result) && weights[subject] > 0);
  }
  json shown = json::array(), places = json::object(), shown_devices = json::array(),
       passed = json::array();
  for (const auto& [device, total] : totals) places[device] = places.size();
  for (const auto& [subject, results] : problems) {
    const TuneResult& first = results.front()->result;
    const std::string& device = std::get<0>(subject);
    Totals& total = totals[device];
    const double weight = total.weighted ? weights[subject] : 1;
    total.add(first, weight);
    json fields = json::array(), each = json::array();
    for (std::size_t i = 0; i < first.problem.size(); ++i)
      fields.push_back({first.problem_fields[i], first.problem[i]});
    for (const Reported* r : results) each.push_back(runtime::result_data(*r, &rooflines[device]));
    shown.push_back({{"kernel", first.kernel},
                     {"types", first.types},
                     {"problem", fields},
                     {"device", places[device]},
                     {"weight", weight},
                     {"default", seconds_of(first.default_candidate())},
                     {"winner", seconds_of(first.winner())},
                     {"results", each}});
  }
  for (const auto& [device, total] : totals)
    shown_devices.push_back({{"name", device},
                             {"roofline", roofline_data(rooflines[device])},
                             {"problems", total.problems},
                             {"untimed_defaults", total.untimed_defaults},
                             {"weighted", total.weighted},
                             {"default", runtime::shortened(total.base)},
                             {"winner", runtime::shortened(total.winner)}});
  for (const PassedOver& p : data_->passed_over)
    passed.push_back({{"path", p.path.string()}, {"why", p.why}});
  return json{{"format", "kiln report"},  {"version", kReportVersion}, {"kiln", KILN_VERSION},
              {"devices", shown_devices}, {"problems", shown},         {"passed_over", passed}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

bool Report::has_plots() {
  std::error_code ignored;
  return fs::exists(detail::installation().plots, ignored);
}

std::string Report::html() const {
  const fs::path& folder = detail::installation().report;
  std::string data = json(), escaped, plots;
  // No text of a result may end the element: "<" is only found within JSON's strings.
  for (const char c : data) c == '<' ? escaped += "\\u003c" : escaped += c;
  if (has_plots()) plots = text_of(detail::installation().plots);
  if (ends_a_script(plots))
    throw EnvironmentError(
        format("{} cannot be part of a page", detail::installation().plots.string()));
  if (!plots.empty()) plots = text_of(folder / "plots_notice.txt") + plots;
  const std::pair<std::string, std::string> parts[] = {{"@STYLE@", text_of(folder / "report.css")},
                                                       {"@DATA@", std::move(escaped)},
                                                       {"@PLOTS@", std::move(plots)},
                                                       {"@SCRIPT@", text_of(folder / "report.js")}};
  // One after the other, so that no part is looked through for marks.
  std::string frame = text_of(folder / "page.html"), page;
  for (const auto& [mark, part] : parts) {
    const std::size_t at = frame.find(mark);
    if (at == std::string::npos)
      throw EnvironmentError(format("{} has no {}", (folder / "page.html").string(), mark));
    page += frame.substr(0, at) + part;
    frame.erase(0, at + mark.size());
  }
  return page + frame;
}

}  // namespace kiln
