// From the numbers that all ranks share to the choice that all ranks make. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/ranks/messages.hpp"

namespace kiln::runtime::ranks {

/// Seconds per launch of each candidate, the default first. Infinite: it failed.
using Times = std::vector<float>;

/// The time of a candidate that was not reached: more than any real time, and less than that of a
/// failed candidate, so that both can be told apart after a maximum and after a mean.
inline constexpr float kUntried = 1e34F, kLongest = 1e29F;

/// The time of a candidate that failed.
inline constexpr float kFailed = std::numeric_limits<float>::infinity();

inline bool is_time(float seconds) noexcept { return seconds < kLongest; }

/// What is kept of a tuned problem, in the terms of the candidate list.
struct Record {
  Times times;
  std::size_t winner = 0;  ///< not always the least of `times`: finalists were timed again

  /// Whether it has as many candidates as are asked for, and a winner that can be used.
  bool answers(std::size_t candidates) const noexcept;
  bool operator==(const Record&) const = default;
};
std::vector<std::byte> encode_record(const Record& record);
/// The size depends on the number of candidates only. Never throws: a record that makes no sense
/// does not `answer`.
Record decode_record(std::span<const std::byte> bytes);

/// What is chosen for one problem.
struct Pick {
  std::size_t candidate = 0;
  float seconds = 0;  ///< infinite: no candidate could be used; `candidate` is the default
  bool operator==(const Pick&) const = default;
};

struct Plan {
  std::vector<Pick> picks;      ///< one per problem
  std::vector<Record> records;  ///< what they were made from
};

/// Chooses the default, unless it failed or the best candidate beats it by more than `margin` of
/// the best's time. Otherwise chooses the first candidate that ties with the best (within
/// `margin`). A candidate without a time is never chosen.
/// @pre not empty
Pick select(std::span<const float> times, float margin);

/// The `count` best, the best of each kind, and the default, in the order of the list: those that
/// have a time. `kinds`: of each candidate; empty: all are of one.
std::vector<std::size_t> finalists(std::span<const float> times, std::size_t count,
                                   std::span<const std::uint32_t> kinds = {});

/// Covers what is chosen and for which problem. Covers neither the times, because a mean may differ
/// in its last bit, nor the device.
Digest plan_digest(const Identity& identity, std::span<const Pick> picks);

/// A time as it may be sent: positive and finite, else +inf.
float sanitized(float seconds) noexcept;

}  // namespace kiln::runtime::ranks
