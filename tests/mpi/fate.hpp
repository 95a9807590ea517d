// What befalls a rank on purpose: it dies or stops at a chosen point of the agreement, or cannot
// write. Nothing of it is in the library: a communicator around the real one, and system calls.
#pragma once

#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kiln/communicator.hpp"

namespace fate {

enum class Blow { none, kill, stop };

/// `digest`, `vote`, `reduce`, `compare`, `confirm`: just before that exchange. `tune`: while
/// candidates are timed. `save`: as the record is about to get its name.
struct Fate {
  Blow blow = Blow::none;
  std::string at{};
};

void strike(Blow blow);

/// From now on the first rename in a folder `records` is this process's last act.
void die_when_saving();
/// From now on nothing can be written to files under this folder, for want of space.
void fill_disk(const std::string& folder);

/// The real communicator's calls, counted.
class Fated final : public kiln::Communicator {
 public:
  Fated(std::unique_ptr<kiln::Communicator> base, Fate fate)
      : base_(std::move(base)), fate_(std::move(fate)) {}

  int rank() const noexcept override { return base_->rank(); }
  int size() const noexcept override { return base_->size(); }
  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                 kiln::Deadline deadline) override {
    static const char* const kNames[] = {"held", "digest", "vote", "compare", "confirm"};
    if (gathers_ < std::size(kNames)) pass(kNames[gathers_++]);
    return base_->gather(mine, all, deadline);
  }
  Failure reduce(std::span<float> values, kiln::Reduction op, kiln::Deadline deadline) override {
    pass("reduce");
    return base_->reduce(values, op, deadline);
  }
  Failure broadcast(std::span<std::byte> bytes, int root, kiln::Deadline deadline) override {
    pass("share");
    return base_->broadcast(bytes, root, deadline);
  }
  void abort(const kiln::RankFailure& why) noexcept override { base_->abort(why); }
  bool settles() const noexcept override { return base_->settles(); }
  std::optional<bool> settle(const kiln::Digest& question, bool proposal,
                             kiln::Deadline deadline) override {
    pass("settle");
    return base_->settle(question, proposal, deadline);
  }
  Failure split(int group, std::unique_ptr<Communicator>& part, kiln::Deadline deadline) override {
    return base_->split(group, part, deadline);
  }

  /// This rank has come to a point; also called from outside, for `tune`.
  void pass(const std::string& point) {
    if (armed_ && point == fate_.at) strike(fate_.blow);
  }
  /// The next agreement is the one.
  void arm() { armed_ = true, gathers_ = 0; }

 private:
  std::unique_ptr<kiln::Communicator> base_;
  const Fate fate_;
  std::size_t gathers_ = 0;
  bool armed_ = false;
};

}  // namespace fate
