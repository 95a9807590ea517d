// The subcommands. Each adds itself to the command line; the one that was named runs and returns
// the exit code. Errors are thrown and turned into exit codes by cli_main.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"

namespace kiln::tools {

enum ExitCode {
  kDone = 0,
  kUserError = 1,
  kEnvironmentError = 2,
  kInternalError = 3,
  kInterrupted = 130
};

/// What all subcommands share.
struct Context {
  Registry registry;
  StoreOptions store;  ///< from --cache-dir, --no-cache, --root, --bundle-key
  bool json = false;
  bool verbose = false;
  std::function<int()> run;  ///< set by the subcommand that was named

  /// Warnings, and with --verbose everything, to standard error.
  LogSink log() const;
};

void add_doctor(CLI::App& app, Context& context);
void add_list(CLI::App& app, Context& context);
void add_tune(CLI::App& app, Context& context);
void add_precompile(CLI::App& app, Context& context);
void add_bundle(CLI::App& app, Context& context);
void add_cache(CLI::App& app, Context& context);
void add_replay(CLI::App& app, Context& context);
void add_roofline(CLI::App& app, Context& context);

}  // namespace kiln::tools
