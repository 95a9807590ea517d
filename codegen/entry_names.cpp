#include "codegen/entry_names.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>

#include "kiln/detail/format.hpp"

namespace kiln::codegen {

using kiln::detail::format;

namespace {

bool in_name(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); }

/// Where the comment or blank that begins at `at` ends; `at` itself if none does.
std::size_t skip_blank(std::string_view text, std::size_t at) {
  if (std::isspace(static_cast<unsigned char>(text[at]))) return at + 1;
  const std::string_view rest = text.substr(at, 2);
  if (rest != "//" && rest != "/*") return at;
  const bool line = rest == "//";
  const std::size_t end = text.find(line ? "\n" : "*/", at + 2);
  return end == std::string_view::npos ? text.size() : end + (line ? 1 : 2);
}

/// Identifiers and single other characters, without comments.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < text.size();) {
    if (const std::size_t next = skip_blank(text, at); next != at) {
      at = next;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && in_name(text[end])) ++end;
    end = std::max(end, at + 1);
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

/// The name of the function whose `__global__` stands at `at`: what stands before its parameters.
/// Attributes have parentheses, too.
std::string_view function_at(const std::vector<std::string_view>& words, std::size_t at) {
  int depth = 0;
  std::string_view name;
  for (++at; at < words.size() && words[at] != ";" && words[at] != "{"; ++at) {
    if (words[at] == ")") {
      --depth;
    } else if (words[at] == "(" && depth++ == 0) {
      const std::string_view before = words[at - 1];
      if (in_name(before[0]) && !before.starts_with("__") && before != "alignas") name = before;
    }
  }
  return name;
}

/// Letters to insert, remove or replace.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> kernel_names(std::string_view text) {
  std::vector<std::string> names;
  const std::vector<std::string_view> words = words_of(text);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != "__global__") continue;
    const std::string_view name = function_at(words, i);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
      names.emplace_back(name);
  }
  return names;
}

std::string unknown_entry(std::string_view entry, std::string_view text, std::string_view path) {
  std::string_view name = entry.substr(0, entry.find('<'));
  if (const std::size_t colon = name.rfind(':'); colon != std::string_view::npos)
    name.remove_prefix(colon + 1);
  if (name.empty() || text.find(name) != std::string_view::npos) return {};
  std::string message = format("{} has no function {}", path, name);
  const std::vector<std::string> names = kernel_names(text);
  if (names.empty()) return message + ", nor does it have any other kernel";
  const auto nearest = std::min_element(
      names.begin(), names.end(),
      [&](const auto& a, const auto& b) { return distance(name, a) < distance(name, b); });
  if (distance(name, *nearest) <= std::max<std::size_t>(2, name.size() / 3))
    return message + format("; did you mean {}?", *nearest);
  message += "; its kernels:";
  for (const std::string& known : names) message += " " + known;
  return message;
}

}  // namespace kiln::codegen
