// Internal: reads the environment variables of environment_table.hpp, and no others. No public
// header includes this.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include <unistd.h>

#include "kiln/detail/environment_table.hpp"

namespace kiln::detail {

/// The name of a variable of the table: a literal that is not in the table does not compile.
class Variable {
 public:
  consteval Variable(const char* name) : name_(name) {  // NOLINT: literals become variables
    for (const VariableEntry& entry : kVariables)
      if (std::string_view(entry.name) == name) return;
    this_variable_is_not_in_kVariables();
  }
  constexpr const char* name() const { return name_; }

 private:
  static void this_variable_is_not_in_kVariables() {}  // not constexpr, so a call is an error

  const char* name_;
};

/// The variable's value, empty when it is not set. Valid until the environment changes.
inline std::string_view environment(Variable variable) {
  const char* value = std::getenv(variable.name());
  return value ? value : "";
}

/// For an entry whose name ends in `*`: the variable with `rest` in its place.
inline std::string_view environment(Variable family, std::string_view rest) {
  const std::string_view name = family.name();
  const char* value =
      std::getenv(std::string(name.substr(0, name.size() - 1)).append(rest).c_str());
  return value ? value : "";
}

/// Whether a variable is that of an entry, or one of its family.
constexpr bool names(const VariableEntry& entry, std::string_view variable) {
  const std::string_view name = entry.name;
  if (!name.ends_with('*')) return name == variable;
  return variable.size() >= name.size() && variable.starts_with(name.substr(0, name.size() - 1));
}

/// The same for an entry of the table.
inline std::string_view value_of(const VariableEntry& entry) {
  const char* value = std::getenv(entry.name);
  return value ? value : "";
}

/// All variables, for a program that is started. Valid until the environment changes.
inline char** whole_environment() { return ::environ; }

}  // namespace kiln::detail
