// Problem to kernel, for the launch path: look-ups take no lock and allocate nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kiln/handle.hpp"

namespace kiln::runtime {

/// Open addressing over immutable entries. Readers see whole entries or none; what a writer
/// replaces stays alive as long as the table, so a reader may keep using it.
class ProblemTable {
 public:
  ProblemTable();

  const detail::ReadyKernel* find(std::span<const std::int64_t> problem) const noexcept;
  /// Adds the entry, or puts it in the place of the one with the same problem.
  const detail::ReadyKernel& publish(detail::ReadyKernel ready);

 private:
  struct Slots {
    explicit Slots(std::size_t capacity) : entries(capacity) {}
    std::vector<std::atomic<const detail::ReadyKernel*>> entries;
  };

  /// A problem's slot and what was seen in it: null where the problem is not there. The slot is not
  /// read again, because another problem may have taken it by then.
  struct Place {
    std::size_t slot;
    const detail::ReadyKernel* entry;
  };

  static std::uint64_t hash(std::span<const std::int64_t> problem) noexcept;
  static Place place(const Slots& slots, std::span<const std::int64_t> problem) noexcept;
  void grow();

  std::atomic<const Slots*> current_;
  std::mutex mutex_;
  std::size_t count_ = 0;
  std::vector<std::unique_ptr<Slots>> generations_;
  std::vector<std::unique_ptr<const detail::ReadyKernel>> kernels_;
};

}  // namespace kiln::runtime
