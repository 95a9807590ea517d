#include "tools/entries.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

/// `2026-02-03T14:00:00Z`; empty for the epoch itself, which means never.
std::string show_moment(std::chrono::system_clock::time_point moment) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(moment);
  std::tm utc{};
  if (seconds == 0 || !gmtime_r(&seconds, &utc)) return {};
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

}  // namespace

std::string show_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1023.95 && unit + 1 < kUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  return unit == 0 ? format("{} B", bytes) : format("{:.1f} {}", amount, kUnits[unit]);
}

std::uint64_t parse_bytes(const std::string& option, const std::string& text) {
  std::uint64_t amount = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, amount);
  static constexpr std::string_view kUnits = "KMGT";
  const std::size_t unit = rest != end ? kUnits.find(*rest) : 0;
  const int shift = rest == end ? 0 : 10 * (static_cast<int>(unit) + 1);
  if (error != std::errc{} || end - rest > 1 || unit == std::string_view::npos ||
      amount > UINT64_MAX >> shift)
    throw UserError(
        format("{}: '{}' is not a size; give bytes, or a number and K, M, G or T", option, text));
  return amount << shift;
}

const char* to_string(EntryKind kind) noexcept {
  return kind == EntryKind::binary ? "binary" : "record";
}

std::string kernel_of(const Key& key) {
  const std::string kernel = key.value("kernel");
  return kernel.empty() ? key.value("entry") : kernel;
}

std::string describe(const StoreEntry& entry) {
  const std::string used = show_moment(entry.used);
  return format("{} {} {:<14} {:<10} {:>10}  {}\n", to_string(entry.kind),
                entry.key.hex().substr(0, 16), kernel_of(entry.key), entry.key.value("target"),
                show_bytes(entry.bytes), used.empty() ? "-" : used);
}

json to_json(const StoreEntry& entry) {
  json fields = json::array();
  for (std::size_t i = 0; i < entry.key.fields.size(); ++i) {
    const KeyField& f = entry.key.fields[i];
    fields.push_back(
        {{"name", f.name}, {"value", f.value}, {"portable", i < entry.key.portable_fields}});
  }
  return {{"kind", to_string(entry.kind)},   {"key", entry.key.hex()},
          {"kernel", kernel_of(entry.key)},  {"target", entry.key.value("target")},
          {"path", entry.path.string()},     {"bytes", entry.bytes},
          {"used", show_moment(entry.used)}, {"fields", fields}};
}

std::string describe(const BundleInfo& bundle) {
  std::string text =
      format("{}: {} binaries, {} records, {}, format {}, made by {}, {}\n", bundle.path.string(),
             bundle.binaries, bundle.records, show_bytes(bundle.bytes), bundle.version,
             bundle.made_by, bundle.signer.empty() ? "not signed" : "signed by " + bundle.signer);
  for (const BundleInfo::Part& part : bundle.parts)
    text += format("  {:<14} {:<10} {:>6} binaries {:>5} records\n", part.kernel, part.target,
                   part.binaries, part.records);
  return text;
}

json to_json(const BundleInfo& bundle) {
  json parts = json::array();
  for (const BundleInfo::Part& part : bundle.parts)
    parts.push_back({{"kernel", part.kernel},
                     {"target", part.target},
                     {"binaries", part.binaries},
                     {"records", part.records}});
  return {{"path", bundle.path.string()}, {"version", bundle.version},
          {"bytes", bundle.bytes},        {"binaries", bundle.binaries},
          {"records", bundle.records},    {"made_by", bundle.made_by},
          {"signer", bundle.signer},      {"parts", parts}};
}

json to_json(const VerifyReport& report) {
  const auto list = [](const std::vector<VerifyReport::Problem>& problems) {
    json array = json::array();
    for (const auto& p : problems)
      array.push_back({{"path", p.path.string()}, {"reason", p.reason}});
    return array;
  };
  return {{"checked", report.checked},
          {"newer", report.newer},
          {"unfinished", report.unfinished},
          {"damaged", list(report.problems)},
          {"unreadable", list(report.unreadable)}};
}

}  // namespace kiln::tools
