#include "codegen/directives.hpp"

#include <array>
#include <cstring>

namespace kiln::codegen {
namespace {

constexpr int kEnd = -1;

bool is_identifier_start(int c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80 || c == '$';
}
bool is_digit(int c) { return c >= '0' && c <= '9'; }
bool is_identifier(int c) { return is_identifier_start(c) || is_digit(c); }
bool in_word(char c) { return is_identifier(static_cast<unsigned char>(c)) || c == '.'; }
bool is_exponent(int c) { return c == 'e' || c == 'E' || c == 'p' || c == 'P'; }
bool is_blank(int c) { return c == ' ' || c == '\t' || c == '\f' || c == '\v' || c == '\r'; }

/// Characters with which no comment, literal, line or continuation can begin.
struct PlainCharacters {
  std::array<bool, 256> is{};
  constexpr PlainCharacters() {
    is.fill(true);
    for (const char c : {'\n', '"', '\'', '/', '\\'}) is[static_cast<unsigned char>(c)] = false;
  }
};
constexpr PlainCharacters kPlain;

// Characters after line splicing: a backslash before the end of a line is skipped.
class Characters {
 public:
  explicit Characters(std::string_view text) : text_(text) { splice(); }

  int peek() const { return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : kEnd; }
  int peek_next() const {
    Characters next = *this;
    next.advance();
    return next.peek();
  }
  void advance() {
    if (at_ < text_.size()) ++at_;
    splice();
  }
  bool starts_with(char a, char b) const { return peek() == a && peek_next() == b; }

  // Skips straight to the next `c` that matters, or to the end.
  void skip_to(char c) {
    const void* found =
        at_ < text_.size() ? std::memchr(text_.data() + at_, c, text_.size() - at_) : nullptr;
    at_ = found ? static_cast<std::size_t>(static_cast<const char*>(found) - text_.data())
                : text_.size();
  }
  // Skips a comment, or to the end. Entered after its `/*`. Slashes are rarer than
  // stars.
  void skip_block_comment() {
    const std::size_t start = at_;
    for (skip_to('/'); at_ < text_.size(); ++at_, skip_to('/'))
      if (const std::size_t end = before_splices(at_); end > start && text_[end - 1] == '*') break;
    advance();
  }
  // Skips to the end of the line, which a backslash may continue.
  void skip_line() {
    while (true) {
      skip_to('\n');
      if (at_ >= text_.size() || before_splices(at_ + 1) == at_ + 1) return;
      ++at_;
    }
  }
  // Over whole tokens and blanks, to the token that a quote or a backslash may belong to. Entered
  // where a token begins; false if nothing was skipped.
  bool skip_plain() {
    const std::size_t start = at_;
    while (at_ < text_.size() && kPlain.is[static_cast<unsigned char>(text_[at_])]) ++at_;
    if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '/')
      while (at_ > start && (in_word(text_[at_ - 1]) || ends_exponent(start))) --at_;
    const bool skipped = at_ > start;
    splice();
    return skipped;
  }

  // Skips to the end of a raw string, whose text is not spliced. Entered after `R"`.
  void skip_raw_string() {
    const std::size_t open = text_.find('(', at_);
    if (open == std::string_view::npos || open - at_ > 16) return;
    const std::string close = ")" + std::string(text_.substr(at_, open - at_)) + "\"";
    const std::size_t end = text_.find(close, open + 1);
    at_ = end == std::string_view::npos ? text_.size() : end + close.size();
    splice();
  }

 private:
  void splice() {
    while (at_ < text_.size() && text_[at_] == '\\') {
      std::size_t next = at_ + 1;
      // Compilers also accept blanks between the backslash and the line's end.
      while (next < text_.size() && is_blank(static_cast<unsigned char>(text_[next]))) ++next;
      if (next >= text_.size() || text_[next] != '\n') return;
      at_ = next + 1;
    }
  }

