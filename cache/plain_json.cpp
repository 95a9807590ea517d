#include "cache/plain_json.hpp"

#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace kiln::cache {
namespace {

using nlohmann::json;

/// Makes a value of a null one, which has nothing to let go of.
template <class... What>
void put(json& null, What&&... what) {
  std::construct_at(&null, std::forward<What>(what)...);
}

bool is_digit(char c) { return '0' <= c && c <= '9'; }

/// Each function reads one thing at the front of what is left, and says whether it could.
class PlainReader {
 public:
  explicit PlainReader(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  bool value(json& out, int depth) {
    skip_space();
    if (at_ == end_) return false;
    switch (*at_) {
      case '{':
        return object(out, depth);
      case '[':
        return array(out, depth);
      case '"':
        return string(out);
      case 't':
        return literal("true", true, out);
      case 'f':
        return literal("false", false, out);
      case 'n':
        return literal("null", nullptr, out);
      default:
        return number(out);
    }
  }
  bool at_end() {
    skip_space();
    return at_ == end_;
  }

 private:
  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  bool skip(char c) {
    skip_space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  template <class Value>
  bool literal(std::string_view word, Value value, json& out) {
    if (!std::string_view(at_, end_).starts_with(word)) return false;
    at_ += word.size();
    put(out, value);
    return true;
  }

  /// @pre `at_` is at a quotation mark
  bool quoted(std::string_view& out) {
    const char* const first = ++at_;
    while (at_ != end_ && *at_ != '"') {
      const auto c = static_cast<unsigned char>(*at_);
      if (c < 0x20 || c > 0x7e || c == '\\') return false;
      ++at_;
    }
    if (at_ == end_) return false;
    out = {first, at_++};
    return true;
  }
  bool string(json& out) {
    std::string_view text;
    if (!quoted(text)) return false;
    put(out, text);
    return true;
  }

  bool number(json& out) {
    constexpr std::ptrdiff_t kMostDigits = 18;
    const char* const first = at_;
    const bool negative = *at_ == '-';
    if (negative) ++at_;
    const char* const digits = at_;
    if (!skip_digits()) return false;
    if (*digits == '0' && (at_ != digits + 1 || negative)) {
      // JSON allows no leading zero. A negative zero is left to the library's parser.
      if (at_ != digits + 1 || at_ == end_ || (*at_ != '.' && *at_ != 'e' && *at_ != 'E'))
        return false;
    }
    const std::ptrdiff_t count = at_ - digits;
    bool integer = true;
    if (at_ != end_ && *at_ == '.') {
      integer = false;
      ++at_;
      if (!skip_digits()) return false;
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      integer = false;
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!skip_digits()) return false;
    }
    if (!integer) {
      double number = 0;
      const auto [rest, error] = std::from_chars(first, at_, number);
      put(out, number);
      return error == std::errc() && rest == at_;
    }
    if (count > kMostDigits) return false;
    std::int64_t number = 0;
    std::from_chars(first, at_, number);
    if (negative)
      put(out, number);
    else
      put(out, static_cast<std::uint64_t>(number));
    return true;
  }
  bool skip_digits() {
    const char* const first = at_;
    while (at_ != end_ && is_digit(*at_)) ++at_;
    return at_ != first;
  }

  bool array(json& out, int depth) {
    if (depth == 0) return false;
    ++at_;
    put(out, json::value_t::array);
    if (skip(']')) return true;
    auto& items = out.get_ref<json::array_t&>();
    do {
      if (!value(items.emplace_back(), depth - 1)) return false;
    } while (skip(','));
    return skip(']');
  }

  bool object(json& out, int depth) {
    if (depth == 0) return false;
    ++at_;
    put(out, json::value_t::object);
    if (skip('}')) return true;
    auto& members = out.get_ref<json::object_t&>();
    do {
      skip_space();
      std::string_view name;
      if (at_ == end_ || *at_ != '"' || !quoted(name) || !skip(':')) return false;
      const std::size_t before = members.size();
      // They are written in order.
      const auto member = members.emplace_hint(members.end(), name, nullptr);
      if (members.size() == before || !value(member->second, depth - 1)) return false;
    } while (skip(','));
    return skip('}');
  }

  const char* at_;
  const char* const end_;
};

}  // namespace

std::optional<json> parse_plain(std::string_view text, int depth) {
  std::optional<json> parsed(std::in_place);
  PlainReader reader(text);
  if (reader.value(*parsed, depth) && reader.at_end()) return parsed;
  discard(*parsed);
  return std::nullopt;
}

void discard(json& value) {
  if (auto* const items = value.get_ptr<json::array_t*>()) {
    for (json& item : *items)
      if (item.is_structured()) discard(item);
    items->clear();
  } else if (auto* const members = value.get_ptr<json::object_t*>()) {
    for (auto& [name, member] : *members)
      if (member.is_structured()) discard(member);
    members->clear();
  }
}

}  // namespace kiln::cache
