#include "kiln/cli.hpp"

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

namespace {

int fail(const Context& context, int code, const char* kind, const std::string& what) {
  if (context.json)
    std::puts(nlohmann::json{{"error", {{"kind", kind}, {"message", what}}}}
                  .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                  .c_str());
  say_error(std::string("kiln: ") + what);
  return code;
}

int run(int argc, char** argv, Context& context) {
  CLI::App app("Kiln: fires CUDA kernel templates into tuned kernels");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 your mistake, 2 the environment, 3 a bug in Kiln, "
      "130 interrupted (what was measured or compiled is kept).");
  app.set_version_flag("--version", "kiln " KILN_VERSION);
  app.add_flag("-v,--verbose", context.verbose, "Log everything to standard error");
  std::string directory, key;
  std::vector<std::string> roots;
  app.add_option("--cache-dir", directory,
                 "The store's directory (default: $KILN_CACHE_DIR, else XDG)");
  bool no_cache = false;
  app.add_flag("--no-cache", no_cache, "Keep nothing on disk");
  app.add_option("--root", roots,
                 "A bundle or cache directory to read from as well; may be repeated (default: "
                 "$KILN_ROOTS, separated by colons)")
      ->allow_extra_args(false);
  app.add_option(
      "--bundle-key", key,
      "PEM file of the Ed25519 public key that every --root must be signed for (default: "
      "$KILN_BUNDLE_KEY, else none must)");
  app.fallthrough();
  add_doctor(app, context);
  add_list(app, context);
  add_tune(app, context);
  add_precompile(app, context);
  add_bundle(app, context);
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
  context.store.roots.assign(roots.begin(), roots.end());
  context.store.bundle_key = key;
  context.store.log = context.log();
  return context.run();
}

}  // namespace

}  // namespace kiln::tools

namespace kiln {

int cli_main(int argc, char** argv, Registry registry) {
  using namespace tools;
  Context context;
  context.registry = std::move(registry);
  try {
    const int code = run(argc, argv, context);
    // A list that was cut off must not look like a whole one.
    if (std::fflush(stdout) != 0 || std::ferror(stdout))
      throw EnvironmentError("standard output could not be written: is the disk full?");
    return code;
  } catch (const UserError& error) {
    return fail(context, kUserError, "user", error.what());
  } catch (const EnvironmentError& error) {
    return fail(context, kEnvironmentError, "environment", error.what());
  } catch (const std::exception& error) {
    return fail(context, kInternalError, "internal", error.what());
  }
}

}  // namespace kiln
