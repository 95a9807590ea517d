// A kernel's sources, read once for look-ups of many of its problems.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>

#include "kiln/detail/tunable.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/tune/record.hpp"
#include "runtime/tune/record_book.hpp"

namespace kiln::runtime {

/// Sources of one subject, which must outlive this. An edit is seen a second later. Thread-safe.
class SourcesRead {
 public:
  explicit SourcesRead(const detail::Tunable& subject) : subject_(subject) {}

  Sources get(RecordBook& records) {
    const std::lock_guard lock(mutex_);
    if (!sources_ || Clock::now() - read_ > kFresh) {
      read_ = Clock::now();
      sources_ = records.sources_of(subject_);
    }
    return *sources_;
  }

 private:
  static constexpr std::chrono::seconds kFresh{1};

  const detail::Tunable subject_;
  std::mutex mutex_;
  std::optional<Sources> sources_;
  Clock::time_point read_;
};

}  // namespace kiln::runtime
