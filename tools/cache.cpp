#include "kiln/cache.hpp"

#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "tools/commands.hpp"

namespace kiln::tools {

using nlohmann::json;

namespace {

int stats(const Context& context) {
  const StoreStatistics s = Cache(context.store).stats();
  if (context.json) {
    std::puts(json{{"directory", s.directory.string()},
                   {"memory_only", s.memory_only},
                   {"reason", s.reason},
                   {"binaries", s.binaries},
                   {"records", s.records},
                   {"bytes", s.bytes}}
                  .dump(2)
                  .c_str());
    return kDone;
  }
  std::printf("directory  %s\nbinaries   %llu\nrecords    %llu\nbytes      %llu\n",
              s.directory.c_str(), static_cast<unsigned long long>(s.binaries),
              static_cast<unsigned long long>(s.records), static_cast<unsigned long long>(s.bytes));
  if (s.memory_only) std::printf("not on disk: %s\n", s.reason.c_str());
  return kDone;
}

int verify(const Context& context) {
  const VerifyReport report = Cache(context.store).verify();
  if (context.json) {
    json problems = json::array();
    for (const auto& p : report.problems)
      problems.push_back({{"path", p.path.string()}, {"reason", p.reason}});
    std::puts(json{{"checked", report.checked},
                   {"newer", report.newer},
                   {"unfinished", report.unfinished},
                   {"damaged", problems}}
                  .dump(2)
                  .c_str());
  } else {
    for (const auto& p : report.problems)
      std::printf("damaged: %s: %s\n", p.path.c_str(), p.reason.c_str());
    std::printf("%llu entries checked, %zu damaged, %llu of a newer format, %llu unfinished\n",
                static_cast<unsigned long long>(report.checked), report.problems.size(),
                static_cast<unsigned long long>(report.newer),
                static_cast<unsigned long long>(report.unfinished));
  }
  return report.ok() ? kDone : kEnvironmentError;
}

int clear(const Context& context) {
  const std::size_t removed = Cache(context.store).clear();
  if (context.json)
    std::puts(json{{"removed", removed}}.dump(2).c_str());
  else
    std::printf("%zu files removed\n", removed);
  return kDone;
}

int explain(const Context& context, const std::string& prefix) {
  const std::vector<StoreEntry> entries = Cache(context.store).explain(prefix);
  if (entries.empty()) throw UserError("no entry's key begins with '" + prefix + "'");
  json list = json::array();
  for (const StoreEntry& e : entries) {
    const char* kind = e.kind == EntryKind::binary ? "binary" : "record";
    if (!context.json) {
      std::printf("%s %s, %llu bytes\n", kind, e.key.hex().c_str(),
                  static_cast<unsigned long long>(e.bytes));
      for (const KeyField& f : e.key.fields)
        std::printf("  %s = %s\n", f.name.c_str(), f.value.c_str());
      continue;
    }
    json fields = json::array();
    for (const KeyField& f : e.key.fields) fields.push_back({{"name", f.name}, {"value", f.value}});
    list.push_back({{"kind", kind},
                    {"key", e.key.hex()},
                    {"path", e.path.string()},
                    {"bytes", e.bytes},
                    {"fields", fields}});
  }
  if (context.json) std::puts(list.dump(2).c_str());
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
  add("stats", "What is there", stats);
  add("verify", "Read every entry; exit code 2 if one is damaged", verify);
  add("clear", "Remove every entry", clear);
  auto* command = cache->add_subcommand("explain", "Show what an entry's key is made of");
  const auto prefix = std::make_shared<std::string>();
  command->add_option("key", *prefix, "First hexadecimal digits of the key; none: every entry");
  command->add_flag("--json", context.json, "Print JSON");
  command->callback([&context, prefix] {
    context.run = [&context, prefix] { return explain(context, *prefix); };
  });
}

}  // namespace kiln::tools
