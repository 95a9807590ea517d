#include "codegen/macro_condition.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>

namespace kiln::codegen {
namespace {

using Value = std::optional<std::int64_t>;

constexpr std::string_view kHasInclude = "__has_include";
constexpr std::string_view kHasIncludeNext = "__has_include_next";

bool is_word_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_word(char c) { return is_word_start(c) || (c >= '0' && c <= '9'); }

// Decimal, octal, hexadecimal or binary. Unsigned ones compare by other rules: left unknown.
Value integer(std::string_view token) {
  std::string digits;
  for (char c : token) {
    if (c != '\'') digits += c;
  }
  int base = 10;
  std::size_t begin = 0;
  if (digits.size() > 1 && digits[0] == '0') {
    const char kind = digits[1];
    base = kind == 'x' || kind == 'X' ? 16 : kind == 'b' || kind == 'B' ? 2 : 8;
    begin = base == 8 ? 0 : 2;
  }
  errno = 0;
  char* end = nullptr;
  const long long value = std::strtoll(digits.c_str() + begin, &end, base);
  if (errno != 0 || end == digits.c_str() + begin) return std::nullopt;
  for (; *end; ++end) {
    if (*end != 'l' && *end != 'L') return std::nullopt;
  }
  return value;
}

class Evaluator {
 public:
  Evaluator(std::string_view text, const KnownMacros& known) : text_(text), known_(known) {}

  Value run() {
    const Value value = ternary(0);
    skip_blanks();
    return at_ == text_.size() && !malformed_ ? value : std::nullopt;
  }

 private:
  // Deeper nesting than this is unknown rather than a deep stack.
  static constexpr int kMaxDepth = 200;

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  char peek() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  Value fail() {
    malformed_ = true;
    at_ = text_.size();
    return std::nullopt;
  }
  std::string_view word() {
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  Value ternary(int depth) {
    if (depth > kMaxDepth) return fail();
    const Value condition = binary(depth + 1, 1);
    if (!accept('?')) return condition;
    const Value yes = ternary(depth + 1);
    if (!accept(':')) return fail();
    const Value no = ternary(depth + 1);
    if (condition) return *condition ? yes : no;
    return yes == no ? yes : std::nullopt;
  }

  struct Operator {
    std::string_view text;
    int precedence;
  };

  // Longer spellings first.
  Operator next_operator() {
    static constexpr Operator kOperators[] = {{"||", 1}, {"&&", 2}, {"==", 6}, {"!=", 6}, {"<=", 7},
                                              {">=", 7}, {"<<", 8}, {">>", 8}, {"|", 3},  {"^", 4},
                                              {"&", 5},  {"<", 7},  {">", 7},  {"+", 9},  {"-", 9},
                                              {"*", 10}, {"/", 10}, {"%", 10}};
    skip_blanks();
    for (const Operator& op : kOperators) {
      if (text_.substr(at_).starts_with(op.text)) return op;
    }
    return {"", 0};
  }

  Value binary(int depth, int lowest) {
    if (depth > kMaxDepth) return fail();
    Value left = unary(depth + 1);
    while (true) {
      const Operator op = next_operator();
      if (op.precedence < lowest || op.precedence == 0) return left;
      at_ += op.text.size();
      left = apply(op.text, left, binary(depth + 1, op.precedence + 1));
    }
  }

  static Value apply(std::string_view op, Value a, Value b) {
    const auto known_as = [](Value v, bool truth) { return v && (*v != 0) == truth; };
    if (op == "&&") {
      if (known_as(a, false) || known_as(b, false)) return 0;
      return a && b ? Value(1) : std::nullopt;
    }
    if (op == "||") {
      if (known_as(a, true) || known_as(b, true)) return 1;
      return a && b ? Value(0) : std::nullopt;
    }
    if (!a || !b) return std::nullopt;
    std::int64_t result = 0;
    if (op == "==") return *a == *b;
    if (op == "!=") return *a != *b;
    if (op == "<=") return *a <= *b;
    if (op == ">=") return *a >= *b;
    if (op == "<") return *a < *b;
    if (op == ">") return *a > *b;
    if (op == "|") return *a | *b;
    if (op == "^") return *a ^ *b;
    if (op == "&") return *a & *b;
    if (op == "+") return __builtin_add_overflow(*a, *b, &result) ? std::nullopt : Value(result);
    if (op == "-") return __builtin_sub_overflow(*a, *b, &result) ? std::nullopt : Value(result);
    if (op == "*") return __builtin_mul_overflow(*a, *b, &result) ? std::nullopt : Value(result);
    if (op == "<<" || op == ">>") {
      if (*a < 0 || *b < 0 || *b > 62) return std::nullopt;
      if (op == ">>") return *a >> *b;
      return *a > (INT64_MAX >> *b) ? std::nullopt : Value(*a << *b);
    }
    if (*b == 0 || (*a == INT64_MIN && *b == -1)) return std::nullopt;
    return op == "/" ? *a / *b : *a % *b;
  }

  Value unary(int depth) {
    if (depth > kMaxDepth) return fail();
    if (accept('!')) {
      const Value value = unary(depth + 1);
      return value ? Value(*value == 0) : std::nullopt;
    }
    if (accept('-')) return apply("-", 0, unary(depth + 1));
    if (accept('+')) return unary(depth + 1);
    if (accept('~')) {
      const Value value = unary(depth + 1);
      return value ? Value(~*value) : std::nullopt;
    }
    if (accept('(')) {
      const Value value = ternary(depth + 1);
      return accept(')') ? value : fail();
    }
    const char c = peek();
    if (c >= '0' && c <= '9') {
      const std::size_t begin = at_;
      while (at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '\'')) ++at_;
      return integer(text_.substr(begin, at_ - begin));
    }
    if (is_word_start(c)) return name(word());
    return fail();
  }

