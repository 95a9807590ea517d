#include "kiln/cli.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/version.hpp"
#include "tools/commands.hpp"
#include "tools/output.hpp"
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

nlohmann::json Fault::json() const {
  const auto meaning = std::ranges::find(kExitCodes, code, &ExitMeaning::code);
  return {{"error", {{"kind", meaning->kind}, {"message", what}}}};
}

Fault fault_of(const std::exception& error) {
  const ExitCode code = dynamic_cast<const UserError*>(&error)          ? kUserError
                        : dynamic_cast<const EnvironmentError*>(&error) ? kEnvironmentError
                                                                        : kInternalError;
  return {code, error.what()};
}

int report(const Context& context, const Fault& fault) {
  if (context.json && context.answers) print_json(fault.json());
  say_error("kiln: " + fault.what);
  return fault.code;
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw EnvironmentError("standard output could not be written: is the disk full?");
}

namespace {

using kiln::detail::format;

int run_cli(int argc, char** argv, Context& context) {
  CLI::App app("Kiln: fires CUDA kernel templates into tuned kernels");
  app.require_subcommand(1);
  std::string exit_codes;
  for (const ExitMeaning& e : kExitCodes)
    exit_codes += format("{}{} {}", exit_codes.empty() ? "" : ", ", int{e.code}, e.meaning);
  app.footer("Exit codes: " + exit_codes + "; more in `kiln reference`.");
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
  app.add_option("--bundle-key", key,
                 "PEM file of the Ed25519 public key that must verify the signature of every "
                 "--root (default: $KILN_BUNDLE_KEY, else they need no signature)");
  app.fallthrough();
  add_doctor(app, context);
  add_list(app, context);
  add_tune(app, context);
  add_time(app, context);
  add_precompile(app, context);
  add_prepare(app, context);
  add_bundle(app, context);
  add_cache(app, context);
  add_replay(app, context);
  add_report(app, context);
  add_roofline(app, context);
  add_reference(app, context);
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
    const int code = run_cli(argc, argv, context);
    flush_output();
    return code;
  } catch (const std::exception& error) {
    return report(context, fault_of(error));
  }
}

}  // namespace kiln