  // Whether a sign stands before here that may belong to a number begun at or after `start`.
  bool ends_exponent(std::size_t start) const {
    return at_ > start + 1 && (text_[at_ - 1] == '+' || text_[at_ - 1] == '-') &&
           is_exponent(text_[at_ - 2]);
  }
  // The end of what ends at `end`, without the backslashes that continue lines there.
  std::size_t before_splices(std::size_t end) const {
    while (end > 0 && text_[end - 1] == '\n') {
      std::size_t last = end - 1;
      while (last > 0 && is_blank(static_cast<unsigned char>(text_[last - 1]))) --last;
      if (last == 0 || text_[last - 1] != '\\') break;
      end = last - 1;
    }
    return end;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

class Scanner {
 public:
  explicit Scanner(std::string_view text) : in_(text) {}

  std::vector<Directive> run() {
    bool line_start = true;
    while (in_.peek() != kEnd) {
      const int c = in_.peek();
      if (c == '\n') {
        line_start = true;
        in_.advance();
      } else if (is_blank(c)) {
        in_.advance();
      } else if (skip_comment()) {
        continue;  // a comment is a blank: a directive may follow it on its line
      } else if (line_start && (c == '#' || in_.starts_with('%', ':'))) {
        if (c == '%') in_.advance();
        in_.advance();
        directive();
      } else {
        line_start = false;
        if (!in_.skip_plain()) skip_token(nullptr);
      }
    }
    return std::move(found_);
  }

 private:
  bool skip_comment() {
    if (in_.peek() != '/') return false;
    const int next = in_.peek_next();
    if (next == '/') {
      in_.skip_line();
      return true;
    }
    if (next != '*') return false;
    in_.advance();
    in_.advance();
    in_.skip_block_comment();
    return true;
  }

  void take(std::string* out) {
    if (out) *out += static_cast<char>(in_.peek());
    in_.advance();
  }

  // One token that is neither blank nor comment, appended to `out` unless that is null.
  void skip_token(std::string* out) {
    const int c = in_.peek();
    if (is_identifier_start(c)) {
      std::string word;
      while (is_identifier(in_.peek())) take(&word);
      if (out) *out += word;
      const bool raw = word == "R" || word == "u8R" || word == "uR" || word == "UR" || word == "LR";
      if (raw && in_.peek() == '"') {
        take(out);
        in_.skip_raw_string();
        if (out) *out += '"';
      }
    } else if (is_digit(c) || (c == '.' && is_digit(in_.peek_next()))) {
      skip_number(out);
    } else if (c == '"' || c == '\'') {
      skip_quoted(c, out);
    } else {
      take(out);
    }
  }

  // A preprocessing number, so that 1'000 does not open a character literal.
  void skip_number(std::string* out) {
    while (true) {
      const int c = in_.peek();
      const bool exponent = is_exponent(c);
      if (c == '\'') {
        if (!is_identifier(in_.peek_next())) return;
        in_.advance();
      } else if (is_identifier(c) || c == '.') {
        take(out);
        if (exponent && (in_.peek() == '+' || in_.peek() == '-')) take(out);
      } else {
        return;
      }
    }
  }

  // An unterminated literal ends with its line.
  void skip_quoted(int quote, std::string* out) {
    take(out);
    while (in_.peek() != kEnd && in_.peek() != '\n') {
      const int c = in_.peek();
      take(out);
      if (c == quote) return;
      if (c == '\\' && in_.peek() != kEnd && in_.peek() != '\n') take(out);
    }
  }

  void skip_blanks() {
    while (is_blank(in_.peek()) || skip_comment()) {
      if (is_blank(in_.peek())) in_.advance();
    }
  }

  std::string identifier() {
    skip_blanks();
    std::string word;
    while (is_identifier(in_.peek())) take(&word);
    return word;
  }

  // The rest of the line with each run of blanks and comments as one space.
  std::string rest_of_line() {
    std::string out;
    skip_blanks();
    while (in_.peek() != kEnd && in_.peek() != '\n') {
      const int c = in_.peek();
      if (is_blank(c) || (c == '/' && (in_.peek_next() == '/' || in_.peek_next() == '*'))) {
        skip_blanks();
        out += ' ';
      } else {
        skip_token(&out);
      }
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out;
  }

  void skip_rest_of_line() {
    while (in_.peek() != kEnd && in_.peek() != '\n') {
      if (!in_.skip_plain() && !skip_comment()) skip_token(nullptr);
    }
  }

  void add(Directive::Kind kind, std::string name = {}, std::string value = {}) {
    found_.push_back({kind, 0, std::move(name), std::move(value)});
  }

  void directive() {
    using Kind = Directive::Kind;
    const std::string word = identifier();
    if (word == "include" || word == "import") {
      include(Kind::include);
    } else if (word == "include_next") {
      include(Kind::include_next);
    } else if (word == "if") {
      add(Kind::condition, rest_of_line());
    } else if (word == "ifdef") {
      add(Kind::condition, "defined(" + identifier() + ")");
    } else if (word == "ifndef") {
      add(Kind::condition, "!defined(" + identifier() + ")");
    } else if (word == "elif") {
      add(Kind::elif, rest_of_line());
    } else if (word == "elifdef") {
      add(Kind::elif, "defined(" + identifier() + ")");
    } else if (word == "elifndef") {
      add(Kind::elif, "!defined(" + identifier() + ")");
    } else if (word == "else") {
      add(Kind::otherwise);
    } else if (word == "endif") {
      add(Kind::end);
    } else if (word == "define") {
      define();
    } else if (word == "undef") {
      add(Kind::undefine, identifier());
    }
    // The rest of the line is not a directive, but may hold comments and literals that span lines.
    skip_rest_of_line();
  }

  void include(Directive::Kind kind) {
    skip_blanks();
    const int open = in_.peek();
    if (open != '<' && open != '"') {
      const std::string operand = rest_of_line();
      if (!operand.empty()) add(Directive::Kind::computed, operand);
      return;
    }
    const int close = open == '<' ? '>' : '"';
    in_.advance();
    std::string name;
    while (in_.peek() != kEnd && in_.peek() != '\n' && in_.peek() != close) take(&name);
    in_.advance();
    found_.push_back({kind, static_cast<char>(open), std::move(name), {}});
  }

  void define() {
    std::string name = identifier();
    const bool function_like = in_.peek() == '(';
    std::string value = rest_of_line();
    if (value.find("__has_include") != std::string::npos) {
      found_.push_back({Directive::Kind::probe, function_like ? '(' : '\0', value, {}});
    }
    // Only such values can become the operand of an include.
    const bool useful = !function_like && !value.empty() &&
                        (value[0] == '"' || value[0] == '<' ||
                         is_identifier_start(static_cast<unsigned char>(value[0])));
    add(Directive::Kind::define, std::move(name), useful ? std::move(value) : std::string());
  }

  Characters in_;
  std::vector<Directive> found_;
};

}  // namespace

std::vector<Directive> find_directives(std::string_view text) { return Scanner(text).run(); }

}  // namespace kiln::codegen
