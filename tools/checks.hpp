// What the command line refuses, in its own words.
#pragma once

#include <map>
#include <string>

#include <CLI/CLI.hpp>

namespace kiln::tools {

/// A number above 0.
CLI::Validator above_zero();

/// One of these words, which stands for a value.
template <class Value>
CLI::Validator one_of(const std::map<std::string, Value>& words) {
  std::string all;
  for (const auto& [word, value] : words) all += (all.empty() ? "" : "|") + word;
  const auto look_up = [words, all](std::string& given) {
    const auto found = words.find(given);
    if (found == words.end()) return "'" + given + "' is none of " + all;
    given = std::to_string(static_cast<int>(found->second));
    return std::string();
  };
  return CLI::Validator(look_up, all, "one of");
}

/// Checks, before minutes of work, whether a file can be written there. Creates nothing.
/// @throws EnvironmentError that names `option`
void check_writable(const std::string& option, const std::string& file);

}  // namespace kiln::tools
