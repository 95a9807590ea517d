#include "kiln/cache.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/detail/metric_table.hpp"
#include "kiln/error.hpp"
#include "tools/commands.hpp"
#include "tools/entries.hpp"
#include "tools/output.hpp"
#include "tools/problems.hpp"
#include "tools/report.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

int stats(const Context& context) {
  const StoreStatistics s = Cache(context.store).stats();
  if (context.json) {
    json roots = json::array();
    for (const auto& root : s.roots)
      roots.push_back({{"path", root.path.string()},
                       {"binaries", root.binaries},
                       {"records", root.records},
                       {"problem", root.problem}});
    json answer{{"directory", s.directory.string()},
                {"memory_only", s.memory_only},
                {"reason", s.reason},
                {"roots", roots}};
    kiln::detail::add_metrics(answer, kiln::detail::kStoreMetrics, s);
    print_json(answer);
    return kDone;
  }
  print(
      format("directory  {}\nbinaries   {}\nrecords    {}\nfiles      {} of {}\nbytes      {} ({} "
             "of {})\n",
             s.directory.string(), s.binaries, s.records, s.files, s.max_files, s.bytes,
             show_bytes(s.bytes), show_bytes(s.max_bytes)));
  if (s.memory_only) print("not on disk: " + s.reason + "\n");
  for (const auto& root : s.roots)
    print(root.problem.empty()
              ? format("root       {}: {} binaries, {} records\n", root.path.string(),
                       root.binaries, root.records)
              : format("root       {}: not used: {}\n", root.path.string(), root.problem));
  return kDone;
}

int verify(const Context& context) {
  const VerifyReport report = Cache(context.store).verify();
  if (context.json) {
    print_json(to_json(report));
  } else {
    for (const auto& p : report.problems)
      print(format("damaged: {}: {}\n", p.path.string(), p.reason));
    for (const auto& p : report.unreadable)
      print(format("unreadable: {}: {}\n", p.path.string(), p.reason));
    print(
        format("{} entries checked, {} damaged, {} unreadable, {} of a newer format, {} "
               "unfinished\n",
               report.checked, report.problems.size(), report.unreadable.size(), report.newer,
               report.unfinished));
  }
  return report.ok() ? kDone : kEnvironmentError;
}

int clear(const Context& context) {
  const std::size_t removed = Cache(context.store).clear();
  if (context.json)
    print_json(json{{"removed", removed}});
  else
    print(format("{} files removed\n", removed));
  return kDone;
}

int trim(const Context& context, const std::string& max_size) {
  const Cache cache(context.store);
  const StoreStatistics stats = cache.stats();
  const TrimReport report = cache.trim(
      max_size.empty() ? stats.max_bytes : parse_bytes("--max-size", max_size), stats.max_files);
  if (context.json)
    print_json({{"removed", report.entries},
                {"bytes", report.bytes},
                {"abandoned", report.abandoned},
                {"left", report.left},
                {"left_files", report.left_files}});
  else
    print(format("{} entries of {} removed, {} abandoned files; {} left in {} entries\n",
                 report.entries, show_bytes(report.bytes), report.abandoned,
                 show_bytes(report.left), report.left_files));
  return kDone;
}

/// A store that may not be read must not look like an empty one.
std::vector<StoreEntry> entries_of(const Context& context, const std::string& prefix) {
  const Cache cache(context.store);
  if (const StoreStatistics s = cache.stats(); s.memory_only && context.store.disk)
    throw EnvironmentError(s.reason);
  return cache.explain(prefix);
}

int list(const Context& context) {
  std::vector<StoreEntry> entries = entries_of(context, "");
  std::ranges::stable_sort(entries, std::greater(), &StoreEntry::used);
  json all = json::array();
  for (const StoreEntry& entry : entries) {
    if (!context.json) {
      print(describe(entry));
      continue;
    }
    json j = to_json(entry);
    j.erase("fields");  // that is what `explain` is for
    all.push_back(std::move(j));
  }
  if (context.json) print_json(all);
  return kDone;
}

/// The first digits of a key, or a kernel's name and some or all fields of its problem.
struct Wanted {
  std::string what, problem;
};

/// `n=1024` of a record whose key has the field problem.n = 1024.
bool has_fields(const Key& key, const std::map<std::string, std::int64_t>& fields) {
  return std::ranges::all_of(fields, [&](const auto& field) {
    return key.value("problem." + field.first) == std::to_string(field.second);
  });
}

