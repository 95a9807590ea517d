// Spans of a runtime's work, for each listener: the program (RuntimeOptions::spans), a profiler
// (NVTX), and a trace file (KILN_TRACE).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kiln/log.hpp"
#include "kiln/spans.hpp"
#include "runtime/support/chrome_trace.hpp"
#include "runtime/support/trace.hpp"

namespace kiln::runtime {

/// Thread-safe. Outlives its scopes.
class Spans {
 public:
  /// Where a trace is written, and as what.
  struct File {
    std::filesystem::path path;
    TraceProcess process;
    std::size_t most = 50000;  ///< spans; of later ones only their number is written
  };

  explicit Spans(SpanSink sink = {}, std::optional<File> file = {}, LogSink log = {});
  Spans(const Spans&) = delete;
  Spans& operator=(const Spans&) = delete;
  /// Writes the file; a failure is a warning.
  ~Spans();

  /// Whether it matters what happens.
  bool listened() const noexcept;

 private:
  friend class SpanScope;
  void ended(const SpanData& span, double seconds) noexcept;
  void keep(const SpanData& span, double seconds);

  const SpanSink sink_;
  const std::optional<File> file_;
  const LogSink log_;
  std::mutex mutex_;
  ChromeTrace trace_;
  std::uint64_t dropped_ = 0;
};

/// Work of this thread, from here to end() or to the end of the scope. Scopes of a thread nest; one
/// that does not reach end() has failed. A range of the NVTX domain `kiln`.
class SpanScope {
 public:
  using Attributes = std::vector<std::pair<const char*, std::string>>;
  /// What work on this thread is a part of.
  struct Context {
    Spans* spans = nullptr;
    std::uint64_t id = 0;
  };
  static Context here() noexcept;

  /// `spans`: null, nobody listens.
  SpanScope(Spans* spans, std::string name, Attributes attributes = {});
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;
  ~SpanScope();

  void set(const char* name, std::string value);
  /// The work is done. Returns its seconds.
  double end() noexcept;

 private:
  void leave(bool failed) noexcept;

  Spans* const spans_;
  const bool listened_;
  const Clock::time_point begin_ = Clock::now();
  const Context outer_;
  std::uint64_t id_ = 0;
  std::string name_;
  Attributes attributes_;
  bool ended_ = false;
};

/// Makes the work of this thread, which another one has asked for, a part of what that one does.
class SpanParent {
 public:
  explicit SpanParent(SpanScope::Context parent) noexcept;
  SpanParent(const SpanParent&) = delete;
  SpanParent& operator=(const SpanParent&) = delete;
  ~SpanParent();

 private:
  const SpanScope::Context before_;
};

}  // namespace kiln::runtime
