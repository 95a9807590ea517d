#include "runtime/recorded/t4_reader.hpp"

#include <istream>
#include <vector>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "runtime/recorded/gzip_file.hpp"
#include "runtime/recorded/t4_builder.hpp"

namespace kiln::runtime {

using kiln::detail::format;
using nlohmann::json;

namespace {

constexpr std::size_t kMaxDepth = 64;

/// Where in the file the parser is. Everything not named here is skipped.
enum class At {
  document,
  root,
  metadata,
  results,
  entry,
  configuration,
  times,
  runtimes,
  measurements,
  measurement,
  skipped
};

/// Told by the parser of each token, so that no more than one entry is ever in memory as text.
class T4Events final : public nlohmann::json_sax<json> {
 public:
  T4Events(T4Builder& builder, GzipFile& file) : builder_(builder), file_(file) {}

  bool null() override { return value(std::monostate{}); }
  bool boolean(bool truth) override { return value(truth); }
  bool number_integer(std::int64_t number) override { return value(number); }
  bool number_unsigned(std::uint64_t number) override {
    if (number > INT64_MAX) return value(static_cast<double>(number));
    return value(static_cast<std::int64_t>(number));
  }
  bool number_float(double number, const std::string&) override { return value(number); }
  bool string(std::string& text) override { return value(std::move(text)); }
  bool binary(json::binary_t&) override { return true; }  // not in JSON text

  bool key(std::string& name) override {
    file_.rest();
    key_ = std::move(name);
    return true;
  }

  bool start_object(std::size_t) override {
    switch (at()) {
      case At::document:
        return enter(At::root);
      case At::root:
        if (key_ == "metadata") return enter(At::metadata);
        if (key_ == "results") builder_.fail("`results` is not a list");
        return enter(At::skipped);
      case At::results:
        builder_.begin_entry();
        return enter(At::entry);
      case At::entry:
        if (key_ == "configuration") {
          builder_.configuration();
          return enter(At::configuration);
        }
        if (key_ == "times") return enter(At::times);
        refuse("an object");
        return enter(At::skipped);
      case At::measurements:
        measurement_ = {};
        return enter(At::measurement);
      default:
        refuse("an object");
        return enter(At::skipped);
    }
  }
  bool start_array(std::size_t) override {
    switch (at()) {
      case At::document:
        builder_.fail("the file is a list, not an object with `results`");
      case At::root:
        if (key_ != "results") return enter(At::skipped);
        if (results_seen_) builder_.fail("`results` is given twice");
        results_seen_ = true;
        return enter(At::results);
      case At::results:
        builder_.begin_entry();
        builder_.fail("the entry is a list, not an object");
      case At::entry:
        if (key_ == "measurements") return enter(At::measurements);
        refuse("a list");
        return enter(At::skipped);
      case At::times:
        if (key_ == "runtimes") return enter(At::runtimes);
        refuse("a list");
        return enter(At::skipped);
      default:
        refuse("a list");
        return enter(At::skipped);
    }
  }
  bool end_object() override {
    if (at() == At::entry) builder_.end_entry();
    if (at() == At::measurement) builder_.measurement(std::move(measurement_));
    return leave();
  }
  bool end_array() override { return leave(); }

  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    std::string why = error.what();
    why = why.substr(std::min(why.size(), why.find("] ") + 2));
    const std::string last = token.size() > 40 ? "..." + token.substr(token.size() - 40) : token;
    const bool word = last.find('N') != std::string::npos || last.find("-I") != std::string::npos ||
                      last.find('I') != std::string::npos;
    builder_.fail(format("not JSON, or truncated: at byte {} near '{}': {}{}", position, last, why,
                         word ? " (NaN and Infinity are neither JSON nor times)" : ""));
  }

  bool results_seen() const { return results_seen_; }

 private:
  At at() const { return path_.back(); }
  bool enter(At place) {
    file_.rest();
    if (path_.size() > kMaxDepth) builder_.fail(format("nested more than {} deep", kMaxDepth));
    path_.push_back(place);
    return true;
  }
  bool leave() {
    path_.pop_back();
    return true;
  }

