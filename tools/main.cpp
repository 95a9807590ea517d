#include <cstdio>
#include <exception>

#include <nlohmann/json.hpp>

#include "kiln/error.hpp"
#include "tools/commands.hpp"
#include "tools/terminal.hpp"

namespace kiln::tools {

LogSink Context::log() const {
  return [this](LogLevel level, std::string_view text) {
    if (level < LogLevel::warning && !verbose) return;
    const char* name = level == LogLevel::error     ? "error"
                       : level == LogLevel::warning ? "warning"
                                                    : "kiln";
    say_error(std::string(name) + ": " + std::string(text));
  };
}

void add_list(CLI::App& app, Context& context) {
  auto* list = app.add_subcommand("list", "Show the kernels this command knows");
  list->add_flag("--json", context.json, "Print JSON");
  list->callback([&context] {
    context.run = [&context] {
      if (context.json) {
        auto out = nlohmann::json::array();
        for (const RegisteredKernel& k : context.registry.kernels()) {
          const KernelDefinition d = k.make(k.types.front());
          nlohmann::json parameters = nlohmann::json::object();
          for (const Parameter& p : d.space.parameters()) parameters[p.name] = p.values;
          out.push_back({{"name", k.name},
                         {"summary", k.summary},
                         {"types", k.types},
                         {"problem", d.problem_fields},
                         {"parameters", parameters}});
        }
        std::puts(out.dump(2).c_str());
        return kDone;
      }
      for (const RegisteredKernel& k : context.registry.kernels()) {
        const KernelDefinition d = k.make(k.types.front());
        std::string types, fields;
        for (const auto& t : k.types) types += (types.empty() ? "" : "|") + t;
        for (const auto& f : d.problem_fields) fields += (fields.empty() ? "" : ",") + f;
        std::printf("%-14s %-14s --problem %-18s %6.0f configs  %s\n", k.name.c_str(),
                    types.c_str(), fields.c_str(), d.space.combinations(), k.summary.c_str());
      }
      return kDone;
    };
  });
}

namespace {

int fail(const Context& context, int code, const char* kind, const std::string& what) {
  if (context.json)
    std::puts(nlohmann::json{{"error", {{"kind", kind}, {"message", what}}}}
                  .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                  .c_str());
  say_error(std::string("kiln: ") + what);
  return code;
}

int run(int argc, char** argv) {
  Context context;
  try {
    context.registry = shipped_kernels();
    CLI::App app("Kiln: fires CUDA kernel templates into tuned kernels");
    app.require_subcommand(1);
    app.footer(
        "Exit codes: 0 done, 1 your mistake, 2 the environment, 3 a bug in Kiln, "
        "130 interrupted (what was measured is kept).");
    app.set_version_flag("--version", "kiln " KILN_VERSION);
    app.add_flag("-v,--verbose", context.verbose, "Log everything to standard error");
    std::string directory;
    app.add_option("--cache-dir", directory,
                   "The store's directory (default: $KILN_CACHE_DIR, else XDG)");
    bool no_cache = false;
    app.add_flag("--no-cache", no_cache, "Keep nothing on disk");
    app.fallthrough();
    add_doctor(app, context);
    add_list(app, context);
    add_tune(app, context);
    add_cache(app, context);
    add_replay(app, context);
    add_roofline(app, context);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? kDone : kUserError;
    }
    context.store.directory = directory;
    context.store.disk = !no_cache;
    context.store.log = context.log();
    return context.run();
  } catch (const UserError& error) {
    return fail(context, kUserError, "user", error.what());
  } catch (const EnvironmentError& error) {
    return fail(context, kEnvironmentError, "environment", error.what());
  } catch (const std::exception& error) {
    return fail(context, kInternalError, "internal", error.what());
  }
}

}  // namespace

}  // namespace kiln::tools

int main(int argc, char** argv) { return kiln::tools::run(argc, argv); }
