// Problem to what launches of it get: look-ups take no lock and allocate nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kiln/detail/handle_core.hpp"
#include "runtime/support/grace_period.hpp"

namespace kiln::runtime {

/// What a loaded kernel is to its problem, from the least to the best.
enum class Standing : std::uint8_t {
  meanwhile,   ///< a stand-in: the untuned config, because a launch could not wait
  best_known,  ///< a stand-in: the winner on record, or the untuned config where there is none
  in_use       ///< the launchable in use
};

/// Open addressing over immutable entries. Readers see whole entries or none. What a writer removes
/// or replaces is freed by reclaim(), once no section can have found it and it has no other owner.
class ProblemTable {
 public:
  /// What becomes of an entry that another one replaces.
  enum class Replaced {
    stays,  ///< for as long as the table: what find() returned stays valid that long
    leaves
  };

  explicit ProblemTable(Replaced replaced = Replaced::stays);

  /// Null where there is nothing of that standing or a better one. Valid within the section, which
  /// begins if something is found. Notes that the problem is used.
  const detail::Launchable* find(std::span<const std::int64_t> problem,
                                 detail::ReadSection& section,
                                 Standing at_least = Standing::in_use) const noexcept;
  /// The same for as long as it has an owner.
  detail::Ready find(std::span<const std::int64_t> problem,
                     Standing at_least = Standing::in_use) const noexcept;
  /// Adds the entry, or puts it in the place of the one with the same problem.
  detail::Ready publish(detail::Launchable ready, Standing standing = Standing::in_use);
  /// All that can be found, and what has stayed: by problem, and for one problem as they were
  /// published.
  std::vector<detail::Ready> all() const;

  /// How a problem was used since this was asked last.
  enum class Use {
    none,   ///< no look-up has found it
    found,  ///< a look-up has
    owned   ///< a Bound, a graph or another table has it now
  };
  Use use(std::span<const std::int64_t> problem);
  /// They are not found any more. Each is named once. Where there is no memory, all of them stay.
  /// @pre Replaced::leaves
  void remove(const std::vector<Values>& problems);
  /// What can be freed by now, when this is destroyed; null: nothing.
  std::shared_ptr<const void> reclaim();
  /// Whether something waits to be freed.
  bool waiting() const;

 private:
  struct Entry {
    Entry(Standing its_standing, detail::Launchable launchable)
        : standing(its_standing), ready(std::move(launchable)) {}
    const Standing standing;  ///< first: beside what a look-up compares
    mutable std::atomic<bool> used{false};
    const detail::Launchable ready;
    std::weak_ptr<const Entry> self;
  };
  struct Slots {
    explicit Slots(std::size_t capacity) : entries(capacity) {}
    std::vector<std::atomic<const Entry*>> entries;
  };
  /// What is not found any more.
  struct Garbage {
    GracePeriod grace;
    std::vector<std::shared_ptr<const Entry>> entries;
    std::unique_ptr<Slots> slots;
  };

  /// A problem's slot and what was seen in it: null where the problem is not there. The slot is not
  /// read again, because another problem may have taken it by then.
  struct Place {
    std::size_t slot;
    const Entry* entry;
  };

  static Place place(const Slots& slots, std::span<const std::int64_t> problem) noexcept;
  /// All entries are in the slots `fresh` from now on: there are at least twice as many. `old`, of
  /// one element, gets the former slots. The mutex is held.
  void rebuild(std::unique_ptr<Slots> fresh, std::list<Garbage> old) noexcept;

  const Replaced replaced_;
  std::atomic<const Slots*> current_;
  mutable std::mutex mutex_;
  std::unique_ptr<Slots> slots_;  ///< what `current_` points to
  /// Those that can be found, by address.
  std::unordered_map<const Entry*, std::shared_ptr<const Entry>> entries_;
  // Lists: an element is made before the table is changed, and moved in where nothing may fail.
  std::list<std::shared_ptr<const Entry>> stayed_;
  std::list<Garbage> garbage_;
};

}  // namespace kiln::runtime
