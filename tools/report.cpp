#include "tools/report.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/detail/metric_table.hpp"
#include "kiln/report.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// `, 35.1 GB/s, 12 GFLOP/s, 87 % of the roofline (memory)`, as far as it is known.
std::string rates(const TuneResult& result, const Candidate& candidate, const Roofline* roofline) {
  const Metrics m = metrics(result, candidate, roofline);
  std::string text;
  if (m.tflops > 0) text += ", " + show_rate(m.tflops * 1e12, "FLOP/s");
  if (m.gbs > 0) text += ", " + show_rate(m.gbs * 1e9, "B/s");
  if (m.bound != BoundBy::unknown)
    text +=
        format(", {:.0f} % of the roofline ({})", 100 * m.roofline_fraction, to_string(m.bound));
  if (m.host_seconds > 0) text += format(", {} of the host", show_time(m.host_seconds));
  return text;
}

std::string typed_text(std::string_view kernel, std::span<const std::string> types,
                       std::span<const std::string> fields, std::span<const std::int64_t> problem) {
  std::string listed, values;
  for (const std::string& type : types) listed += (listed.empty() ? "" : ",") + type;
  for (std::size_t i = 0; i < std::min(fields.size(), problem.size()); ++i)
    values += format("{}{}={}", i ? "," : " ", fields[i], problem[i]);
  return format("{}{}{}", kernel, listed.empty() ? "" : "<" + listed + ">", values);
}

/// `rmsnorm<float> rows=8,hidden=256 on host`, with all types.
std::string describe_subject(const TuneResult& result) {
  return format("{} on {}",
                typed_text(result.kernel, result.types, result.problem_fields, result.problem),
                result.device);
}

/// How large the space is and what its constraints refuse.
std::string describe_space(const SpaceCount& space) {
  if (space.combinations == 0) return {};
  const char* about = space.exact ? "" : "about ";
  std::string text =
      format("  {:.6g} combinations, {}{:.6g} allowed\n", space.combinations, about, space.allowed);
  for (const SpaceCount::Rejection& r : space.rejected)
    text += format("    {:>7.6g} x {}\n", r.count, r.reason);
  return text;
}

/// What was tried and why some of it cannot be used.
std::string describe_candidates(const TuneResult& result) {
  using S = CandidateStatus;
  const std::size_t pruned = result.count(S::violates_constraint) + result.count(S::exceeds_limits);
  const std::size_t failed = result.count(S::compile_failed) + result.count(S::launch_failed) +
                             result.count(S::wrong_result);
  std::string text = format("  {} candidates{}: {} pruned, {} failed, {} verified and timed\n",
                            result.candidates.size(),
                            result.strategy.empty() ? "" : " of strategy " + result.strategy,
                            pruned, failed, result.count(S::measured));
  std::map<std::string, std::size_t> reasons;
  for (const Candidate& c : result.candidates)
    if (c.status != S::measured)
      ++reasons[std::string(to_string(c.status)) + ": " + first_line(c.reason)];
  for (const auto& [reason, count] : reasons) text += format("    {:>7} x {}\n", count, reason);
  if (!result.from_store)
    text += format("  {} (compile {}, verify {}, time {}, search {}){}\n",
                   show_time(result.wall_seconds), show_time(result.compile_seconds),
                   show_time(result.verify_seconds), show_time(result.time_seconds),
                   show_time(result.search_seconds),
                   result.complete ? "" : format("; ended by: {}", to_string(result.end)));
  return text;
}

std::string describe_error(const TuneResult& result, const Candidate& c) {
  if (c.norm_error == 0 && !result.norm_permitted) return {};
  return format("  error   {:>9.2g}  of the norm of what the reference has{}\n", c.norm_error,
                result.norm_permitted ? format("; {:.2g} allowed", *result.norm_permitted) : "");
}

}  // namespace

std::string show_time(double seconds) {
  if (seconds >= 1) return format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return format("{:.3g} ms", seconds * 1e3);
  return format("{:.3g} us", seconds * 1e6);
}

