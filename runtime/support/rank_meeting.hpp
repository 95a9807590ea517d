// Where ranks that measure in step begin each sample together.
#pragma once

#include <functional>

namespace kiln::runtime {

/// While one of these lives on a thread, samples that are taken in step there begin when all ranks
/// have come to theirs: otherwise a sample contains how late the host of another rank is.
class RankMeeting {
 public:
  /// @param meet returns when all ranks have called it, or when one has given up
  explicit RankMeeting(std::function<void()> meet);
  ~RankMeeting();
  RankMeeting(const RankMeeting&) = delete;
  RankMeeting& operator=(const RankMeeting&) = delete;

  /// Whether hold() waits for other ranks.
  static bool here() noexcept { return latest() != nullptr; }
  /// Returns when all ranks have come here; at once where no RankMeeting lives on this thread.
  static void hold();

 private:
  static RankMeeting*& latest() noexcept;

  const std::function<void()> meet_;
  RankMeeting* const before_;
};

}  // namespace kiln::runtime
