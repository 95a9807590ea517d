// The subcommands. Each adds itself to the command line; the one that was named runs and returns
// the exit code. Errors are thrown and turned into exit codes by cli_main.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"
#include "tools/exit_codes.hpp"

namespace kiln::tools {

/// What all subcommands share.
struct Context {
  Registry registry;
  StoreOptions store;  ///< from --cache-dir, --no-cache, --root, --bundle-key
  bool json = false;
  bool verbose = false;
  bool answers = true;       ///< true on the one rank of a job that writes output and files
  std::function<int()> run;  ///< set by the subcommand that was named

  /// Warnings, and with --verbose everything, to standard error.
  LogSink log() const;
};

/// An exception, as the command reports it.
struct Fault {
  ExitCode code;
  std::string what;
  nlohmann::json json() const;
};
Fault fault_of(const std::exception& error);
/// To standard error, and with --json to standard output. Its exit code.
int report(const Context& context, const Fault& fault);
/// Flushes standard output: a list that was cut off must not look complete. @throws
/// EnvironmentError
void flush_output();

void add_doctor(CLI::App& app, Context& context);
void add_list(CLI::App& app, Context& context);
void add_tune(CLI::App& app, Context& context);
void add_time(CLI::App& app, Context& context);
void add_precompile(CLI::App& app, Context& context);
void add_prepare(CLI::App& app, Context& context);
void add_bundle(CLI::App& app, Context& context);
void add_cache(CLI::App& app, Context& context);
void add_replay(CLI::App& app, Context& context);
void add_report(CLI::App& app, Context& context);
void add_roofline(CLI::App& app, Context& context);
void add_reference(CLI::App& app, Context& context);

}  // namespace kiln::tools
