// Exact problem to what the entries of one loaded config take for it, so that tensor maps are
// encoded once per problem and not per launch.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kiln/definition.hpp"
#include "runtime/device/entry_arguments.hpp"
#include "runtime/support/grace_period.hpp"

namespace kiln::runtime {

/// Keeps the last problems, up to a few for each of its places. Thread-safe; a look-up takes no
/// lock and allocates nothing.
class ProblemArguments {
 public:
  ProblemArguments() = default;
  ProblemArguments(const ProblemArguments&) = delete;
  ProblemArguments& operator=(const ProblemArguments&) = delete;

  /// Null: not there. Valid within the section, which begins.
  const EntryArguments* find(std::span<const std::int64_t> problem,
                             detail::ReadSection& section) const noexcept;
  /// Keeps them, in the place of an older one where its places are full; not where another thread
  /// does the same, for which a launch would have to wait. Of several for one problem, any is
  /// found.
  std::shared_ptr<const EntryArguments> keep(std::span<const std::int64_t> problem,
                                             EntryArguments arguments);

  static constexpr std::size_t kPlaces = 32;
  static constexpr std::size_t kWays = 4;
  /// Leave together, because each grace period interrupts all cores.
  static constexpr std::size_t kTogether = 16;

 private:
  struct Entry {
    Values problem;
    EntryArguments arguments;
  };
  using Set = std::array<std::atomic<const Entry*>, kWays>;
  struct Garbage {
    GracePeriod grace;
    std::vector<std::shared_ptr<const Entry>> entries;
  };

  std::array<Set, kPlaces> sets_{};
  std::mutex mutex_;  ///< of what is below
  std::array<std::array<std::shared_ptr<const Entry>, kWays>, kPlaces> owners_;
  std::array<std::uint8_t, kPlaces> next_{};  ///< the way that is replaced next
  std::vector<std::shared_ptr<const Entry>> replaced_;
  std::list<Garbage> garbage_;
};

}  // namespace kiln::runtime