  /// Where Kiln wants a plain value, a list or an object is a mistake.
  void refuse(const char* what) const {
    switch (at()) {
      case At::configuration:
        builder_.fail(format("parameter '{}' is {}", key_, what));
      case At::runtimes:
        builder_.fail(format("`times.runtimes` contains {}", what));
      case At::entry:
        if (key_ == "configuration" || key_ == "times" || key_ == "measurements" ||
            key_ == "invalidity")
          builder_.fail(format("`{}` is {}", key_, what));
        break;
      case At::times:
        if (is_compilation() || key_ == "runtimes")
          builder_.fail(format("`times.{}` is {}", key_, what));
        break;
      case At::metadata:
        if (key_ == "timeunit") builder_.fail(format("`metadata.timeunit` is {}", what));
        break;
      default:
        break;
    }
  }

  bool is_compilation() const { return key_ == "compilation" || key_ == "compilation_time"; }

  bool value(T4Value value) {
    file_.rest();
    switch (at()) {
      case At::document:
        builder_.fail("the file is one value, not an object with `results`");
      case At::root:
        if (key_ == "results") builder_.fail("`results` is not a list");
        break;
      case At::metadata:
        if (key_ == "timeunit") {
          if (auto* text = std::get_if<std::string>(&value))
            builder_.time_unit(std::move(*text));
          else if (!is_null(value))
            refuse("not a string");
        }
        break;
      case At::results:
        builder_.begin_entry();
        builder_.fail("the entry is not an object");
      case At::configuration:
        builder_.parameter(key_, std::move(value));
        break;
      case At::runtimes:
        if (const auto time = number(value))
          builder_.runtime(*time);
        else
          builder_.fail("`times.runtimes` contains something that is not a number");
        break;
      case At::times:
        if (key_ == "runtimes" && !is_null(value)) refuse("not a list");
        if (is_compilation() && !is_null(value)) {
          if (const auto time = number(value))
            builder_.compilation(*time);
          else
            refuse("not a number");
        }
        break;
      case At::entry:
        entry_value(std::move(value));
        break;
      case At::measurement:
        measurement_value(std::move(value));
        break;
      default:
        break;
    }
    return true;
  }

  void entry_value(T4Value value) {
    if (key_ == "invalidity") {
      if (auto* text = std::get_if<std::string>(&value))
        builder_.invalidity(std::move(*text));
      else if (!is_null(value))
        refuse("not a string");
    } else if (key_ == "correctness") {
      if (const auto* truth = std::get_if<bool>(&value)) builder_.correctness(*truth);
      if (const auto grade = number(value)) builder_.correctness(*grade != 0);
    } else if (key_ == "configuration") {
      refuse("not an object");
    } else if (key_ == "times" && !is_null(value)) {
      refuse("not an object");
    } else if (key_ == "measurements" && !is_null(value)) {
      refuse("not a list");
    }
  }

  void measurement_value(T4Value value) {
    auto* text = std::get_if<std::string>(&value);
    if (key_ == "name" && text) measurement_.name = std::move(*text);
    if (key_ == "unit" && text) measurement_.unit = std::move(*text);
    if (key_ != "value") return;
    measurement_.value = number(value);
    if (text) measurement_.failure = std::move(*text);
  }

  static bool is_null(const T4Value& v) { return std::holds_alternative<std::monostate>(v); }
  static std::optional<double> number(const T4Value& v) {
    if (const auto* whole = std::get_if<std::int64_t>(&v)) return static_cast<double>(*whole);
    if (const auto* real = std::get_if<double>(&v)) return *real;
    return {};
  }

  T4Builder& builder_;
  GzipFile& file_;
  std::vector<At> path_{At::document};
  std::string key_;
  T4Builder::Measurement measurement_;
  bool results_seen_ = false;
};

}  // namespace

std::shared_ptr<const RecordedSpace::Data> read_t4(const std::filesystem::path& file) {
  T4Builder builder(file);
  GzipFile bytes(file);
  std::istream in(&bytes);
  T4Events events(builder, bytes);
  json::sax_parse(in, &events);
  if (!events.results_seen()) builder.fail("`results` is missing");
  return builder.finish();
}

}  // namespace kiln::runtime
