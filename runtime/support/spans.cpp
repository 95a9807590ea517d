#include "runtime/support/spans.hpp"

#include <array>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/support/nvtx.hpp"

namespace kiln::runtime {

namespace {

constexpr std::size_t kMostAttributes = 8;

std::atomic<std::uint64_t> next_id{1};
thread_local SpanScope::Context context;

/// By one difference of the two clocks, so that spans nest whatever happens to the calendar's.
std::chrono::system_clock::time_point on_the_calendar(Clock::time_point at) {
  using Calendar = std::chrono::system_clock;
  static const Calendar::duration ahead =
      Calendar::now().time_since_epoch() -
      std::chrono::duration_cast<Calendar::duration>(Clock::now().time_since_epoch());
  return Calendar::time_point(
      std::chrono::duration_cast<Calendar::duration>(at.time_since_epoch()) + ahead);
}

std::string this_threads_lane() {
  static std::atomic<int> threads{0};
  static thread_local const int number = threads++;
  return "thread " + std::to_string(number);
}

std::string_view value_of(const SpanData& span, std::string_view name) {
  for (const SpanAttribute& a : span.attributes)
    if (a.name == name) return a.value;
  return {};
}

}  // namespace

Spans::Spans(SpanSink sink, std::optional<File> file, LogSink log)
    : sink_(std::move(sink)), file_(std::move(file)), log_(std::move(log)) {}

Spans::~Spans() {
  if (!file_) return;
  try {
    trace_.write(file_->path, 0, dropped_);
  } catch (const std::exception& error) {
    if (log_) log_(LogLevel::warning, error.what());
  }
}

bool Spans::listened() const noexcept { return sink_ || file_ || nvtx_listens(); }

void Spans::ended(const SpanData& span, double seconds) noexcept {
  try {
    if (sink_) sink_(span);
  } catch (...) {
    // A program's sink must not end a tuning.
  }
  try {
    if (file_) keep(span, seconds);
  } catch (...) {
    // No memory, or a program's log.
  }
}

void Spans::keep(const SpanData& span, double seconds) {
  TraceSlice slice;
  slice.process = file_->process;
  slice.lane = this_threads_lane();
  slice.name = span.name.substr(span.name.find('.') + 1);
  slice.kernel = value_of(span, "kernel");
  slice.detail = value_of(span, "config");
  if (slice.detail.empty()) slice.detail = value_of(span, "problem");
  // Since 1970, so that the files of several processes share a time line.
  slice.begin = std::chrono::duration<double>(span.begin.time_since_epoch()).count();
  slice.seconds = seconds;
  slice.failed = span.failed;
  {
    std::lock_guard lock(mutex_);
    if (trace_.size() < file_->most) return trace_.add(std::move(slice));
    if (dropped_++ > 0) return;
  }
  if (log_)
    log_(LogLevel::warning,
         detail::format("the trace {} is full: it ends with the first {} spans, and says how many "
                        "came later",
                        file_->path.string(), file_->most));
}

SpanScope::Context SpanScope::here() noexcept { return context; }

SpanScope::SpanScope(Spans* spans, std::string name, Attributes attributes)
    : spans_(spans),
      listened_(spans && spans->listened()),
      outer_(context),
      name_(std::move(name)),
      attributes_(std::move(attributes)) {
  if (listened_) {
    id_ = next_id.fetch_add(1, std::memory_order_relaxed);
    std::string text = name_.substr(name_.find('.') + 1);
    for (const auto& [key, value] : attributes_) text += " " + value;
    nvtx_push(text.c_str());
  }
  context = {spans_, listened_ ? id_ : outer_.id};
}

SpanScope::~SpanScope() {
  if (!ended_) leave(true);
}

void SpanScope::set(const char* name, std::string value) {
  if (listened_) attributes_.emplace_back(name, std::move(value));
}

double SpanScope::end() noexcept {
  const double seconds = seconds_since(begin_);
  if (!ended_) leave(false);
  return seconds;
}

void SpanScope::leave(bool failed) noexcept {
  ended_ = true;
  context = outer_;
  if (!listened_) return;
  nvtx_pop();
  std::array<SpanAttribute, kMostAttributes> attributes{};
  std::size_t count = 0;
  for (const auto& [name, value] : attributes_)
    if (count < attributes.size()) attributes[count++] = {name, value};
  const auto now = Clock::now();
  SpanData span;
  span.name = name_;
  span.id = id_;
  span.parent = outer_.id;
  span.begin = on_the_calendar(begin_);
  span.end = on_the_calendar(now);
  span.attributes = {attributes.data(), count};
  span.failed = failed;
  spans_->ended(span, std::chrono::duration<double>(now - begin_).count());
}

SpanParent::SpanParent(SpanScope::Context parent) noexcept : before_(context) { context = parent; }

SpanParent::~SpanParent() { context = before_; }

}  // namespace kiln::runtime
