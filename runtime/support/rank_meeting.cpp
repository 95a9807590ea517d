#include "runtime/support/rank_meeting.hpp"

#include <utility>

namespace kiln::runtime {

RankMeeting::RankMeeting(std::function<void()> meet) : meet_(std::move(meet)), before_(latest()) {
  latest() = this;
}

RankMeeting::~RankMeeting() { latest() = before_; }

void RankMeeting::hold() {
  if (latest()) latest()->meet_();
}

RankMeeting*& RankMeeting::latest() noexcept {
  static thread_local RankMeeting* latest = nullptr;
  return latest;
}

}  // namespace kiln::runtime
