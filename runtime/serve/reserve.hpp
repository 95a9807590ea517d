// What a handle of a sealed runtime launches for problems that nothing was prepared for, and which
// problems these were.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "kiln/detail/handle_core.hpp"
#include "kiln/detail/launch_plan.hpp"

namespace kiln::runtime {

/// Loaded kernels of one handle, any of which may serve another problem of it: an instance does not
/// depend on the problem. What the nearest problem runs with comes first, since it was chosen for
/// a problem much like this one. Nothing is published for such a problem, so nothing is allocated.
/// The choice depends on what is loaded alone, so ranks that prepared alike make it alike.
class Reserve {
 public:
  /// `definition` must outlive the reserve.
  explicit Reserve(const KernelDefinition& definition) : definition_(definition) {}

  /// A launchable whose constraints hold for the problem, which was loaded for launches that ask
  /// for as much, and whose cooperative grids fit; or null. Takes no lock, and allocates nothing,
  /// except for kernels with tensor maps or steps. @throws what the kernel's rules throw
  detail::Ready find(std::span<const std::int64_t> problem, const DeviceLimits& limits) const;
  /// Whether what stands in for the problem was found to be wrong. Takes no lock.
  bool distrusted(std::span<const std::int64_t> problem) const noexcept;
  /// Serves from now on with some of what is loaded: with what the nearest of the problems in use
  /// has, of those that are not untuned; else with the default config, then those with most
  /// problems. `in_use`: one for each problem
  void renew(const std::vector<detail::Ready>& loaded, const std::vector<detail::Ready>& in_use,
             const Values& default_config, const DeviceLimits& limits);
  /// Keeps a launchable loaded, also when it is not in the handle's table any more.
  void keep(detail::Ready ready);
  /// Those that were kept.
  std::vector<detail::Ready> kept() const;
  /// From the next renew() on nothing is found for this problem; or again.
  void distrust(std::span<const std::int64_t> problem, bool wrong);

 private:
  struct Fallback {
    detail::Ready ready;
    detail::LaunchPlan plan;  ///< what it was loaded for
  };
  struct Fallbacks {
    std::vector<Fallback> fallbacks;
    std::vector<std::size_t> known;  ///< by problem that is known: its place among the fallbacks
    std::vector<double> sizes;       ///< of their fields, one problem after the other
    std::vector<Values> distrusted;
  };
  /// While one lives, what it gives stays: renew() frees what no launch can be reading.
  class Reading {
   public:
    explicit Reading(const Reserve& reserve) noexcept : reserve_(reserve) { ++reserve_.readers_; }
    ~Reading() { --reserve_.readers_; }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    const Fallbacks* current() const noexcept { return reserve_.current_; }

   private:
    const Reserve& reserve_;
  };
  static bool distrusts(const Fallbacks& fallbacks, std::span<const std::int64_t> problem) noexcept;
  const Fallback* nearest(const Fallbacks& fallbacks, std::span<const std::int64_t> problem,
                          const DeviceLimits& limits) const;
  bool fits(const Fallback& fallback, std::span<const std::int64_t> problem,
            const DeviceLimits& limits) const;

  const KernelDefinition& definition_;
  mutable std::atomic<std::size_t> readers_{0};  ///< in the total order of `current_`
  std::atomic<const Fallbacks*> current_{nullptr};
  mutable std::mutex mutex_;  ///< of those below
  /// The last is the current one; a launch may be reading an old one.
  std::vector<std::unique_ptr<const Fallbacks>> renewed_;
  std::vector<detail::Ready> kept_;
  std::set<Values> distrusted_;
};

/// A bounded set of problems, which counts how often each was added. Adding takes no lock and
/// allocates nothing. Two threads that add the same problem at the same time may both be told that
/// it is new.
class ProblemNotes {
 public:
  static constexpr std::size_t kMost = 1024;

  /// @param no_room counts what finds no place; null: nothing does
  explicit ProblemNotes(std::size_t fields, std::atomic<std::uint64_t>* no_room = nullptr);
  /// Whether it is new. One that finds no place is not.
  bool add(std::span<const std::int64_t> problem) noexcept;
  /// How often, by problem.
  std::map<Values, std::uint64_t> all() const;

 private:
  enum class Slot : std::uint8_t { empty, being_written, full };
  static constexpr std::size_t kSlots = 2 * kMost;

  std::span<std::int64_t> values(std::size_t slot) const noexcept {
    return {values_.get() + slot * fields_, fields_};
  }

  const std::size_t fields_;
  std::atomic<std::uint64_t>* const no_room_;
  std::unique_ptr<std::atomic<Slot>[]> slots_;
  std::unique_ptr<std::int64_t[]> values_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> times_;  ///< by slot
  std::atomic<std::size_t> count_{0};
};

/// The same, from begin() on.
class NotedLaunches {
 public:
  /// By one thread at a time. Later calls do nothing.
  void begin(std::size_t fields, std::atomic<std::uint64_t>* no_room) {
    if (own_) return;
    own_ = std::make_unique<ProblemNotes>(fields, no_room);
    notes_.store(own_.get(), std::memory_order_release);
  }
  /// @pre begin() was called
  bool add(std::span<const std::int64_t> problem) noexcept {
    return notes_.load(std::memory_order_acquire)->add(problem);
  }
  std::map<Values, std::uint64_t> all() const {
    const ProblemNotes* const notes = notes_.load(std::memory_order_acquire);
    return notes ? notes->all() : std::map<Values, std::uint64_t>();
  }

 private:
  std::unique_ptr<ProblemNotes> own_;
  std::atomic<ProblemNotes*> notes_{nullptr};
};

}  // namespace kiln::runtime
