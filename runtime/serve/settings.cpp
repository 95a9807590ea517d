// What holds for each of Kiln's variables: `kiln doctor` shows it.
#include <algorithm>
#include <string>

#include "kiln/detail/environment.hpp"
#include "kiln/doctor.hpp"
#include "kiln/error.hpp"
#include "runtime/serve/variables.hpp"

namespace kiln {

namespace {

using detail::VariableEntry;

const runtime::OptionVariable* option_of(std::string_view name) {
  const auto all = runtime::option_variables();
  const auto found = std::ranges::find_if(
      all, [&](const auto& v) { return std::string_view(v.variable.name()) == name; });
  return found == all.end() ? nullptr : &*found;
}

/// The table's words are Markdown.
std::string plain(std::string text) {
  std::erase(text, '`');
  return text;
}

/// Those of a family that are set; if none is, what holds without any.
void add_family(std::vector<Setting>& settings, const VariableEntry& entry) {
  const std::size_t before = settings.size();
  for (char** line = detail::whole_environment(); line && *line; ++line) {
    const std::string_view text = *line;
    const std::size_t end = text.find('=');
    if (end == text.npos || !detail::names(entry, text.substr(0, end))) continue;
    Setting& set = settings.emplace_back(std::string(text.substr(0, end)), plain(entry.fallback));
    set.value = text.substr(end + 1);
    set.from = Setting::From::environment;
  }
  if (settings.size() == before) settings.emplace_back(entry.name, plain(entry.fallback));
}

}  // namespace

const char* to_string(Setting::From from) noexcept {
  return from == Setting::From::defaults      ? "default"
         : from == Setting::From::environment ? "environment"
                                              : "option";
}

std::vector<Setting> settings(const RuntimeOptions& options) {
  std::vector<Setting> settings;
  RuntimeOptions seen = options;
  for (const VariableEntry& entry : detail::kVariables) {
    if (entry.of != VariableEntry::Of::kiln) continue;
    const runtime::OptionVariable* option = option_of(entry.name);
    if (std::string_view(entry.name).ends_with('*')) {
      add_family(settings, entry);
      continue;
    }
    Setting setting{entry.name, plain(entry.fallback)};
    if (const std::string_view value = detail::value_of(entry); !value.empty()) {
      setting.value = value;
      setting.from = Setting::From::environment;
    }
    const std::string chosen = option ? option->option(options) : std::string();
    if (!chosen.empty()) {
      setting.value = chosen;
      setting.from = Setting::From::option;
    } else if (setting.from == Setting::From::environment) {
      try {
        if (option && option->apply) option->apply(seen, setting.value);
        if (option && option->problem) setting.problem = option->problem(setting.value);
      } catch (const UserError& error) {
        setting.problem = error.what();
      }
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

std::vector<std::string> unknown_variables() { return runtime::unknown_variables(); }

}  // namespace kiln
