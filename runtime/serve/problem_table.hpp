// Problem to what launches of it get: look-ups take no lock and allocate nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kiln/detail/handle_core.hpp"

namespace kiln::runtime {

/// What a loaded kernel is to its problem, from the least to the best.
enum class Standing : std::uint8_t {
  meanwhile,  ///< a stand-in: the untuned config, because a launch could not wait
  known,      ///< a stand-in: the winner on record, or the untuned config where there is none
  in_use      ///< the launchable in use
};

/// Open addressing over immutable entries. Readers see whole entries or none; what a writer
/// replaces stays alive as long as the table, so a reader may keep using it.
class ProblemTable {
 public:
  ProblemTable();

  /// Null where there is nothing of that standing or a better one.
  const detail::Launchable* find(std::span<const std::int64_t> problem,
                                 Standing at_least = Standing::in_use) const noexcept;
  /// Adds the entry, or puts it in the place of the one with the same problem.
  const detail::Launchable& publish(detail::Launchable ready, Standing standing = Standing::in_use);
  /// All that were published, also those that others have replaced.
  std::vector<const detail::Launchable*> all() const;

 private:
  struct Entry {
    Standing standing;  ///< first: beside what a look-up compares
    detail::Launchable ready;
  };
  struct Slots {
    explicit Slots(std::size_t capacity) : entries(capacity) {}
    std::vector<std::atomic<const Entry*>> entries;
  };

  /// A problem's slot and what was seen in it: null where the problem is not there. The slot is not
  /// read again, because another problem may have taken it by then.
  struct Place {
    std::size_t slot;
    const Entry* entry;
  };

  static std::uint64_t hash(std::span<const std::int64_t> problem) noexcept;
  static Place place(const Slots& slots, std::span<const std::int64_t> problem) noexcept;
  void grow();

  std::atomic<const Slots*> current_;
  mutable std::mutex mutex_;
  std::size_t count_ = 0;
  std::vector<std::unique_ptr<Slots>> generations_;
  std::vector<std::unique_ptr<const Entry>> entries_;
};

}  // namespace kiln::runtime
