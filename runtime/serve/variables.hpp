// What the environment says where a program's options say nothing. Read when a runtime is made.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/detail/environment.hpp"
#include "kiln/runtime.hpp"
#include "runtime/support/spans.hpp"

namespace kiln::runtime {

/// A variable that stands in for an option.
struct OptionVariable {
  detail::Variable variable;
  /// What the program's options say, as text. Empty: they leave it open.
  std::string (*option)(const RuntimeOptions& options);
  /// Fills in the option. @throws UserError that names the values it may have. Null: the option is
  /// completed elsewhere, where it is used.
  void (*apply)(RuntimeOptions& options, std::string_view value);
  /// What is wrong with a value that nothing applies here; empty: nothing. Null: it is not asked.
  std::string (*problem)(std::string_view value) = nullptr;
};

/// In the order in which they are applied.
std::span<const OptionVariable> option_variables() noexcept;

/// The options, with what they leave open taken from the environment, the log included.
/// @throws UserError for a value that makes no sense; EnvironmentError when the log cannot be
/// opened
RuntimeOptions with_variables(RuntimeOptions options);

/// For tunings that leave their limits open; so does what no variable says.
struct TuneLimits {
  std::optional<double> seconds{};
  std::optional<std::size_t> evaluations{};
  std::optional<Launching> launching{};
};
/// @throws UserError
TuneLimits limits_from_environment();

/// The trace file of a new runtime in the folder KILN_TRACE, which is made if it is not there.
/// @throws EnvironmentError when that is not possible
std::optional<Spans::File> trace_from_environment(const RuntimeOptions& options);

/// KILN_WANTED as an absolute path; empty: not set.
std::filesystem::path wanted_from_environment();

/// A line for each name in the environment that begins with KILN_ and that Kiln does not know.
std::vector<std::string> unknown_variables();
/// Logs those lines, once in the life of the process.
void warn_of_unknown_variables(const LogSink& log);

}  // namespace kiln::runtime