std::vector<StoreEntry> find(const Context& context, const Wanted& wanted) {
  const bool hex = wanted.what.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (hex && wanted.problem.empty())
    if (auto entries = entries_of(context, wanted.what); !entries.empty() || wanted.what.empty())
      return entries;
  const auto fields = parse_fields("PROBLEM", wanted.problem);
  std::vector<StoreEntry> entries = entries_of(context, "");
  std::string kernels;
  std::set<std::string> seen;
  for (const StoreEntry& entry : entries)
    if (const std::string kernel = kernel_of(entry.key); seen.insert(kernel).second)
      kernels += (kernels.empty() ? "" : ", ") + kernel;
  std::erase_if(entries, [&](const StoreEntry& entry) {
    return kernel_of(entry.key) != wanted.what || !has_fields(entry.key, fields);
  });
  if (!entries.empty()) return entries;
  if (seen.contains(wanted.what))
    throw UserError(format("kernel {} has no record for {}", wanted.what, wanted.problem));
  throw UserError(
      format("no entry's key begins with '{}', and no kernel of that name is in the "
             "store (kernels: {})",
             wanted.what, kernels.empty() ? "none" : kernels));
}

/// The measured ones, the fastest first.
std::string describe_times(const TuneResult& result) {
  constexpr std::size_t kShown = 20;
  std::vector<const Candidate*> measured;
  for (const Candidate& c : result.candidates)
    if (c.status == CandidateStatus::measured) measured.push_back(&c);
  std::ranges::stable_sort(measured, {}, &Candidate::seconds);
  std::string text;
  for (std::size_t i = 0; i < std::min(measured.size(), kShown); ++i)
    text +=
        format("    {:>9}  {}\n", show_time(measured[i]->seconds), result.describe(*measured[i]));
  if (measured.size() > kShown) text += format("    and {} slower\n", measured.size() - kShown);
  return text;
}

int explain(const Context& context, const Wanted& wanted) {
  const Cache cache(context.store);
  json all = json::array();
  for (const StoreEntry& e : find(context, wanted)) {
    const std::optional<TuneResult> result = cache.result(e);
    if (context.json) {
      json j = to_json(e);
      if (result) j["result"] = report_json(*result);
      all.push_back(std::move(j));
      continue;
    }
    print(format("{} {}, {} bytes\n", to_string(e.kind), e.key.hex(), e.bytes));
    for (std::size_t i = 0; i < e.key.fields.size(); ++i) {
      if (i != 0 && i == e.key.portable_fields) print("  made with:\n");
      print(format("  {} = {}\n", e.key.fields[i].name, e.key.fields[i].value));
    }
    if (result) print(describe(*result) + describe_times(*result));
  }
  if (context.json) print_json(all);
  return kDone;
}

}  // namespace

void add_cache(CLI::App& app, Context& context) {
  auto* cache = app.add_subcommand("cache", "Inspect and maintain the store on disk");
  cache->require_subcommand(1);
  auto add = [&](const char* name, const char* help, int (*function)(const Context&)) {
    auto* command = cache->add_subcommand(name, help);
    command->add_flag("--json", context.json, "Print JSON");
    command->callback(
        [&context, function] { context.run = [&context, function] { return function(context); }; });
  };
  add("stats", "Show the store's contents and limits, and the roots that are read as well", stats);
  add("verify", "Read every entry; exit code 2 if one is damaged or cannot be read", verify);
  add("list", "One line per entry, the last used first: kind, key, kernel, target, size, last use",
      list);
  add("clear", "Remove every entry", clear);

  auto* trimmed = cache->add_subcommand(
      "trim", "Remove the least recently used entries, and what killed processes left behind");
  const auto size = std::make_shared<std::string>();
  trimmed->add_option("--max-size", *size,
                      "Bytes to keep, or a number and K, M, G or T (powers of 1024); default: the "
                      "store's limit ($KILN_CACHE_SIZE, else 5G)");
  trimmed->add_flag("--json", context.json, "Print JSON");
  trimmed->callback(
      [&context, size] { context.run = [&context, size] { return trim(context, *size); }; });

  auto* explained = cache->add_subcommand(
      "explain", "Show what an entry's key is made of; for a record, also its winner and times");
  const auto wanted = std::make_shared<Wanted>();
  explained->add_option("what", wanted->what,
                        "First hexadecimal digits of the key, or a kernel; none: every entry");
  explained->add_option("problem", wanted->problem, "field=value,... of the kernel's records");
  explained->add_flag("--json", context.json, "Print JSON");
  explained->callback([&context, wanted] {
    context.run = [&context, wanted] { return explain(context, *wanted); };
  });
}

}  // namespace kiln::tools
