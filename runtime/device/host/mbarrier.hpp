// An mbarrier as the host keeps it: one word in shared memory, where the kernel has put it.
#pragma once

#include <cstdint>

namespace kiln::runtime {

/// Bits 0 to 19: arrivals missing; 20 to 39: arrivals per phase; 40 to 60: bytes missing, signed;
/// 61: the parity of the phase at hand; 62 and 63: 2 in a barrier that has been initialised.
class Mbarrier {
 public:
  static constexpr std::uint64_t kMostArrivals = (1u << 20) - 1;
  static constexpr std::int64_t kMostBytes = (1 << 20) - 1;

  explicit Mbarrier(std::uint64_t word) : word_(word) {}
  static Mbarrier initialised(std::uint64_t arrivals) {
    return Mbarrier(std::uint64_t{2} << 62 | arrivals << 20 | arrivals);
  }

  std::uint64_t word() const { return word_; }
  bool valid() const { return word_ >> 62 == 2 && arrivals_per_phase() != 0; }
  std::uint64_t arrivals_missing() const { return word_ & kMostArrivals; }
  std::uint64_t arrivals_per_phase() const { return word_ >> 20 & kMostArrivals; }
  /// Negative: more bytes came than were expected so far.
  std::int64_t bytes_missing() const { return static_cast<std::int64_t>(word_ << 3) >> 43; }
  unsigned parity() const { return static_cast<unsigned>(word_ >> 61 & 1); }
  /// Whether a wait for the phase of this parity is over.
  bool complete(unsigned parity_waited_for) const { return parity() != (parity_waited_for & 1); }

  /// @pre arrivals <= arrivals_missing()
  void arrive(std::uint64_t arrivals) {
    word_ -= arrivals;
    finish();
  }
  /// `bytes` more are missing, or fewer where it is negative. False: out of the range of the count.
  bool expect(std::int64_t bytes) {
    const std::int64_t missing = bytes_missing() + bytes;
    if (missing > kMostBytes || missing < -kMostBytes) return false;
    constexpr std::uint64_t kField = (std::uint64_t{1} << 21) - 1;
    word_ = (word_ & ~(kField << 40)) | (static_cast<std::uint64_t>(missing) & kField) << 40;
    if (bytes < 0) finish();
    return true;
  }

 private:
  void finish() {
    if (arrivals_missing() != 0 || bytes_missing() != 0) return;
    word_ = (word_ ^ std::uint64_t{1} << 61) + arrivals_per_phase();
  }

  std::uint64_t word_;
};

}  // namespace kiln::runtime