std::string show_rate(double per_second, const char* unit) {
  static constexpr std::array kPrefixes = {"", "K", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (per_second >= 999.5 && prefix + 1 < kPrefixes.size()) {
    per_second /= 1000;
    ++prefix;
  }
  return format("{:.3g} {}{}", per_second, kPrefixes[prefix], unit);
}

std::string subject_text(std::string_view kernel, std::span<const std::string> types,
                         std::span<const std::string> fields,
                         std::span<const std::int64_t> problem) {
  std::vector<std::string> written;
  std::ranges::remove_copy_if(types, std::back_inserter(written), [](const std::string& type) {
    return type.find(':') != std::string::npos;
  });
  return typed_text(kernel, written, fields, problem);
}

std::string describe(const TuneResult& result, const Roofline* roofline) {
  std::string text = describe_subject(result) + (result.from_store ? " (from the store)\n" : "\n");
  if (!result.failure.empty()) return text + "  failed: " + result.failure + "\n";
  text += describe_space(result.space) + describe_candidates(result);
  for (const LeftOut& one : result.left_out)
    text += format("  {} takes no part: {}\n", one.name, first_line(one.why));
  for (const std::string& warning : result.warnings) text += "  warning: " + warning + "\n";
  if (const auto& a = result.agreed; a && a->outcome == RankReport::Outcome::defaults)
    text += format("  {} ranks: all use the default: {}\n", a->size, a->why);
  else if (a)
    text += format("  {} ranks: {} {:.16}; rank {} timed {} candidates\n", a->size,
                   to_string(a->outcome), a->plan_digest, a->rank, a->measured);

  const Candidate &base = result.default_candidate(), &best = result.winner();
  if (base.status == CandidateStatus::measured)
    text += format("  default {:>9}  {}{}\n", show_time(base.seconds), result.describe(base),
                   rates(result, base, roofline));
  else
    text += format("  default {:>9}  {}\n", to_string(base.status), result.describe(base));
  if (best.status != CandidateStatus::measured) return text + "  nothing was measured\n";
  text += format("  winner  {:>9}  {}{}; {:.2f}x the default's speed\n", show_time(best.seconds),
                 result.describe(best), rates(result, best, roofline), result.speedup());
  text += describe_error(result, best);
  if (const std::string why = why_not_the_fastest(result); !why.empty()) text += "  " + why + "\n";
  return text;
}

SummaryRow summary_row(const TuneResult& result, const Roofline* roofline,
                       const Verification* launch) {
  SummaryRow row;
  row[0] = subject_text(result.kernel, result.types, result.problem_fields, result.problem);
  if (!result.failure.empty()) {
    row[2] = "failed";
    return row;
  }
  const Candidate &base = result.default_candidate(), &best = result.winner();
  const bool known = base.status == CandidateStatus::measured;
  row[1] = known ? show_time(base.seconds) : std::string(to_string(base.status));
  if (best.status != CandidateStatus::measured) return row;
  row[2] = show_time(best.seconds);
  if (known) row[3] = format("{:.2f}x", result.speedup());
  if (const Metrics m = metrics(result, best, roofline); m.bound != BoundBy::unknown)
    row[4] = format("{:.0f} % {}", 100 * m.roofline_fraction, to_string(m.bound));
  row[5] = format("{:.2g}", launch ? launch->norm_error : best.norm_error);
  if (result.norm_permitted) row[6] = format("{:.2g}", *result.norm_permitted);
  return row;
}

std::string summary(const std::vector<SummaryRow>& rows) {
  const SummaryRow titles{"", "default", "winner", "speed", "of the roofline", "error", "allowed"};
  std::array<std::size_t, titles.size()> widths{};
  const auto widen = [&](const SummaryRow& row) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  };
  widen(titles);
  for (const SummaryRow& row : rows) widen(row);
  std::string text;
  const auto add = [&](const SummaryRow& row) {
    std::string line = row[0] + std::string(widths[0] - row[0].size(), ' ');
    for (std::size_t i = 1; i < row.size(); ++i)
      line += "  " + std::string(widths[i] - row[i].size(), ' ') + row[i];
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add(titles);
  for (const SummaryRow& row : rows) add(row);
  return text;
}

std::string describe_timing(const TuneResult& result, const Roofline* roofline) {
  const Candidate& c = result.winner();
  std::string text = describe_subject(result) + "\n";
  if (c.status != CandidateStatus::measured)
    return text + format("  {}  {}: {}\n", to_string(c.status), result.describe(c), c.reason);
  const auto [low, high] = std::minmax_element(c.samples.begin(), c.samples.end());
  text += format("  {:>9}  {}{}\n", show_time(c.seconds), result.describe(c),
                 rates(result, c, roofline));
  text += format("  {} samples from {} to {}; verified (error {:.2g} of the tolerance)\n",
                 c.samples.size(), show_time(*low), show_time(*high), c.max_error);
  text += describe_error(result, c);
  for (const std::string& warning : result.warnings) text += "  warning: " + warning + "\n";
  return text;
}

json report_json(const TuneResult& result, const Roofline* roofline) {
  json j = json::parse(kiln::to_json(result, roofline));
  if (roofline) j["roofline"] = to_json(*roofline);
  return j;
}

json to_json(const Roofline& roofline) {
  json j{{"device", roofline.device}, {"from_store", roofline.from_store}};
  kiln::detail::add_metrics(j, kiln::detail::kRooflineMetrics, roofline);
  return j;
}

}  // namespace kiln::tools