  Value name(std::string_view identifier) {
    if (identifier == "defined") {
      const bool parenthesis = accept('(');
      const Value value = is_defined(word());
      return !parenthesis || accept(')') ? value : fail();
    }
    if (identifier == kHasInclude || identifier == kHasIncludeNext) return has_include();
    if (identifier == "true") return 1;
    if (identifier == "false") return 0;
    if (peek() == '(') {  // a macro's or a compiler's function
      skip_parentheses();
      return std::nullopt;
    }
    const auto value = known_.defined.find(identifier);
    if (value != known_.defined.end()) return integer(value->second);
    return known_.undefined.find(identifier) != known_.undefined.end() ? Value(0) : std::nullopt;
  }

  Value is_defined(std::string_view macro) const {
    if (known_.defined.find(macro) != known_.defined.end()) return 1;
    if (known_.undefined.find(macro) != known_.undefined.end()) return 0;
    return std::nullopt;
  }

  void skip_parentheses() {
    int open = 0;
    do {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      if (c == '\0') {
        fail();
        return;
      }
      open += c == '(' ? 1 : c == ')' ? -1 : 0;
      ++at_;
    } while (open > 0);
  }

  // The name that it asks for may contain parentheses, so it is not skipped like a function's
  // arguments.
  Value has_include() {
    if (!accept('(')) return std::nullopt;
    const char open = peek();
    if (open == '<' || open == '"') {
      ++at_;
      while (at_ < text_.size() && text_[at_] != (open == '<' ? '>' : '"')) ++at_;
      if (at_ < text_.size()) ++at_;
    } else {
      ternary(0);
    }
    return accept(')') ? std::nullopt : fail();
  }

  std::string_view text_;
  const KnownMacros& known_;
  std::size_t at_ = 0;
  bool malformed_ = false;
};

}  // namespace

Certainty evaluate_condition(std::string_view condition, const KnownMacros& known) {
  const Value value = Evaluator(condition, known).run();
  if (!value) return Certainty::unknown;
  return *value ? Certainty::yes : Certainty::no;
}

std::vector<HasInclude> find_has_include(std::string_view text) {
  std::vector<HasInclude> found;
  for (std::size_t open = text.find('('); open != std::string_view::npos;
       open = text.find('(', open + 1)) {
    const std::size_t begin = text.find_first_not_of(" \t", open + 1);
    if (begin == std::string_view::npos) break;
    if (text[begin] == '<' || text[begin] == '"') {
      const std::size_t end = text.find(text[begin] == '<' ? '>' : '"', begin + 1);
      if (end == std::string_view::npos) break;
      found.push_back({text[begin], std::string(text.substr(begin + 1, end - begin - 1))});
      open = end;
    } else if (text.substr(0, open).ends_with(kHasInclude) ||
               text.substr(0, open).ends_with(kHasIncludeNext)) {
      found.push_back({'\0', {}});
    }
  }
  return found;
}

}  // namespace kiln::codegen
