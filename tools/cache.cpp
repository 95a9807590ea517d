#include "kiln/cache.hpp"

#include <algorithm>
#include <memory>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "tools/commands.hpp"
#include "tools/entries.hpp"
#include "tools/output.hpp"

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
    print_json({{"directory", s.directory.string()},
                {"memory_only", s.memory_only},
                {"reason", s.reason},
                {"binaries", s.binaries},
                {"records", s.records},
                {"bytes", s.bytes},
                {"max_bytes", s.max_bytes},
                {"roots", roots}});
    return kDone;
  }
  print(format("directory  {}\nbinaries   {}\nrecords    {}\nbytes      {} ({} of {})\n",
               s.directory.string(), s.binaries, s.records, s.bytes, show_bytes(s.bytes),
               show_bytes(s.max_bytes)));
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
    print(format("{} entries checked, {} damaged, {} of a newer format, {} unfinished\n",
                 report.checked, report.problems.size(), report.newer, report.unfinished));
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
  const TrimReport report =
      cache.trim(max_size.empty() ? cache.stats().max_bytes : parse_bytes("--max-size", max_size));
  if (context.json)
    print_json({{"removed", report.entries},
                {"bytes", report.bytes},
                {"abandoned", report.abandoned},
                {"left", report.left}});
  else
    print(format("{} entries of {} removed, {} abandoned files; {} left\n", report.entries,
                 show_bytes(report.bytes), report.abandoned, show_bytes(report.left)));
  return kDone;
}

/// An empty list must not stand for a store that may not be looked into.
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

int explain(const Context& context, const std::string& prefix) {
  const std::vector<StoreEntry> entries = entries_of(context, prefix);
  if (entries.empty()) throw UserError("no entry's key begins with '" + prefix + "'");
  json all = json::array();
  for (const StoreEntry& e : entries) {
    if (context.json) {
      all.push_back(to_json(e));
      continue;
    }
    print(format("{} {}, {} bytes\n", to_string(e.kind), e.key.hex(), e.bytes));
    for (std::size_t i = 0; i < e.key.fields.size(); ++i) {
      if (i != 0 && i == e.key.portable_fields) print("  made with:\n");
      print(format("  {} = {}\n", e.key.fields[i].name, e.key.fields[i].value));
    }
  }
  if (context.json) print_json(all);
  return kDone;
}

}  // namespace

void add_cache(CLI::App& app, Context& context) {
  auto* cache = app.add_subcommand("cache", "Look after the store on disk");
  cache->require_subcommand(1);
  auto add = [&](const char* name, const char* help, int (*function)(const Context&)) {
    auto* command = cache->add_subcommand(name, help);
    command->add_flag("--json", context.json, "Print JSON");
    command->callback(
        [&context, function] { context.run = [&context, function] { return function(context); }; });
  };
  // As add(), with one text argument.
  auto add_with = [&](const char* name, const char* help, const char* option,
                      const char* option_help,
                      int (*function)(const Context&, const std::string&)) {
    auto* command = cache->add_subcommand(name, help);
    const auto text = std::make_shared<std::string>();
    command->add_option(option, *text, option_help);
    command->add_flag("--json", context.json, "Print JSON");
    command->callback([&context, function, text] {
      context.run = [&context, function, text] { return function(context, *text); };
    });
  };
  add("stats", "What is there, how large it may become, and which roots are read as well", stats);
  add("verify", "Read every entry; exit code 2 if one is damaged", verify);
  add("list", "One line per entry, the last used first: kind, key, kernel, target, size, last use",
      list);
  add_with("trim", "Remove the least recently used entries, and what killed processes left behind",
           "--max-size",
           "Bytes to keep, or a number and K, M, G or T (powers of 1024); default: the store's "
           "limit ($KILN_CACHE_SIZE, else 5G)",
           trim);
  add("clear", "Remove every entry", clear);
  add_with("explain", "Show what an entry's key is made of", "key",
           "First hexadecimal digits of the key; none: every entry", explain);
}

}  // namespace kiln::tools
