// Internal: is a preprocessor condition certainly true, certainly false, or not known?
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::codegen {

/// What is known of the macros of a compilation before its first line. A name in neither member is
/// unknown, which is always safe.
struct KnownMacros {
  std::map<std::string, std::string, std::less<>> defined;  ///< name to value
  std::set<std::string, std::less<>> undefined;

  bool mentions(std::string_view name) const {
    return defined.find(name) != defined.end() || undefined.find(name) != undefined.end();
  }
  /// From now on nothing is known of `name`.
  void forget(const std::string& name) {
    defined.erase(name);
    undefined.erase(name);
  }
};

enum class Certainty { no, yes, unknown };

/// Evaluates the text after #if. Anything not certain, malformed text included, is `unknown`.
Certainty evaluate_condition(std::string_view condition, const KnownMacros& known);

/// A file whose existence some text asks for.
struct HasInclude {
  char delimiter;  ///< `<` or `"`; 0: the operand is a macro, and `name` is empty
  std::string name;
};

/// Every `__has_include` in a condition or a macro's value, under any other name too: what stands
/// in parentheses and is spelled like a header can be nothing else.
std::vector<HasInclude> find_has_include(std::string_view text);

}  // namespace kiln::codegen
