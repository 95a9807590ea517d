#include <algorithm>
#include <optional>

#include "codegen/include_closure.hpp"

namespace kiln::codegen {
namespace {

// The argument of option `i` if it is `brief` (as -Ix, -I=x, -I x or in the next option) or `full`;
// moves `i` past it.
std::optional<std::string> argument(std::span<const std::string> options, std::size_t& i,
                                    std::string_view brief, std::string_view full) {
  std::string_view text = options[i];
  if (text == brief || text == full) {
    if (i + 1 == options.size()) return std::nullopt;
    return options[++i];
  }
  const bool is_full =
      text.starts_with(full) && (text[full.size()] == '=' || text[full.size()] == ' ');
  if (is_full) {
    text.remove_prefix(full.size());
  } else if (text.starts_with(brief) && !text.starts_with("--")) {
    text.remove_prefix(brief.size());
  } else {
    return std::nullopt;
  }
  while (!text.empty() && (text[0] == ' ' || text[0] == '=')) text.remove_prefix(1);
  return std::string(text);
}

}  // namespace

void apply_options(std::span<const std::string> options, IncludeContext& context) {
  KnownMacros& macros = context.macros;
  std::vector<std::string> dirs;
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (const auto dir = argument(options, i, "-I", "--include-path")) {
      dirs.push_back(*dir);
    } else if (const auto definition = argument(options, i, "-D", "--define-macro")) {
      const std::size_t equals = definition->find('=');
      const std::string name = definition->substr(0, equals);
      macros.undefined.erase(name);
      macros.defined[name] = equals == std::string::npos ? "1" : definition->substr(equals + 1);
    } else if (const auto removed = argument(options, i, "-U", "--undefine-macro")) {
      // Compilers do not agree on whether it wins over a -D of the same name.
      macros.forget(*removed);
    } else if (const auto file = argument(options, i, "-include", "--pre-include")) {
      context.pre_includes.push_back(*file);
    }
  }
  context.include_dirs.insert(context.include_dirs.begin(), dirs.begin(), dirs.end());
}

}  // namespace kiln::codegen
