// Internal: the preprocessor directives of one C++ file, found without preprocessing it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kiln::codegen {

/// One directive that decides which files are read.
struct Directive {
  enum class Kind {
    include,       ///< `name`, between `delimiter` and its counterpart
    include_next,  ///< likewise
    computed,      ///< an include of a macro: `name` holds what follows the directive
    condition,     ///< #if, #ifdef, #ifndef: `name` holds the condition
    elif,          ///< #elif, #elifdef, #elifndef: likewise
    otherwise,     ///< #else
    end,           ///< #endif
    define,        ///< `name`, and `value` where it could be a file name or another macro's name
    undefine,      ///< `name`
    probe,         ///< a macro whose value, in `name`, asks whether files exist
  };

  Kind kind;
  char delimiter = 0;  ///< includes: `<` or `"`; probes: `(` if the macro is like a function
  std::string name;
  std::string value;
};

/// All directives of `text` in order. Knows comments, string, character and raw string literals,
/// digit separators and line continuations; text that no compiler would accept gives some answer.
std::vector<Directive> find_directives(std::string_view text);

}  // namespace kiln::codegen
