// What a runtime does, one piece of work at a time, for a tracing library of the program's own.
//
//   options.spans = [](const kiln::SpanData& span) { my_tracer(span.name, span.begin, span.end); };
//
// The members are those of an OpenTelemetry span; Kiln links no tracing library.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "kiln/version.hpp"

namespace kiln {

struct SpanAttribute {
  std::string_view name;  ///< `kernel`, `problem`, `config`, `result`, ...
  std::string_view value;
};

/// A piece of work that has ended. Its views are valid during the call only.
struct SpanData {
  /// `kiln.prepare`, `kiln.tune`, `kiln.agree`, and parts of them: `kiln.compile`, `kiln.load`,
  /// `kiln.verify`, `kiln.time`, `kiln.finals`, `kiln.search`, ...; `kiln.swap`: launches of a
  /// problem get `config` from now on, in the place of `before`, if they got anything
  std::string_view name;
  std::uint64_t id = 0;      ///< unique in the process
  std::uint64_t parent = 0;  ///< the span that this one is a part of; 0: none
  std::chrono::system_clock::time_point begin, end;
  std::span<const SpanAttribute> attributes;
  bool failed = false;  ///< it came to no result: an exception, or a candidate that was refused
};

/// Called when a piece of work has ended, on the thread that did it, also from several threads at
/// once: a sink does its own locking. What it throws is dropped. Launches of problems that are
/// ready make no spans.
using SpanSink = std::function<void(const SpanData&)>;

}  // namespace kiln
