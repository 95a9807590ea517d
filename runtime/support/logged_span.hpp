// A piece of a tuning run's work, as a span of its result and of the runtime.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/support/spans.hpp"
#include "runtime/support/trace.hpp"

namespace kiln::runtime {

/// From here to end(), on this thread; a part of the SpanScope around it. Work that does not come
/// to end() is not in the log, and has failed.
class LoggedSpan {
 public:
  LoggedSpan(TraceLog& log, std::string name, const char* attribute = "detail",
             std::string detail = {})
      : log_(log),
        name_(std::move(name)),
        detail_(std::move(detail)),
        scope_(SpanScope::here().spans, public_name(name_), attributes(attribute)) {}

  /// Returns its seconds.
  double end() {
    scope_.end();
    return log_.add(name_, "tuner", detail_, begin_);
  }
  double end(std::string detail) {
    detail_ = std::move(detail);
    scope_.set("detail", detail_);
    return end();
  }

 private:
  static std::string public_name(std::string name) {
    std::replace(name.begin(), name.end(), ' ', '_');
    return "kiln." + name;
  }
  SpanScope::Attributes attributes(const char* attribute) const {
    SpanScope::Attributes all{{"kernel", log_.kernel()}};
    if (!detail_.empty()) all.emplace_back(attribute, detail_);
    return all;
  }

  TraceLog& log_;
  const std::string name_;
  std::string detail_;
  const Clock::time_point begin_ = Clock::now();
  SpanScope scope_;
};

}  // namespace kiln::runtime
