// What a runtime counts and tells of its work.
#pragma once

#include <optional>
#include <utility>

#include "runtime/support/counters.hpp"
#include "runtime/support/spans.hpp"

namespace kiln::runtime {

/// Thread-safe. One per runtime.
struct Telemetry {
  explicit Telemetry(SpanSink sink = {}, std::optional<Spans::File> file = {}, LogSink log = {})
      : spans(std::move(sink), std::move(file), std::move(log)) {}

  Counters counters;
  Spans spans;
};

}  // namespace kiln::runtime
